"""Likelihood of texts under a language model: perplexity, bits per byte, loss by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from heedful.apps.evaluation.text_losses import (
    BATCH_TOKENS,
    DEFAULT_LENGTH,
    FramedTexts,
    Notice,
    losses_of_wholes,
    losses_of_windows,
    text_windows,
    window_length,
)
from heedful.errors import ConfigError
from heedful.evaluate.bootstrap import Interval, ratio_interval
from heedful.evaluate.corpus_metrics import bits_per_unit, perplexity
from heedful.pipelines.text_generation import GenerationPipeline


@dataclass(frozen=True)
class TextLikelihood:
    """Likelihood of texts under a model.

    Attributes:
        negative_log_likelihood: sum over all predictions in nats.
        tokens: number of predictions; end tokens count, except for a masked model.
        bytes: number of bytes of the texts in UTF-8.
        characters: number of characters of the texts.
        texts: number of texts.
        unknown: number of unknown tokens.
        lossless: True if the tokens decode to exactly the texts.
        length: maximum number of tokens of a window.
        stride: tokens from the start of one window to that of the next.
        memory: size of the model's memory in tokens if it reads texts as wholes, else None.
        pseudo: True for the pseudo-likelihood of a masked model.
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
        """exp(loss per token); comparable only between models with the same tokenizer."""
        return perplexity(self.negative_log_likelihood, self.tokens)

    @property
    def bits_per_token(self) -> float:
        """Loss per token in bits."""
        return bits_per_unit(self.negative_log_likelihood, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """Loss per byte of UTF-8 in bits; comparable between models with any tokenizer."""
        return bits_per_unit(self.negative_log_likelihood, self.bytes)

    @property
    def bits_per_character(self) -> float:
        """Loss per character in bits; comparable between models with any tokenizer."""
        return bits_per_unit(self.negative_log_likelihood, self.characters)

    @property
    def scores(self) -> dict[str, float]:
        """Scores by name; those of a pseudo-likelihood have the prefix `pseudo_`."""
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
        """Numbers of texts, tokens, bytes, characters and unknown tokens, by name."""
        names = ("texts", "tokens", "bytes", "characters", "unknown")
        return {name: getattr(self, name) for name in names}

    def plain(self) -> dict[str, Any]:
        """Return scores, counts, and the length, stride and memory of the context, as JSON data."""
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
    """Measure the likelihood of texts under a causal language model.

    The end token of a text is predicted and counted, as in training; it has no bytes. With
    `stride = length` the loss is that of validation in training. A model with a memory reads each
    text as a whole, in segments of `length`.

    Args:
        pipeline: language model, from `heedful.load_generator`.
        texts: independent texts, at least one.
        length: maximum number of tokens that the model reads at once; the trained length if unset.
            It does not change the result of a model with a memory.
        stride: tokens from the start of one window to that of the next; half the length if unset.
        batch_tokens: positions of a batch; they do not change the result.
        progress: receiver of (done, total) windows or segments.

    Raises:
        ConfigError: when the stride exceeds the length, the length exceeds the model's learned
            positions, or a stride is given for a model with a memory.
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
        # With a memory each text is one sequence, whatever the length of its segments.
        total = sum(losses_of_wholes(pipeline, framed, length, batch_tokens, progress))
        predictions = sum(framed.predictions)
        return likelihood_of(framed, total, predictions, length, length, memory=memory)
    # Half the length: for twice the cost, every token past the first window has at least half a
    # window of context.
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
        first: first position, from 1, which is the number of context tokens there.
        last: last position.
        tokens: number of predictions.
        loss: nats per token, with a bootstrap interval over windows; None without predictions, or
            without learned positions.
        problem: reason for a missing loss.
    """

    first: int
    last: int
    tokens: int
    loss: Interval | None
    problem: str | None = None


def position_bins(length: int, trained: int | None = None) -> list[int]:
    """Return the last position of each bin: powers of 2 from 16, trained length and length."""
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
    """Measure the loss by position in the text, up to and beyond the trained length.

    Texts are cut into windows of `length` tokens without overlap. Positions beyond the learned ones
    have a `problem` instead of a loss.

    Args:
        pipeline: language model, from `heedful.load_generator`.
        texts: texts, some of them longer than `length`.
        length: tokens of a window; four times the trained length if unset.
        samples: number of bootstrap resamples of windows.
        batch_tokens: positions of a batch.
        progress: receiver of (done, total) windows.

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
    # The model cannot compute positions beyond its learned ones.
    readable = length if table is None else min(length, table)
    framed = FramedTexts.of(pipeline.tokenizer, texts)
    windows = text_windows(framed.predictions, readable, readable)
    ends = position_bins(length, trained)
    edges = np.array([0, *(min(end, readable) for end in ends)])  # [bins + 1]
    sums = np.zeros((len(windows), len(ends)))  # [windows, bins], in nats
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
            # Windows are resampled, not tokens: losses within a window are not independent.
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
    """Return the likelihood of texts.

    Args:
        framed: texts with their token ids.
        total: sum of the losses of all predictions in nats.
        tokens, length, stride, memory, pseudo: fields of `TextLikelihood`.
    """
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
