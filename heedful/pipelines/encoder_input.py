"""Texts as an encoder reads them: framed, of like length together, padded.

Long texts are read in windows that overlap, each in its frame, and answers are chosen among those
of all windows. Training comes here too, so a model reads what it was trained on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import ConfigError, DataError
from heedful.models.encoder import EncoderModel
from heedful.models.model_spec import EncoderSpec
from heedful.nn.positions import NOTHING_HERE
from heedful.pipelines.batching import plan_batches, split_on_oom
from heedful.pipelines.predictions import Answer, best_span, cut, first_pieces
from heedful.text.tokenizer import TextTokenizer, framed

BATCH_TOKENS = 4096
"""Positions that are encoded together, padding counted, if nothing else is asked for."""


@dataclass(frozen=True)
class EncoderInput:
    """One text, or two that belong together, with the special tokens around them.

    Args:
        ids: all of them.
        first: index of the first text's first token.
        second: index of the second text's first token; the number of ids where there is none.
    """

    ids: tuple[int, ...]
    first: int
    second: int


def frame(
    tokenizer: TextTokenizer, ids: Sequence[int], other: Sequence[int] | None = None
) -> EncoderInput:
    """Put the special tokens around a text, or around two.

    Args:
        tokenizer: which knows them.
        ids: of the text.
        other: of the second text.

    Raises:
        ModelError: when there are two texts and the model takes no pairs.
    """
    whole = framed(tokenizer, ids, other)
    second = len(whole) if other is None else len(whole) - len(tokenizer.last) - len(other)
    return EncoderInput(tuple(whole), len(tokenizer.first), second)


def longest_input(spec: EncoderSpec) -> int | None:
    """Most tokens that a model can read at once, special ones included; None for any number."""
    bounds = (spec.max_length, spec.embedding.positions.max_length)
    return min((bound for bound in bounds if bound is not None), default=None)


def check_length(spec: EncoderSpec, item: EncoderInput, where: str) -> None:
    """Refuse what the model cannot read whole.

    Args:
        spec: of the model.
        item: what it is to read.
        where: what to call it.

    Raises:
        DataError: naming it, its length and the longest that can be read.
    """
    longest = longest_input(spec)
    if longest is not None and len(item.ids) > longest:
        raise DataError(
            f"{len(item.ids)} tokens, special ones included, are more than the {longest} "
            "the model can read",
            where=where,
            remedy="Give shorter pieces of the text",
        )


@dataclass(frozen=True)
class Encoded:
    """A batch that went through the encoder.

    Args:
        numbers: which of the inputs its rows are.
        ids: [B, L] int64.
        states: [B, L, D]; the tokens of a row stand at its beginning.
        positions: [B, L] int64, −1 for padding.
    """

    numbers: list[int]
    ids: Tensor
    states: Tensor
    positions: Tensor


def encode(
    model: EncoderModel,
    items: Sequence[EncoderInput],
    *,
    padding: int,
    batch_size: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Iterator[Encoded]:
    """Run the encoder over inputs, those of like length together.

    Args:
        model: the encoder.
        items: in any order.
        padding: id that fills rows up; it is never looked at.
        batch_size: inputs in a batch, instead of `batch_tokens`.
        batch_tokens: positions in a batch, padding counted.

    Raises:
        ConfigError: when a batch is to hold nothing.
    """
    for name, asked in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if asked is not None and asked < 1:
            raise ConfigError("A batch holds at least 1", where=f"{name} = {asked}")
    device = model.embedding.weight.device
    plan = plan_batches(
        [len(item.ids) for item in items], width=1, batch_tokens=batch_tokens, batch_size=batch_size
    )

    def run(numbers: list[int]) -> Encoded:
        rows = [items[number] for number in numbers]
        size = max(len(row.ids) for row in rows)
        ids = torch.tensor([_filled(row.ids, size, padding) for row in rows], device=device)
        places = [_filled(range(len(row.ids)), size, NOTHING_HERE) for row in rows]
        positions = torch.tensor(places, device=device)
        second = torch.tensor([row.second for row in rows], device=device)
        segments = segments_of(model.spec, positions, second)
        return Encoded(numbers, ids, model(ids, positions, segments), positions)

    for _, encoded in split_on_oom(plan, run):
        yield encoded


def segments_of(spec: EncoderSpec, positions: Tensor, second: Tensor) -> Tensor | None:
    """The number of each token's text, 0 or 1; None for a model without segments.

    Args:
        spec: of the model.
        positions: [B, L] int64.
        second: [B] int64, where each row's second text begins.
    """
    if (spec.embedding.num_segments or 1) < 2:
        return None
    return (positions >= second[:, None]).long()


def _filled(row: Sequence[int], size: int, filling: int) -> list[int]:
    return [*row, *[filling] * (size - len(row))]


@dataclass(frozen=True)
class TokenWindow:
    """Consecutive pieces of a long text that are read together.

    Args:
        start: number of the first.
        end: number of the one after the last.
        own_start: first of the pieces that have no more context in another window.
        own_end: the one after the last of these.
    """

    start: int
    end: int
    own_start: int
    own_end: int


@dataclass(frozen=True)
class FramedWindow:
    """A window of a text in its frame.

    Args:
        input: what the model reads.
        window: which pieces of the text these are.
        shift: a piece's index in the input minus its number in the text.
    """

    input: EncoderInput
    window: TokenWindow
    shift: int


def parts_of(
    tokenizer: TextTokenizer,
    ids: Sequence[int],
    *,
    longest: int | None,
    where: str,
    stride: int | None = None,
    before: Sequence[int] | None = None,
) -> list[FramedWindow]:
    """A text as one input or several.

    Args:
        tokenizer: gives the frame.
        ids: of the text.
        longest: most tokens of an input, its frame counted; None for any number.
        where: what to call the text in errors.
        stride: see `overlapping`.
        before: ids of a text that stands before the window in every input, such as a question.

    Raises:
        DataError: when the frame and the text before leave no room.
        ModelError: when there is a text before and the model takes no pairs.
    """
    empty = frame(tokenizer, *([()] if before is None else [before, ()])).ids
    if longest is not None and len(empty) >= longest:
        raise DataError(
            f"{len(empty)} tokens, special ones included, stand before and after a text and leave "
            f"no room for it: {longest} is the most that is read at once",
            where=where,
            remedy="Give shorter questions" if before else "Allow longer inputs",
        )
    results = []
    for window in overlapping(len(ids), None if longest is None else longest - len(empty), stride):
        piece_ids = ids[window.start : window.end]
        texts = [piece_ids] if before is None else [before, piece_ids]
        item = frame(tokenizer, *texts)
        begin = item.first if before is None else item.second
        results.append(FramedWindow(item, window, begin - window.start))
    return results


def word_pieces(
    tokenizer: TextTokenizer, words: Sequence[str]
) -> tuple[list[int], list[int | None]]:
    """The ids of words with a space between each two, and the first piece of each word.

    Returns:
        The ids, and for each word the number of its first piece; None where it has none of its own.

    Raises:
        DataError: when a word is not valid Unicode (a lone surrogate).
    """
    ids, spans = tokenizer.encode_spans(" ".join(words))
    return ids, first_pieces(words, spans)


def answer_pieces(spans: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int] | None:
    """The first and last piece that hold some of the characters from `start` up to `end`.

    Args:
        spans: of the pieces: index of the first character and of the one after the last.
        start: index of the first character.
        end: index of the one after the last.

    Returns:
        None where no piece holds any.
    """
    places = [i for i, (low, high) in enumerate(spans) if low < end and start < high]
    return (places[0], places[-1]) if places else None


@dataclass(frozen=True)
class WindowAnswer:
    """The best answer of one window of a context.

    Args:
        first: number of the answer's first piece in the context.
        last: number of its last.
        score: natural logarithm of its probability among all that the model read.
        none: that of there being no answer in the window.
    """

    first: int
    last: int
    score: float
    none: float


def read_answer(logits: Tensor, part: FramedWindow, longest: int) -> WindowAnswer:
    """The best answer of a window.

    Args:
        logits: [L, 2] float32, of starting and ending at each token; L may include padding.
        part: the window.
        longest: most tokens of an answer.
    """
    logs = logits[: len(part.input.ids)].log_softmax(0)
    low, high = (place + part.shift for place in (part.window.start, part.window.end))
    starts, ends = logs[low:high].unbind(1)
    first, last = best_span(starts, ends, longest)
    return WindowAnswer(
        first + part.window.start,
        last + part.window.start,
        float(starts[first] + ends[last]),
        float(logs[0].sum()),
    )


def choose(
    readings: Sequence[WindowAnswer],
    context: str,
    spans: Sequence[tuple[int, int]],
    *,
    unanswerable: bool,
) -> Answer:
    """The best answer of all windows of a context.

    Args:
        readings: of the windows, at least one.
        context: what was read.
        spans: of its pieces: index of the first character and of the one after the last.
        unanswerable: whether the answer may be that there is none, which no window may contradict.
    """
    best = max(readings, key=lambda reading: reading.score)
    none = min(reading.none for reading in readings)
    if unanswerable and none > best.score:
        return Answer("", 0, 0, math.exp(none))
    start, end = spans[best.first][0], spans[best.last][1]
    return cut(context, start, end, math.exp(best.score))


def overlapping(count: int, room: int | None, stride: int | None = None) -> list[TokenWindow]:
    """The windows of a text. Each piece is one window's own.

    Args:
        count: pieces of the text.
        room: most pieces of a window; None holds every text whole.
        stride: pieces from the beginning of one window to that of the next; half of the room if
            unset. The last window begins earlier where it would be shorter than the others.
    """
    if room is None or count <= room:
        return [TokenWindow(0, count, 0, count)]
    step = max(1, room // 2) if stride is None else min(stride, room)
    starts = [*range(0, count - room, step), count - room]
    cuts = [(start + room + after) // 2 for start, after in itertools.pairwise(starts)]
    bounds = [0, *cuts, count]
    return [TokenWindow(s, s + room, *bounds[i : i + 2]) for i, s in enumerate(starts)]
