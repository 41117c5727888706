"""Likelihood of texts under a language model: perplexity, bits per byte, loss by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from heedful.errors import ConfigError
from heedful.evaluate.bootstrap import Interval, ratio_interval
from heedful.evaluate.corpus_metrics import bits_per_unit, perplexity
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.pipelines.text_losses import (
    BATCH_TOKENS,
    DEFAULT_LENGTH,
    FramedTexts,
    Notice,
    losses_of_wholes,
    losses_of_windows,
    text_windows,
    window_length,
)


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
    length = window_length(pipeline, length)
    memory = pipeline.model.spec.memory
    if memory is not None:
        if stride is not None:
            raise ConfigError(
                f"With a memory of {memory} tokens texts are read as wholes, not in windows",
                where="stride",
                remedy="Leave it out",
            )
        framed = FramedTexts.of(pipeline.tokenizer, texts)
        total = sum(losses_of_wholes(pipeline, framed, length, batch_tokens, progress))
        predictions = sum(framed.predictions)
        return likelihood_of(framed, total, predictions, length, length, memory=memory)
    stride = max(1, length // 2) if stride is None else stride
    if not 1 <= stride <= length:
        raise ConfigError(
            f"A stride of {stride} would skip tokens between windows of {length}",
            where="stride",
            remedy=f"Give a number from 1 to {length}",
        )
    framed = FramedTexts.of(pipeline.tokenizer, texts)
    windows = text_windows(framed.predictions, length, stride)
    total = 0.0
    for window, losses in losses_of_windows(pipeline, framed, windows, batch_tokens, progress):
        total += float(losses[window.scored - window.start :].sum())
    return likelihood_of(framed, total, sum(framed.predictions), length, stride)


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
    framed = FramedTexts.of(pipeline.tokenizer, texts)
    windows = text_windows(framed.predictions, readable, readable)
    ends = position_bins(length, trained)
    edges = np.array([0, *(min(end, readable) for end in ends)])
    sums = np.zeros((len(windows), len(ends)))
    counts = np.zeros((len(windows), len(ends)), np.int64)
    number = {window: row for row, window in enumerate(windows)}
    for window, losses in losses_of_windows(pipeline, framed, windows, batch_tokens, progress):
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


def likelihood_of(
    framed: FramedTexts,
    total: float,
    tokens: int,
    length: int,
    stride: int,
    *,
    memory: int | None = None,
    pseudo: bool = False,
) -> TextLikelihood:
    """Return the likelihood of texts from the sum of their losses; arguments as its fields."""
    return TextLikelihood(
        negative_log_likelihood=total,
        tokens=tokens,
        bytes=sum(len(text.encode()) for text in framed.texts),
        characters=sum(map(len, framed.texts)),
        texts=len(framed.texts),
        unknown=framed.unknown,
        lossless=framed.lossless,
        length=length,
        stride=stride,
        memory=memory,
        pseudo=pseudo,
    )
