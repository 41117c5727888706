"""Extractive question answering: an encoder that predicts start and end of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heedful.data.batches import FramedBatch
from heedful.data.encoded_texts import FramedRow, FramedRows
from heedful.data.text_corpus import Question, question_reader
from heedful.errors import ConfigError, DataError
from heedful.models.encoder_spec import SpanHeadSpec
from heedful.pipelines.encoder_input import answer_tokens, parts_of, segments_of
from heedful.text.tokenizer import TextTokenizer
from heedful.train.objective import PenaltyCapture
from heedful.train.task import Setup, Task, plural
from heedful.train.tasks.encoder_task import encoder_tokenizers, framed_task
from heedful.train.tasks.pipeline_scores import answer_scores, pipeline_measure

START, END = 0, 1
"""Columns of the span head: scores of each token as the start and as the end of the answer."""


def prepare(setup: Setup) -> Task:
    """Read, check and encode questions.

    Raises:
        DataError: when the questions cannot be used.
        ConfigError: when label smoothing is set.
    """
    settings, data = setup.settings, setup.settings.data
    # Padding has a score of −∞, and smoothing would give it a share of the loss.
    if settings.objective.label_smoothing:
        raise ConfigError(
            "The start of an answer cannot be smoothed",
            where="objective.label_smoothing",
            remedy="Leave it at 0",
        )
    files = [list(question_reader(spec)) for spec in data.train]
    valid_files = [list(question_reader(spec)) for spec in data.valid]
    # Every target would be the first token, so there would be nothing to train.
    if not any(item.answers for file in files for item in file):
        raise DataError(
            "No training question has an answer",
            where=", ".join(str(spec.file) for spec in data.train),
            remedy="Give questions with answers too",
        )
    tokenizers = setup.tokenizers(lambda: encoder_tokenizers(setup, _texts(setup, files)))

    def encode(name: str, files: list[list[Question]]) -> FramedRows:
        encoder = _Encoder(tokenizers.source, data.max_length, data.stride)
        rows = [[row for item in file for row in encoder.rows(item)] for file in files]
        _note(setup, name, files, rows, encoder.counts)
        return FramedRows(rows, tokenizers.source.pad)

    # The metrics are those of whole questions, for which the pipeline combines windows; the loss is
    # that of windows.
    questions = [item for file in valid_files for item in file]
    metrics = settings.validation.metrics
    measure = None
    if valid_files:
        measure = pipeline_measure(questions, answer_scores, metrics, tokenizers, data.budget)
    return framed_task(
        setup,
        tokenizers,
        SpanHeadSpec(unanswerable=any(not item.answers for file in files for item in file)),
        place_scores,
        encode("training", files),
        encode("validation", valid_files) if valid_files else None,
        measure,
    )


def place_scores(model: Any, batch: FramedBatch, capture: PenaltyCapture) -> Tensor:
    """Return scores [T, L] of each token as start or end."""
    segments = segments_of(model.spec, batch.positions, batch.second)
    states = model(batch.ids, batch.positions, segments, capture=capture)
    # Padding gets −∞, so the softmax runs over real tokens only.
    padding = (batch.positions < 0)[..., None]
    logits: Tensor = model.span_logits(states).masked_fill(padding, -math.inf)
    # Two targets a row: all tokens are the classes, start and end are the two predictions.
    return logits[batch.rows, :, batch.places]


@dataclass
class _Counts:
    """Counts of examples to report.

    Args:
        inexact: number of answers that begin or end within a token.
        unread: number of answers without tokens, or longer than a window.
        others: number of answers after the first of a question, which are not trained on.
    """

    inexact: int = 0
    unread: int = 0
    others: int = 0


class _Encoder:
    """Makes rows from questions; a row is a window of the context with the answer's place in it.

    Args:
        tokenizer: tokenizer of the model.
        max_length: number of tokens of a window, with question and frame.
        stride: number of tokens between the starts of two windows.
    """

    def __init__(self, tokenizer: TextTokenizer, max_length: int, stride: int | None) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.stride = stride
        self.counts = _Counts()
        self._context: tuple[str, list[int], list[tuple[int, int]]] = ("", [], [])

    def rows(self, item: Question) -> list[FramedRow]:
        """Return a question's windows; without the whole answer the target is the first token."""
        ids, spans = self._encoded(item.context)
        answer = self._answer(item, spans)
        rows = []
        for part in parts_of(
            self.tokenizer,
            ids,
            longest=self.max_length,
            where=item.where,
            stride=self.stride,
            before=self.tokenizer.encode(item.question),
        ):
            # The first token stands for "no answer here", as in BERT for SQuAD 2.0 (Devlin 2019,
            # section 4.3).
            targets = (0, 0)
            window = part.window
            if answer is not None and window.start <= answer[0] and answer[1] < window.end:
                # The shift is the length of question and frame before the window, less
                # the window's start.
                targets = (answer[0] + part.shift, answer[1] + part.shift)
            inputs = part.input
            rows.append(FramedRow(inputs.ids, inputs.second, (START, END), targets, item.where))
        if answer is not None and not any(any(row.targets) for row in rows):
            self.counts.unread += 1
        return rows

    def _encoded(self, context: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode a context; the latest is kept, as questions of one context follow each other."""
        if self._context[0] != context:
            self._context = (context, *self.tokenizer.encode_spans(context))
        return self._context[1:]

    def _answer(self, item: Question, spans: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """Return the first and the last token of the answer; None without an answer."""
        if not item.answers:
            return None
        self.counts.others += len(item.answers) - 1
        # SQuAD gives several people's answers for scoring; training takes the first.
        text, start = item.answers[0]
        tokens = answer_tokens(spans, start, start + len(text))
        if tokens is None:
            self.counts.unread += 1
            return None
        covered = item.context[spans[tokens[0]][0] : spans[tokens[1]][1]]
        self.counts.inexact += covered.strip() != text.strip()
        return tokens


def _texts(setup: Setup, files: Sequence[Sequence[Question]]) -> list[str]:
    """Return questions, and each context once, to train a tokenizer on."""
    items = [item for file in files for item in file]
    # Reversed, so that the first question of a context gives its origin.
    places = {item.context: item.where for item in reversed(items)}
    contexts = dict.fromkeys(item.context for item in items)
    texts = [(context, places[context]) for context in contexts]
    texts += [(item.question, item.where) for item in items]
    return [setup.long_words.without(text, place) for text, place in texts]


def _note(
    setup: Setup,
    name: str,
    files: Sequence[Sequence[Question]],
    rows: Sequence[Sequence[FramedRow]],
    counts: _Counts,
) -> None:
    events = setup.events
    items = [item for file in files for item in file]
    none = sum(not item.answers for item in items)
    windows = sum(map(len, rows))
    events.note(
        f"{name}: {plural(len(items), 'question')}, {none:,} of them without an answer, in "
        f"{plural(windows, 'window')}"
    )
    if counts.inexact:
        events.note(
            f"{name}: {plural(counts.inexact, 'answer')} begin or end within a token, and cannot "
            "be given exactly"
        )
    if counts.others and name == "training":
        events.note(f"{name}: of several answers to a question the first is learned")
    if counts.unread:
        events.warn(
            f"{name}: {plural(counts.unread, 'answer')} fit no window, or are nothing to the "
            "tokenizer, and are not learned"
        )
