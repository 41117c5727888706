"""Answering as a task: questions about texts in, an encoder that points at the answers out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from heedful.data.framed import FramedBatch, FramedRow, FramedRows
from heedful.data.questions import Question, question_reader
from heedful.decode.encoder_input import segments_of
from heedful.decode.long_texts import answer_pieces, parts_of
from heedful.errors import ConfigError, DataError
from heedful.models.family import SpanHeadSpec
from heedful.train.beginning import tokenizers_for
from heedful.train.framed import FramedData, FramedTask, Judge, plural
from heedful.train.judging import answer_scores
from heedful.train.masked import encoder_tokenizers
from heedful.train.objective import with_penalty
from heedful.train.task_settings import check_room, check_task_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heedful.decode.encoding import EncoderPipeline
    from heedful.events import Events
    from heedful.text.pair import TokenizerPair
    from heedful.text.protocol import TextTokenizer
    from heedful.train.settings import RunSettings

START, END = 0, 1
"""The two things that are predicted of a window: outputs of the head."""


def prepare_reader(
    settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> FramedTask:
    """Read, check and encode questions; arguments as `heedful.train.task.prepare_task`.

    Raises:
        DataError: when the questions cannot be used.
        ConfigError: when a batch has no room for a window, or a setting is for another task.
    """
    check_task_settings(settings)
    check_room(settings)
    if settings.objective.label_smoothing:
        raise ConfigError(
            "Where an answer starts cannot be smoothed",
            where="objective.label_smoothing",
            remedy="Leave it at 0",
        )
    data = settings.data
    train = [list(question_reader(spec)) for spec in data.train]
    valid = [list(question_reader(spec)) for spec in data.valid]
    if not any(item.answers for file in train for item in file):
        raise DataError(
            "No training question has an answer",
            where=", ".join(str(spec.file) for spec in data.train),
            remedy="Give questions with answers too",
        )
    tokenizers = tokenizers_for(
        settings, tokenizers, lambda: encoder_tokenizers(settings, _texts(train)), events
    )
    encoder = _Encoder(tokenizers.source, settings)

    def encoded(name: str, files: list[list[Question]]) -> FramedRows:
        rows = [[row for item in file for row in encoder.rows(item)] for file in files]
        _tell(name, files, rows, encoder.counts, events)
        encoder.counts = _Counts()
        return FramedRows(rows, tokenizers.source.pad)

    everything = [item for file in valid for item in file]
    metrics = settings.validation.metrics

    def scores(pipeline: EncoderPipeline, count: int) -> dict[str, float]:
        return answer_scores(pipeline, everything[:count], metrics, batch_tokens=data.budget)

    rows = FramedData(
        encoded("training", train),
        encoded("validation", valid) if valid else None,
        Judge(len(everything), scores) if valid else None,
    )
    unanswerable = any(not item.answers for file in train for item in file)
    head = SpanHeadSpec(unanswerable=unanswerable)
    return FramedTask(settings, tokenizers, head, place_scores, rows, events)


def place_scores(model: Any, batch: FramedBatch) -> tuple[Tensor, Tensor | float]:
    """Scores [T, L] of each token being the start or the end, and what layers add to the loss."""
    segments = segments_of(model.spec, batch.positions, batch.second)
    states, added = with_penalty(model, batch.ids, batch.positions, segments)
    logits = model.span_logits(states).masked_fill((batch.positions < 0)[..., None], -math.inf)
    return logits[batch.rows, :, batch.places], added


@dataclass
class _Counts:
    """What is to be told of examples.

    Args:
        inexact: answers that begin or end within a piece.
        unread: answers in which the tokenizer finds nothing, or that are longer than a window.
        others: answers beside the first of a question, which are not learned.
    """

    inexact: int = 0
    unread: int = 0
    others: int = 0


class _Encoder:
    """Makes rows of questions: a window of the context each, and where in it the answer stands.

    Args:
        tokenizer: of the model.
        settings: of the run: length of windows.
    """

    def __init__(self, tokenizer: TextTokenizer, settings: RunSettings) -> None:
        self.tokenizer = tokenizer
        self.data = settings.data
        self.counts = _Counts()
        self._context: tuple[str, list[int], list[tuple[int, int]]] = ("", [], [])

    def rows(self, item: Question) -> list[FramedRow]:
        """The windows; one that does not hold the whole answer points at its first token."""
        ids, spans = self._encoded(item.context)
        answer = self._answer(item, spans)
        found = []
        for part in parts_of(
            self.tokenizer,
            ids,
            longest=self.data.max_length,
            where=item.where,
            stride=self.data.stride,
            before=self.tokenizer.encode(item.question),
        ):
            targets = (0, 0)
            window = part.window
            if answer is not None and window.start <= answer[0] and answer[1] < window.end:
                targets = (answer[0] + part.shift, answer[1] + part.shift)
            inputs = part.input
            found.append(FramedRow(inputs.ids, inputs.second, (START, END), targets, item.where))
        if answer is not None and not any(any(row.targets) for row in found):
            self.counts.unread += 1
        return found

    def _encoded(self, context: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Questions of one context mostly follow each other."""
        if self._context[0] != context:
            self._context = (context, *self.tokenizer.encode_spans(context))
        return self._context[1:]

    def _answer(self, item: Question, spans: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """The first and the last piece of the answer; None where there is none."""
        if not item.answers:
            return None
        self.counts.others += len(item.answers) - 1
        text, start = item.answers[0]
        pieces = answer_pieces(spans, start, start + len(text))
        if pieces is None:
            self.counts.unread += 1
            return None
        held = item.context[spans[pieces[0]][0] : spans[pieces[1]][1]]
        self.counts.inexact += held.strip() != text.strip()
        return pieces


def _texts(files: Sequence[Sequence[Question]]) -> list[str]:
    """Questions, and contexts once each, to train a tokenizer on."""
    items = [item for file in files for item in file]
    return [*dict.fromkeys(item.context for item in items), *(item.question for item in items)]


def _tell(
    name: str,
    files: Sequence[Sequence[Question]],
    rows: Sequence[Sequence[FramedRow]],
    counts: _Counts,
    events: Events,
) -> None:
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
