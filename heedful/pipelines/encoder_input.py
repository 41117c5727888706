"""Input of encoders: special tokens, windows over long texts, and padded batches.

A long text is read in overlapping windows, each with the special tokens of a whole text. An answer
is the best one of all windows. Training uses this module too, so inputs are the same as here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import DataError
from heedful.models.encoder import EncoderModel
from heedful.models.encoder_spec import EncoderSpec
from heedful.nn.positions import NOTHING_HERE
from heedful.pipelines.batching import plan_batches, split_on_oom
from heedful.pipelines.predictions import Answer, best_span, cut, first_tokens
from heedful.text.tokenizer import TextTokenizer, framed

MASK = "[MASK]"
"""Placeholder of a hidden token in texts, for models with any spelling of the mask token."""

BATCH_TOKENS = 4096
"""Default number of positions of a batch, padding counted."""


@dataclass(frozen=True)
class EncoderInput:
    """A text or a pair of texts with the special tokens around them.

    Args:
        ids: token ids, special tokens included.
        first: index of the first text's first token.
        second: index of the second text's first token; the number of ids if there is one text.
    """

    ids: tuple[int, ...]
    first: int
    second: int


def frame(
    tokenizer: TextTokenizer, ids: Sequence[int], other: Sequence[int] | None = None
) -> EncoderInput:
    """Put the special tokens around a text or a pair of texts.

    Args:
        tokenizer: tokenizer that has the special tokens.
        ids: token ids of the text.
        other: token ids of the second text; None for a single text.

    Raises:
        ModelError: when there are two texts and the model takes no pairs.
    """
    whole = framed(tokenizer, ids, other)
    # Models put different tokens between two texts, so the start of the second is counted from the
    # end.
    second = len(whole) if other is None else len(whole) - len(tokenizer.last) - len(other)
    return EncoderInput(tuple(whole), len(tokenizer.first), second)


def longest_input(spec: EncoderSpec) -> int | None:
    """Return the maximum number of input tokens, special ones included; None if unlimited."""
    # A table of learned positions may be shorter than `max_length`.
    bounds = (spec.max_length, spec.embedding.positions.max_length)
    return min((bound for bound in bounds if bound is not None), default=None)


def check_length(spec: EncoderSpec, item: EncoderInput, where: str) -> None:
    """Refuse an input that is too long for the model.

    Args:
        spec: spec of the model.
        item: input of the model.
        where: name of the input in errors.

    Raises:
        DataError: when the input is too long; the message has its name, its length and the limit.
    """
    longest = longest_input(spec)
    if longest is not None and len(item.ids) > longest:
        raise DataError(
            f"{len(item.ids)} tokens, special ones included, are more than the {longest} "
            "the model can read",
            where=where,
            remedy="Give shorter pieces of the text",
        )


def check_pairs(exact: int | None, count: int, where: str) -> None:
    """Refuse a text that is not the pairs of a chain, for a model that reads nothing else.

    Args:
        exact: number of pairs that the model reads; None for a model that reads any text.
        count: number of tokens of the text, special ones not counted.
        where: name of the text in errors.

    Raises:
        DataError: when there are more or fewer tokens than pairs.
    """
    if exact in (None, count):
        return
    side = math.isqrt(exact)
    others = math.isqrt(count)
    fits = f", or a model with model.evoformer.side = {others}" if others**2 == count else ""
    raise DataError(
        f"The model reads the {exact} pairs of a chain of {side} residues, and the text has "
        f"{count} tokens",
        where=where,
        remedy=f"Give a word for each pair, row by row{fits}; a word that the tokenizer cuts into "
        "several tokens counts as several",
    )


@dataclass(frozen=True)
class Encoded:
    """A batch of encoded inputs.

    Args:
        numbers: index of each row's input.
        ids: token ids [B, L] int64.
        states: encoder states [B, L, D]; padding is on the right.
        positions: positions [B, L] int64, −1 for padding.
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
    """Run the encoder over inputs, batched by similar length.

    Args:
        model: encoder.
        items: inputs in any order.
        padding: padding id; its value has no effect.
        batch_size: inputs in a batch, instead of `batch_tokens`.
        batch_tokens: positions in a batch, padding counted.

    Yields:
        Encoded batches, the longest inputs first.

    Raises:
        ConfigError: when a batch size is below 1.
    """
    device = model.embedding.weight.device
    plan = plan_batches(
        [len(item.ids) for item in items], width=1, batch_tokens=batch_tokens, batch_size=batch_size
    )

    def run(numbers: list[int]) -> Encoded:
        rows = [items[number] for number in numbers]
        size = max(len(row.ids) for row in rows)
        ids = torch.tensor([_padded(row.ids, size, padding) for row in rows], device=device)
        # Attention masks positions −1, so the ids of padding have no effect.
        places = [_padded(range(len(row.ids)), size, NOTHING_HERE) for row in rows]
        positions = torch.tensor(places, device=device)
        second = torch.tensor([row.second for row in rows], device=device)
        segments = segments_of(model.spec, positions, second)
        return Encoded(numbers, ids, model(ids, positions, segments), positions)

    for _, encoded in split_on_oom(plan, run):
        yield encoded


def segments_of(spec: EncoderSpec, positions: Tensor, second: Tensor) -> Tensor | None:
    """Return the segment ids [B, L] int64, 0 or 1; None for a model without segments.

    Args:
        spec: spec of the model.
        positions: positions [B, L] int64.
        second: index [B] int64 of the first token of each row's second text.
    """
    # RoBERTa's table has a single segment, to which all tokens belong.
    if (spec.embedding.num_segments or 1) < 2:
        return None
    return (positions >= second[:, None]).long()  # [B, L]


def _padded(row: Sequence[int], size: int, filling: int) -> list[int]:
    return [*row, *[filling] * (size - len(row))]


@dataclass(frozen=True)
class TokenWindow:
    """A window of consecutive tokens of a long text.

    Predictions of overlapping windows are taken from the window that shows most of a token's
    context: each token belongs to the own range of exactly one window.

    Args:
        start: index of the first token.
        end: index after the last token.
        own_start: index of the first token of the window's own range.
        own_end: index after the last token of that range.
    """

    start: int
    end: int
    own_start: int
    own_end: int


@dataclass(frozen=True)
class FramedWindow:
    """A window of a text with the special tokens around it.

    Args:
        input: input of the model.
        window: range of the text's tokens.
        shift: index of a token in the input minus its index in the text.
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
    """Make the inputs of a text: one, or several windows if it is too long.

    Args:
        tokenizer: tokenizer that has the special tokens.
        ids: token ids of the text.
        longest: maximum number of tokens of an input, special ones counted; None if unlimited.
        where: name of the text in errors.
        stride: see `overlapping`.
        before: ids of a text that stands before the window in every input, such as a question.

    Raises:
        DataError: when special tokens and `before` leave no room for the text.
        ModelError: when `before` is given and the model takes no pairs.
    """
    # The length of an input without text is what special tokens and the question take.
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
        part = ids[window.start : window.end]
        texts = [part] if before is None else [before, part]
        item = frame(tokenizer, *texts)
        # With a question in front, the window is the second text.
        begin = item.first if before is None else item.second
        results.append(FramedWindow(item, window, begin - window.start))
    return results


def word_tokens(
    tokenizer: TextTokenizer, words: Sequence[str]
) -> tuple[list[int], list[int | None]]:
    """Tokenize words, joined by single spaces, and find the first token of each.

    Returns:
        The token ids, and for each word the index of its first token; None if it has no token of
        its own.

    Raises:
        DataError: when a word is not valid Unicode (a lone surrogate).
    """
    ids, spans = tokenizer.encode_spans(" ".join(words))
    return ids, first_tokens(words, spans)


def answer_tokens(spans: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int] | None:
    """Return the indices of the first and last token of an answer.

    Args:
        spans: start and end of each token in characters; the end is exclusive.
        start: index of the answer's first character.
        end: index after its last character.

    Returns:
        Indices of the first and last token with a character of the answer; None without any.
    """
    # Half-open ranges overlap where each begins before the other's end.
    places = [i for i, (low, high) in enumerate(spans) if low < end and start < high]
    return (places[0], places[-1]) if places else None


@dataclass(frozen=True)
class WindowAnswer:
    """The best answer of one window of a context.

    Args:
        first: index of the answer's first token in the context.
        last: index of its last token.
        score: log-probability of the answer, normalised over all tokens of the input.
        none: log-probability that the window has no answer.
    """

    first: int
    last: int
    score: float
    none: float


def read_answer(logits: Tensor, part: FramedWindow, longest: int) -> WindowAnswer:
    """Return the best answer of a window.

    Args:
        logits: start and end logits of each token [L, 2] float32; L may include padding.
        part: the window.
        longest: maximum number of tokens of an answer.
    """
    # The softmax runs over all tokens of the input, the question and special ones included, but not
    # over padding.
    logs = logits[: len(part.input.ids)].log_softmax(0)
    low, high = (place + part.shift for place in (part.window.start, part.window.end))
    # Answers are chosen among the context's tokens only.
    starts, ends = logs[low:high].unbind(1)
    first, last = best_span(starts, ends, longest)
    return WindowAnswer(
        first + part.window.start,
        last + part.window.start,
        float(starts[first] + ends[last]),
        # The span of the first token alone means that there is no answer (Devlin 2018, SQuAD 2.0).
        float(logs[0].sum()),
    )


def choose(
    readings: Sequence[WindowAnswer],
    context: str,
    spans: Sequence[tuple[int, int]],
    *,
    unanswerable: bool,
) -> Answer:
    """Return the best answer of all windows of a context.

    Args:
        readings: best answer of each window, at least one.
        context: text of the context.
        spans: start and end of each token in characters; the end is exclusive.
        unanswerable: True if the result may be empty; it is when every window finds "no answer"
            more probable than the best answer.
    """
    best = max(readings, key=lambda reading: reading.score)
    # The answer may be in a single window, and "no answer" is right for all others.
    none = min(reading.none for reading in readings)
    if unanswerable and none > best.score:
        return Answer("", 0, 0, math.exp(none))
    start, end = spans[best.first][0], spans[best.last][1]
    return cut(context, start, end, math.exp(best.score))


def overlapping(count: int, room: int | None, stride: int | None = None) -> list[TokenWindow]:
    """Return the windows of a text, whose own ranges divide it.

    Args:
        count: number of tokens of the text.
        room: maximum number of tokens of a window; None for a single window.
        stride: tokens from the start of one window to that of the next; half of `room` if unset.
            The last window starts earlier where it would be shorter than the others.
    """
    if room is None or count <= room:
        return [TokenWindow(0, count, 0, count)]
    step = max(1, room // 2) if stride is None else min(stride, room)
    # The last window starts early enough to be as long as the others.
    starts = [*range(0, count - room, step), count - room]
    # In the middle of an overlap a token has equal context in both windows.
    cuts = [(start + room + after) // 2 for start, after in itertools.pairwise(starts)]
    bounds = [0, *cuts, count]
    return [TokenWindow(s, s + room, *bounds[i : i + 2]) for i, s in enumerate(starts)]
