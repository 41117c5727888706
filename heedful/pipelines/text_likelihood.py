"""Likelihood of texts under a language model: perplexity, bits per byte, loss by position.

Texts are cut into windows as in training: each begins with the begin token, in place of its first
token, and positions count from 0. With a stride below the length windows overlap; a token is scored
in the first window that holds it, so a larger overlap gives tokens more to go by. A model with a
memory (Transformer-XL) reads texts as wholes, segment after segment, and needs no windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from heedful.data.batches import pad
from heedful.errors import ConfigError, DataError
from heedful.evaluate.bootstrap import Interval, ratio_interval
from heedful.evaluate.corpus_metrics import bits_per_unit, perplexity
from heedful.nn.positions import NOTHING_HERE
from heedful.pipelines.batching import plan_batches, split_on_oom
from heedful.pipelines.encoder_input import EncoderInput, encode, frame, longest_input
from heedful.pipelines.text_encoding import EncoderPipeline
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.text.tokenizer import TextTokenizer

BATCH_TOKENS = 8192
"""Positions of a batch."""

DEFAULT_LENGTH = 1024
"""Tokens of a window for a model that was made for texts of any length."""

_LOGIT_NUMBERS = 1 << 24
"""Scores that are in memory at once: 64 MB."""

Notice = Callable[[int, int], None]


class Window(NamedTuple):
    """Consecutive tokens of a text that the model reads together.

    Args:
        text: number of the text.
        start: number of its first input; input i predicts token i + 1 of the framed text.
        scored: number of the first input whose prediction counts.
        stop: number of the input after its last.
    """

    text: int
    start: int
    scored: int
    stop: int


def text_windows(predictions: Sequence[int], length: int, stride: int) -> list[Window]:
    """Cut texts into windows; every prediction counts in exactly one of them.

    Args:
        predictions: of each text.
        length: most tokens of a window.
        stride: tokens from the start of one window to that of the next, at most `length`.
    """
    assert 1 <= stride <= length, (stride, length)
    windows = []
    for text, count in enumerate(predictions):
        stop = 0
        start = 0
        while stop < count:
            scored, stop = stop, min(start + length, count)
            windows.append(Window(text, start, scored, stop))
            start += stride
    return windows


@dataclass(frozen=True)
class TextLikelihood:
    """The probability of texts under a model.

    Attributes:
        negative_log_likelihood: summed over all predictions, in nats.
        tokens: predictions, the end token of each text among them (of a masked model: without).
        bytes: of the texts, in UTF-8.
        characters: of the texts.
        texts: their number.
        unknown: tokens that stand for characters the tokenizer does not know.
        lossless: whether the tokens say exactly what the texts say.
        length: most tokens of a window.
        stride: tokens between the starts of windows.
        memory: tokens before each that the model sees, where texts were read as wholes; else None.
        pseudo: True for a masked model: each token is predicted from those on both of its sides.
    """

    negative_log_likelihood: float
    tokens: int
    bytes: int
    characters: int
    texts: int
    unknown: int
    lossless: bool
    length: int
    stride: int
    memory: int | None = None
    pseudo: bool = False

    @property
    def perplexity(self) -> float:
        """exp of the loss per token; models compare only if they cut texts into the same tokens."""
        return perplexity(self.negative_log_likelihood, self.tokens)

    @property
    def bits_per_token(self) -> float:
        """The loss per token with a base of 2."""
        return bits_per_unit(self.negative_log_likelihood, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of UTF-8; compares models of any tokenizer and language."""
        return bits_per_unit(self.negative_log_likelihood, self.bytes)

    @property
    def bits_per_character(self) -> float:
        """Bits for each character; compares models of any tokenizer."""
        return bits_per_unit(self.negative_log_likelihood, self.characters)

    @property
    def scores(self) -> dict[str, float]:
        """The scores by name; those of a masked model are no probabilities of texts, and say so."""
        prefix = "pseudo_" if self.pseudo else ""
        scores = {
            "loss": self.negative_log_likelihood / self.tokens,
            "perplexity": self.perplexity,
            "bits_per_token": self.bits_per_token,
            "bits_per_byte": self.bits_per_byte,
            "bits_per_character": self.bits_per_character,
        }
        return {prefix + name: score for name, score in scores.items()}

    @property
    def counts(self) -> dict[str, int]:
        """The counts by name."""
        names = ("texts", "tokens", "bytes", "characters", "unknown")
        return {name: getattr(self, name) for name in names}

    def plain(self) -> dict[str, Any]:
        """Scores, counts and the treatment of context, as JSON data."""
        return {
            "scores": self.scores,
            **self.counts,
            "negative_log_likelihood": self.negative_log_likelihood,
            "lossless": self.lossless,
            "length": self.length,
            "stride": self.stride,
            "memory": self.memory,
        }


def text_likelihood(
    pipeline: GenerationPipeline,
    texts: Sequence[str],
    *,
    length: int | None = None,
    stride: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Notice | None = None,
) -> TextLikelihood:
    """Measure how probable texts are under a causal language model.

    The end token of a text is predicted and counted, as in training; it has no bytes. With
    `stride = length` the loss is that of validation in training. A model with a memory reads each
    text as a whole, in segments of `length`.

    Args:
        pipeline: the model, from `heedful.load_generator`.
        texts: at least one; no text sees another.
        length: most tokens the model reads at once; those it was made for if unset. Of no concern
            to the result of a model with a memory.
        stride: tokens from the start of one window to that of the next; half the length if unset.
        batch_tokens: positions of a batch; of no concern to the result.
        progress: called with the number of windows or segments done and of all.

    Raises:
        ConfigError: when the stride exceeds the length, the model has fewer learned positions, or a
            stride is given for one that reads texts as wholes.
        DataError: when there is no text.
    """
    length = _length(pipeline, length)
    memory = pipeline.model.spec.memory
    if memory is not None:
        if stride is not None:
            raise ConfigError(
                f"With a memory of {memory} tokens texts are read as wholes, not in windows",
                where="stride",
                remedy="Leave it out",
            )
        framed = _Framed.of(pipeline.tokenizer, texts)
        total = sum(_losses_of_wholes(pipeline, framed, length, batch_tokens, progress))
        predictions = sum(framed.predictions)
        return framed.likelihood(total, predictions, length, length, memory=memory)
    stride = max(1, length // 2) if stride is None else stride
    if not 1 <= stride <= length:
        raise ConfigError(
            f"A stride of {stride} would skip tokens between windows of {length}",
            where="stride",
            remedy=f"Give a number from 1 to {length}",
        )
    framed = _Framed.of(pipeline.tokenizer, texts)
    windows = text_windows(framed.predictions, length, stride)
    total = 0.0
    for window, losses in _losses(pipeline, framed, windows, batch_tokens, progress):
        total += float(losses[window.scored - window.start :].sum())
    return framed.likelihood(total, sum(framed.predictions), length, stride)


@dataclass(frozen=True)
class PositionLoss:
    """The loss of the predictions at some positions of a window.

    Attributes:
        first: the first of them, from 1: the number of tokens that the model goes by there.
        last: the last.
        tokens: predictions.
        loss: nats per token, with the range over resamples of windows; None where nothing is
            predicted, or the model has no such positions.
        problem: why there is no loss.
    """

    first: int
    last: int
    tokens: int
    loss: Interval | None
    problem: str | None = None


def position_bins(length: int, trained: int | None = None) -> list[int]:
    """Return the last position of each bin: doubling from 16 on, and the trained length."""
    ends = {16 << power for power in range(length.bit_length()) if 16 << power < length}
    return sorted(ends | {length} | ({trained} if trained and trained < length else set()))


def loss_by_position(
    pipeline: GenerationPipeline,
    texts: Sequence[str],
    *,
    length: int | None = None,
    samples: int = 1000,
    batch_tokens: int = BATCH_TOKENS,
    progress: Notice | None = None,
) -> list[PositionLoss]:
    """Measure how the loss depends on the position in the text, at and past the trained length.

    Texts are cut into windows of `length` tokens without overlap. Positions past a learned table
    have a problem in the place of a loss.

    Args:
        pipeline: the model, from `heedful.load_generator`.
        texts: at least one, some of them longer than `length`.
        length: tokens of a window; four times those the model was made for if unset.
        samples: resamples of windows for the intervals.
        batch_tokens: positions of a batch.
        progress: called with the number of windows done and of all.

    Raises:
        ConfigError: when the length is not positive.
        DataError: when there is no text, or none longer than the trained length.
    """
    spec = pipeline.model.spec
    trained = spec.max_length
    if length is None:
        length = 4 * trained if trained else DEFAULT_LENGTH
    if length < 1:
        raise ConfigError("A window holds at least one token", where=f"length = {length}")
    table = spec.longest_text
    readable = length if table is None else min(length, table)
    framed = _Framed.of(pipeline.tokenizer, texts)
    windows = text_windows(framed.predictions, readable, readable)
    ends = position_bins(length, trained)
    edges = np.array([0, *(min(end, readable) for end in ends)])
    sums = np.zeros((len(windows), len(ends)))
    counts = np.zeros((len(windows), len(ends)), np.int64)
    number = {window: row for row, window in enumerate(windows)}
    for window, losses in _losses(pipeline, framed, windows, batch_tokens, progress):
        row = number[window]
        for column, (low, high) in enumerate(pairwise(edges)):
            part = losses[low:high]
            sums[row, column], counts[row, column] = part.sum(), len(part)
    results = []
    for column, (first, last) in enumerate(
        zip([1, *(end + 1 for end in ends)], ends, strict=False)
    ):
        tokens = int(counts[:, column].sum())
        if tokens:
            loss = ratio_interval(sums[:, column], counts[:, column], samples=samples)
            results.append(PositionLoss(first, min(last, readable), tokens, loss))
        problem = "no text is so long" if last <= readable else f"{readable} learned positions"
        if not tokens or last > readable:
            results.append(PositionLoss(max(first, readable + 1), last, 0, None, problem))
    return results


def pseudo_likelihood(
    pipeline: EncoderPipeline,
    texts: Sequence[str],
    *,
    length: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Notice | None = None,
) -> TextLikelihood:
    """Measure how well a masked model predicts each token of texts from all others (Salazar 2020).

    Each token is hidden once, so a text of n tokens is read n times.

    Args:
        pipeline: the model, from `heedful.load_encoder`.
        texts: at least one; those that are longer than `length` are cut.
        length: most tokens the model reads at once, special ones among them.
        batch_tokens: positions of a batch.
        progress: called with the number of tokens done and of all.

    Raises:
        ModelError: when the model fills no masks.
        ConfigError: when a window has no room for a token.
        DataError: when there is no text.
    """
    pipeline.require("masked_lm")
    tokenizer, mask = pipeline.tokenizer, pipeline.tokenizer.mask
    if mask is None:
        raise ConfigError("The model's tokenizer has no mask token", remedy="Give a masked model")
    length = longest_input(pipeline.model.spec) or DEFAULT_LENGTH if length is None else length
    room = length - len(tokenizer.first) - len(tokenizer.last)
    if room < 1:
        raise ConfigError(f"There is no room for a token in {length}", where="length")
    framed = _Framed.of(tokenizer, texts)
    tokens = sum(framed.predictions) - len(texts)  # the end token is not predicted
    total, done = 0.0, 0
    for ids in framed.ids:
        for start in range(1, len(ids) - 1, room):
            part = ids[start : min(start + room, len(ids) - 1)]
            total += _hidden_loss(pipeline, part, mask, batch_tokens)
            done += len(part)
            if progress is not None:
                progress(done, tokens)
    return framed.likelihood(total, tokens, length, room, pseudo=True)


def _hidden_loss(
    pipeline: EncoderPipeline, ids: Sequence[int], mask: int, batch_tokens: int
) -> float:
    """The loss of each of these tokens when it alone is hidden, summed."""
    whole = frame(pipeline.tokenizer, ids)
    items = [
        EncoderInput((*whole.ids[:place], mask, *whole.ids[place + 1 :]), whole.first, whole.second)
        for place in range(whole.first, whole.first + len(ids))
    ]
    right = torch.tensor(ids, device=pipeline.model.embedding.weight.device)
    total = 0.0
    with pipeline.computing():
        for batch in encode(
            pipeline.model, items, padding=pipeline.tokenizer.pad, batch_tokens=batch_tokens
        ):
            rows = torch.tensor(batch.numbers, device=right.device)
            states = batch.states[torch.arange(len(rows)), rows + whole.first]
            logits = pipeline.model.masked_lm_logits(states).float()
            total += float(functional.cross_entropy(logits, right[rows], reduction="sum"))
    return total


@dataclass(frozen=True)
class _Framed:
    """Texts as ids between the begin and the end token, and what they are made of.

    Args:
        ids: of each text.
        texts: the same as text.
        unknown: number of unknown tokens.
        lossless: whether the ids say exactly what the texts say.
    """

    ids: list[list[int]]
    texts: Sequence[str]
    unknown: int
    lossless: bool

    @classmethod
    def of(cls, tokenizer: TextTokenizer, texts: Sequence[str]) -> _Framed:
        if not any(texts):
            raise DataError("There is no text to measure", remedy="Give a file with text in it")
        encoded = tokenizer.encode_batch(texts)
        unknown = sum(ids.count(tokenizer.unk) for ids in encoded)
        exact = all(tokenizer.decode(ids) == t for ids, t in zip(encoded, texts, strict=True))
        framed = [[tokenizer.bos, *ids, tokenizer.eos] for ids in encoded]
        return cls(framed, texts, unknown, exact)

    @property
    def predictions(self) -> list[int]:
        """The number of predictions of each text."""
        return [len(ids) - 1 for ids in self.ids]

    def likelihood(
        self,
        total: float,
        tokens: int,
        length: int,
        stride: int,
        *,
        memory: int | None = None,
        pseudo: bool = False,
    ) -> TextLikelihood:
        return TextLikelihood(
            negative_log_likelihood=total,
            tokens=tokens,
            bytes=sum(len(text.encode()) for text in self.texts),
            characters=sum(map(len, self.texts)),
            texts=len(self.texts),
            unknown=self.unknown,
            lossless=self.lossless,
            length=length,
            stride=stride,
            memory=memory,
            pseudo=pseudo,
        )


def _length(pipeline: GenerationPipeline, length: int | None) -> int:
    """The tokens of a window, as many as the model can read."""
    spec = pipeline.model.spec
    table = spec.longest_text
    if length is None:
        return spec.max_length or table or DEFAULT_LENGTH
    if length < 1:
        raise ConfigError("A window holds at least one token", where=f"length = {length}")
    if table is not None and length > table:
        raise ConfigError(
            f"The model has learned {table} positions, and a window of {length} tokens needs more",
            where="length",
            remedy=f"Give at most {table}, or a model with rotary or sinusoidal positions",
        )
    return length


def _losses(
    pipeline: GenerationPipeline,
    framed: _Framed,
    windows: Sequence[Window],
    batch_tokens: int,
    progress: Notice | None,
) -> Iterator[tuple[Window, npt.NDArray[np.float64]]]:
    """Yield each window with the loss in nats of each of its predictions, in any order."""
    model, tokenizer = pipeline.model, pipeline.tokenizer
    device = next(iter(model.parameters())).device
    plan = plan_batches(
        [window.stop - window.start for window in windows],
        width=1,
        batch_tokens=batch_tokens,
        batch_size=None,
    )

    def run(numbers: list[int]) -> list[npt.NDArray[np.float64]]:
        rows = [windows[number] for number in numbers]
        size = max(row.stop - row.start for row in rows)
        ids, targets, positions = (
            torch.full((len(rows), size), filling) for filling in (0, 0, NOTHING_HERE)
        )
        for place, row in enumerate(rows):
            text, count = framed.ids[row.text], row.stop - row.start
            ids[place, :count] = torch.tensor(text[row.start : row.stop])
            ids[place, 0] = tokenizer.bos
            targets[place, :count] = torch.tensor(text[row.start + 1 : row.stop + 1])
            positions[place, :count] = torch.arange(count)
        ids, targets, positions = (each.to(device) for each in (ids, targets, positions))
        states = model(ids, positions)
        losses = _cross_entropy(model, states.flatten(0, 1), targets.flatten())
        table = losses.view(len(rows), size).double().cpu().numpy()
        return [line[: row.stop - row.start] for line, row in zip(table, rows, strict=True)]

    done = 0
    with pipeline.computing():
        for numbers, losses in split_on_oom(plan, run):
            yield from zip((windows[number] for number in numbers), losses, strict=True)
            done += len(numbers)
            if progress is not None:
                progress(done, len(windows))


def _losses_of_wholes(
    pipeline: GenerationPipeline,
    framed: _Framed,
    length: int,
    batch_tokens: int,
    progress: Notice | None,
) -> Iterator[float]:
    """Yield the loss in nats of each text, in any order; each is read from its begin to its end.

    The keys and values of the tokens that can still be seen are carried from segment to segment.
    """
    model = pipeline.model
    device = next(iter(model.parameters())).device
    # Those of like length together: the shorter ones are padding at the end.
    order = sorted(range(len(framed.ids)), key=framed.predictions.__getitem__)
    rows = max(1, batch_tokens // length)
    plan = [order[first : first + rows] for first in range(0, len(order), rows)]
    total = sum(_segments(framed.predictions, numbers, length) for numbers in plan)
    done = 0

    def run(numbers: list[int]) -> list[float]:
        ids, positions = pad([framed.ids[number][:-1] for number in numbers], 0)
        targets, _ = pad([framed.ids[number][1:] for number in numbers], 0)
        ids, positions, targets = (each.to(device) for each in (ids, positions, targets))
        cached = model.with_cache("auto", ids.shape[1], chunk=length)
        state = cached.start(ids[:, :0], positions[:, :0])
        totals = torch.zeros(len(numbers), dtype=torch.float64, device=device)
        for first in range(0, ids.shape[1], length):
            part = slice(first, first + length)
            states, state = model.extend(state, ids[:, part], positions[:, part])
            losses = _cross_entropy(model, states.flatten(0, 1), targets[:, part].flatten())
            real = positions[:, part] >= 0
            totals += losses.view_as(real).double().where(real, 0.0).sum(1)
            if progress is not None:
                progress(done + first // length + 1, total)
        return totals.tolist()

    with pipeline.computing():
        for numbers, losses in split_on_oom(plan, run):
            yield from losses
            done += _segments(framed.predictions, numbers, length)


def _segments(predictions: Sequence[int], numbers: Sequence[int], length: int) -> int:
    """The number of segments that the longest of some texts has."""
    return -(-max(predictions[number] for number in numbers) // length)


def _cross_entropy(model: Any, states: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row [R, D], some rows at a time: all scores at once may not fit."""
    rows = max(1, _LOGIT_NUMBERS // model.spec.vocabulary)
    parts: Iterable[tuple[Tensor, Tensor]] = zip(
        states.split(rows), targets.split(rows), strict=True
    )
    losses = [
        functional.cross_entropy(model.logits(part).float(), right, reduction="none")
        for part, right in parts
    ]
    return torch.cat(losses)
