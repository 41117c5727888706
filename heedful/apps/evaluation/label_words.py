"""Classification by a language model that was not trained for it: by the likelier label words.

The prompt is a text in a template, alone or after labelled texts in the same template (Brown 2020).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from heedful.apps.evaluation.choices import ChoiceQuestion, answer_likelihoods, choice_ids
from heedful.data.corpus_spec import CorpusSpec
from heedful.data.text_corpus import labelled_reader
from heedful.errors import ConfigError, DataError
from heedful.pipelines.predictions import Label, ranked
from heedful.pipelines.text_generation import GenerationPipeline

TEMPLATE = "{text} It is {label}."
"""Template of prompts if none is given."""


@dataclass(frozen=True)
class LabelPrompt:
    """A template, the labels, and labelled texts that may stand before the one to label.

    Args:
        labels: words to choose from, at least two.
        template: text with {text} and, after it, {label}.
        examples: labelled texts to draw from.
        shots: number of them before each text.
        seed: seed of the draw, which is another one for each text.
        calibrated: flag that a label's likelihood is divided by the one that it has after an empty
            text, as some words are likely after any (Zhao 2021).
    """

    labels: tuple[str, ...]
    template: str = TEMPLATE
    examples: tuple[tuple[str, str], ...] = ()
    shots: int = 0
    seed: int = 1
    calibrated: bool = False

    def __post_init__(self) -> None:
        parts = self.template.split("{text}")
        if len(parts) != 2 or parts[1].count("{label}") != 1 or "{label}" in parts[0]:
            raise ConfigError(
                f"The template {self.template!r} does not have {{text}} and then {{label}}, once "
                "each",
                where="--template",
                remedy=f"Write one such as {TEMPLATE!r}",
            )
        if len(set(self.labels)) < 2 or not all(label.strip() for label in self.labels):
            raise ConfigError(
                "There must be two labels at least to choose from",
                where="--labels",
                remedy="Give several words: --labels negative positive",
            )
        if not 0 <= self.shots <= len(self.examples):
            raise ConfigError(
                f"There are {len(self.examples):,} examples, and {self.shots:,} are to stand "
                "before a text",
                where="--shots",
                remedy="Give a longer file of --examples, or fewer shots",
            )

    def question(self, text: str, label: str | None = None) -> ChoiceQuestion:
        """Return a text as a question whose choices are the labels.

        Args:
            text: text to label.
            label: its label; the first one if it is not known.
        """
        # Only the two slots are replaced: a text may have braces of its own.
        before, after = self.template.split("{text}")
        middle, end = after.split("{label}")
        prompt = f"{before}{text}{middle}"
        # The answer begins with the space before it, as its first token has it.
        bare = prompt.rstrip(" ")
        space = prompt[len(bare) :]
        choices = tuple(f"{space}{word}{end}" for word in self.labels)
        return ChoiceQuestion(bare, choices, self.labels.index(label or self.labels[0]), "")


def read_examples(path: Path, labels: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Read labelled texts.

    Args:
        path: file as for training a classifier.
        labels: labels that a text may have.

    Raises:
        DataError: when the file is no such file, or a label is none of these.
    """
    reader = labelled_reader(CorpusSpec(file=str(path)))
    examples = []
    for line, text, label in reader.examples():
        if label not in labels:
            raise DataError(
                f"The label {label!r} is none of {', '.join(labels)}",
                where=f"{path}:{line}",
                remedy="Mend the label, or name it in --labels",
            )
        examples.append((text, label))
    return tuple(examples)


def classify_by_likelihood(
    pipeline: GenerationPipeline,
    texts: Sequence[str],
    prompt: LabelPrompt,
    *,
    first: int = 1,
    batch_tokens: int | None = None,
    warn: Callable[[str], None] = lambda message: None,
) -> list[list[Label]]:
    """Label texts by the likelihood of label words after a prompt.

    Args:
        pipeline: causal language model of texts.
        texts: texts to label; a blank one gets no labels.
        prompt: template, labels and examples.
        first: number of the first text in its file; with the seed it decides the examples drawn.
        batch_tokens: positions of a batch.
        warn: receiver of a warning where examples do not fit into the model's texts.

    Returns:
        For each text all labels, the likeliest first; probabilities are among the labels alone.

    Raises:
        DataError: when a text without examples is longer than the model reads.
    """
    numbers = [number for number, text in enumerate(texts) if text.strip()]
    fitted = [_fitted(pipeline, prompt, texts[number], first + number) for number in numbers]
    short = sum(count < prompt.shots for _, count in fitted)
    if short:
        warn(
            f"{short:,} of {len(fitted):,} texts have fewer than {prompt.shots:,} examples before "
            "them, as more do not fit into the model's texts"
        )
    scores = answer_likelihoods(pipeline, [question for question, _ in fitted], batch_tokens)
    if prompt.calibrated:
        empty = [
            _fitted(pipeline, prompt, "", first + number, count)[0]
            for number, (_, count) in zip(numbers, fitted, strict=True)
        ]
        without = answer_likelihoods(pipeline, empty, batch_tokens)
        pairs = zip(scores, without, strict=True)
        scores = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
    results: list[list[Label]] = [[] for _ in texts]
    if scores:
        rows = ranked(torch.tensor(scores, dtype=torch.float64), prompt.labels, None)
        for number, row in zip(numbers, rows, strict=True):
            results[number] = row
    return results


def _fitted(
    pipeline: GenerationPipeline,
    prompt: LabelPrompt,
    text: str,
    number: int,
    shots: int | None = None,
) -> tuple[ChoiceQuestion, int]:
    """Return the question of a text after as many of its examples as fit, and their number."""
    # A generator for each text: its examples do not depend on the texts beside it.
    drawn = random.Random(f"{prompt.seed} {number}").sample(prompt.examples, prompt.shots)
    solved = [prompt.question(*each) for each in drawn]
    shown = [each.text(each.answer) for each in solved]
    if shots is not None:  # those of the text that this one is compared with
        shown = shown[len(shown) - shots :]
    asked = dataclasses.replace(prompt.question(text), where=f"line {number}")
    longest = pipeline.spec.longest_text
    while True:
        question = dataclasses.replace(asked, prompt="\n".join([*shown, asked.prompt]))
        sizes = (choice_ids(pipeline, question, n) for n in range(len(prompt.labels)))
        if not shown or longest is None or max(len(ids) for ids, _ in sizes) <= longest:
            return question, len(shown)
        shown.pop(0)  # the examples nearest to the text stay
