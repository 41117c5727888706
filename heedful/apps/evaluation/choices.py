"""Questions with given answers, asked of a language model: the likeliest answer is its choice.

So a model classifies and answers without being trained for it, from a prompt alone or from one with
solved examples before it (Brown 2020).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from heedful.apps.evaluation.bootstrap import Interval, ratio_interval
from heedful.apps.evaluation.text_losses import BATCH_TOKENS, Progress, losses_of_targets
from heedful.data.corpus_file import CorpusFile
from heedful.data.padding import pad
from heedful.data.text_file import parse_json
from heedful.errors import DataError
from heedful.pipelines.batching import plan_batches, split_on_oom
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.text.field_tokenizer import prompt_ids

_NAMES = {
    "prompt": ("prompt", "ctx", "context", "question"),
    "choices": ("choices", "endings", "options"),
    "answer": ("answer", "label", "gold"),
}
"""Names of the three parts in files: our own, then those of HellaSwag, ARC and others."""
_REMEDY = 'Each line must be like {"prompt": "2 + 2 =", "choices": ["3", "4"], "answer": 1}'


@dataclass(frozen=True)
class ChoiceQuestion:
    """A prompt, the answers to choose from, and the right one.

    Args:
        prompt: text before an answer.
        choices: answers, at least two.
        answer: index of the right one.
        where: place in its file.
    """

    prompt: str
    choices: tuple[str, ...]
    answer: int
    where: str

    def text(self, choice: int) -> str:
        """Return the prompt with one of the answers."""
        return self.prompt + _spaced(self.prompt, self.choices[choice])


@dataclass(frozen=True)
class ChoiceScores:
    """The share of right choices.

    Attributes:
        accuracy: of the answers with the largest log-probability.
        accuracy_per_byte: of those with the largest log-probability divided by their bytes, so
            that long answers are not at a disadvantage.
        chance: expected share of a choice at random.
        questions: number of questions.
    """

    accuracy: Interval
    accuracy_per_byte: Interval
    chance: float
    questions: int

    def plain(self) -> dict[str, Any]:
        """Return the scores as JSON data."""
        return {**vars(self), **{n: vars(getattr(self, n)) for n in _SHARES}}


_SHARES = ("accuracy", "accuracy_per_byte")


def read_questions(path: Path) -> list[ChoiceQuestion]:
    """Read questions from lines of JSON.

    Args:
        path: file of objects with a prompt, its choices, and the index or the text of the right
            one.

    Raises:
        DataError: when the file or a line is wrong, with its place.
    """
    questions = [
        _question(parse_json(line, f"{path}:{number}", _REMEDY), f"{path}:{number}")
        for number, _, line in CorpusFile(path).filled_lines()
    ]
    if not questions:
        raise DataError("There is no question", where=str(path), remedy=_REMEDY)
    return questions


def _question(record: Any, where: str) -> ChoiceQuestion:
    if not isinstance(record, dict):
        raise DataError("The line is no object", where=where, remedy=_REMEDY)
    found = {
        part: next((record[name] for name in names if name in record), None)
        for part, names in _NAMES.items()
    }
    prompt, choices, answer = found.values()
    if not isinstance(prompt, str) or not isinstance(choices, list) or answer is None:
        missing = [part for part, value in found.items() if value is None]
        raise DataError(
            f"The object has no {' and no '.join(missing)}" if missing else "A part is of no text",
            where=where,
            remedy=_REMEDY,
        )
    if len(choices) < 2 or not all(isinstance(each, str) and each for each in choices):
        raise DataError("It needs two or more texts to choose from", where=where, remedy=_REMEDY)
    # Hellaswag's files hold the index as a text.
    if isinstance(answer, str) and answer not in choices and answer.isdecimal():
        answer = int(answer)
    index = choices.index(answer) if isinstance(answer, str) and answer in choices else answer
    if type(index) is not int or not 0 <= index < len(choices):
        raise DataError(
            f"The answer {json.dumps(answer)} is none of the {len(choices)} choices, which are "
            "counted from 0",
            where=where,
            remedy=_REMEDY,
        )
    return ChoiceQuestion(prompt, tuple(choices), index, where)


def with_examples(
    questions: Sequence[ChoiceQuestion],
    examples: Sequence[ChoiceQuestion],
    shots: int,
    seed: int = 1,
) -> list[ChoiceQuestion]:
    """Put solved examples before the prompt of each question.

    Args:
        questions: questions to ask.
        examples: questions to draw from, none of which is among those asked.
        shots: number of examples before each.
        seed: seed of the draw, which is another one for each question.

    Raises:
        DataError: when there are too few examples.
    """
    if shots > len(examples):
        raise DataError(
            f"There are {len(examples):,} examples, and {shots:,} are to stand before a question",
            where=examples[0].where if examples else None,
            remedy="Give a longer file, or fewer shots",
        )
    draw = random.Random(seed)
    asked = []
    for each in questions:
        before = [solved.text(solved.answer) for solved in draw.sample(examples, shots)]
        prompt = "\n\n".join([*before, each.prompt])
        asked.append(ChoiceQuestion(prompt, each.choices, each.answer, each.where))
    return asked


def choose(
    pipeline: GenerationPipeline,
    questions: Sequence[ChoiceQuestion],
    *,
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> ChoiceScores:
    """Let a language model choose, and count the right choices.

    Args:
        pipeline: causal language model of texts.
        questions: questions, with examples before them or not.
        batch_tokens: positions of a batch.
        progress: receiver of (done, total) answers.

    Raises:
        DataError: when a question is longer than the model's texts.
    """
    likelihoods = answer_likelihoods(pipeline, questions, batch_tokens, progress)
    right: dict[str, list[float]] = {name: [] for name in _SHARES}
    for each, here in zip(questions, likelihoods, strict=True):
        sizes = [len(choice.encode()) for choice in each.choices]
        values = (here, [value / size for value, size in zip(here, sizes, strict=True)])
        for name, scores in zip(_SHARES, values, strict=True):
            best = max(range(len(scores)), key=scores.__getitem__)
            right[name].append(float(best == each.answer))
    ones = [1.0] * len(questions)
    chance = sum(1 / len(each.choices) for each in questions) / len(questions)
    intervals = {name: ratio_interval(values, ones) for name, values in right.items()}
    return ChoiceScores(**intervals, chance=chance, questions=len(questions))


def answer_likelihoods(
    pipeline: GenerationPipeline,
    questions: Sequence[ChoiceQuestion],
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> list[list[float]]:
    """Return the log-probability of each answer of each question in nats.

    Args:
        pipeline: causal language model of texts.
        questions: questions, with examples before them or not.
        batch_tokens: positions of a batch.
        progress: receiver of (done, total) answers.

    Raises:
        DataError: when a question is longer than the model's texts.
    """
    rows = [_checked_ids(pipeline, each, n) for each in questions for n in range(len(each.choices))]
    likelihoods = iter(_likelihoods(pipeline, rows, batch_tokens or BATCH_TOKENS, progress))
    return [list(islice(likelihoods, len(each.choices))) for each in questions]


def _spaced(prompt: str, choice: str) -> str:
    """Return an answer with a space before it where neither text has one."""
    return choice if not prompt or prompt[-1].isspace() or choice[0].isspace() else f" {choice}"


def choice_ids(
    pipeline: GenerationPipeline, question: ChoiceQuestion, choice: int
) -> tuple[list[int], int]:
    """Return the ids of a prompt with an answer, and how many of them are the prompt's.

    Args:
        pipeline: causal language model of texts.
        question: question with its answers.
        choice: index of the answer.
    """
    tokenizer = pipeline.tokenizer
    alone, whole = (
        prompt_ids(tokenizer, text) for text in (question.prompt, question.text(choice))
    )
    # The last token of the prompt may be another one beside the answer.
    shared = next(
        (i for i, (a, b) in enumerate(zip(alone, whole, strict=False)) if a != b),
        min(len(alone), len(whole)),
    )
    # A first token is predicted by nothing before it.
    return whole, max(1, min(shared, len(whole) - 1))


def _checked_ids(
    pipeline: GenerationPipeline, question: ChoiceQuestion, choice: int
) -> tuple[list[int], int]:
    """Return the result of `choice_ids`, which must fit into the model's texts."""
    whole, start = choice_ids(pipeline, question, choice)
    longest = pipeline.spec.longest_text
    if longest is not None and len(whole) > longest:
        raise DataError(
            f"With its answer the question has {len(whole)} tokens, and the model reads {longest}",
            where=question.where,
            remedy="Shorten it, put fewer examples before it, or take another model",
        )
    return whole, start


def _likelihoods(
    pipeline: GenerationPipeline,
    rows: Sequence[tuple[list[int], int]],
    batch_tokens: int,
    progress: Progress | None,
) -> list[float]:
    """Return the log-probability of each row's answer in nats."""
    model = pipeline.engine
    device = next(iter(model.parameters())).device
    lengths = [len(ids) for ids, _ in rows]
    pipeline.notice_length(*lengths)
    plan = plan_batches(lengths, width=1, batch_tokens=batch_tokens, batch_size=None)

    def run(numbers: list[int]) -> list[float]:
        part = [rows[number] for number in numbers]
        ids, positions = (each.to(device) for each in pad([row for row, _ in part], 0))
        states, targets = model(ids[:, :-1], positions[:, :-1]), ids[:, 1:]
        losses = losses_of_targets(model, states.flatten(0, 1), targets.flatten())
        places = torch.arange(1, ids.shape[1], device=device)
        starts = torch.tensor([start for _, start in part], device=device)
        counted = (places >= starts[:, None]) & (positions[:, 1:] >= 0)
        sums: list[float] = losses.view_as(targets).double().where(counted, 0.0).sum(1).tolist()
        return [-each for each in sums]

    found, done = [0.0] * len(rows), 0
    with pipeline.computing():
        for numbers, likelihoods in split_on_oom(plan, run):
            for number, value in zip(numbers, likelihoods, strict=True):
                found[number] = value
            done += len(numbers)
            if progress is not None:
                progress(done, len(rows))
    return found
