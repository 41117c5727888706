"""Likelihood of texts under a language model: perplexity, bits per byte, loss by position.

A masked language model has a pseudo-likelihood (Salazar 2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch.nn import functional

from heedful.apps.evaluation.bootstrap import Interval, ratio_interval
from heedful.apps.evaluation.text_losses import (
    BATCH_TOKENS,
    DEFAULT_LENGTH,
    FramedTexts,
    Progress,
    losses_of_whole_texts,
    losses_of_windows,
    text_windows,
    window_length,
)
from heedful.errors import ConfigError
from heedful.evaluate.corpus_metrics import bits_per_unit, perplexity
from heedful.pipelines.encoder_input import EncoderInput, encode, frame, longest_input
from heedful.pipelines.text_encoding import EncoderPipeline
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
        memory: size of the model's memory in tokens; None for a model without memory.
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

    def plain(self) -> dict[str, Any]:
        """Return scores, counts, and the length, stride and memory of the context, as JSON data."""
        fields = {name: value for name, value in vars(self).items() if name != "pseudo"}
        return {"scores": self.scores, **fields}


def text_likelihood(
    pipeline: GenerationPipeline,
    texts: Sequence[str],
    *,
    length: int | None = None,
    stride: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> TextLikelihood:
    """Measure the likelihood of texts under a causal language model.

    The end token of a text is predicted and counted, as in training; it has no bytes. With
    `stride = length` the loss is that of validation in training. A model with a memory reads each
    text from beginning to end, in segments of `length`.

    Args:
        pipeline: language model, from `heedful.load`.
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
    memory = pipeline.spec.memory
    if memory is not None:
        if stride is not None:
            raise ConfigError(
                f"With a memory of {memory} tokens texts are read as wholes, not in windows",
                where="stride",
                remedy="Leave it out",
            )
        framed = FramedTexts.of(pipeline.tokenizer, texts)
        # With a memory each text is one sequence, so the length of its segments does not matter.
        total = sum(losses_of_whole_texts(pipeline, framed, length, batch_tokens, progress))
        tokens, facts = sum(framed.predictions), framed.facts
        return TextLikelihood(total, tokens, **facts, length=length, stride=length, memory=memory)
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
    tokens = sum(framed.predictions)
    return TextLikelihood(total, tokens, **framed.facts, length=length, stride=stride)


@dataclass(frozen=True)
class PositionLoss:
    """The loss of the predictions at some positions of a window.

    Attributes:
        first: first position, counted from 1, which equals its number of context tokens.
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
    """Return the last position of each bin: powers of 2 from 16 on, `trained` and `length`."""
    ends = {16 << power for power in range(length.bit_length()) if 16 << power < length}
    return sorted(ends | {length} | ({trained} if trained and trained < length else set()))


def loss_by_position(
    pipeline: GenerationPipeline,
    texts: Sequence[str],
    *,
    length: int | None = None,
    samples: int = 1000,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> list[PositionLoss]:
    """Measure the loss by position in the text, up to and beyond the trained length.

    Texts are cut into windows of `length` tokens without overlap. Positions beyond the learned ones
    have a `problem` instead of a loss.

    Args:
        pipeline: language model, from `heedful.load`.
        texts: texts, some of them longer than `length`.
        length: tokens of a window; four times the trained length if unset.
        samples: number of bootstrap resamples of windows.
        batch_tokens: positions of a batch.
        progress: receiver of (done, total) windows.

    Raises:
        ConfigError: when the length is not positive.
        DataError: when there is no text, or none longer than the trained length.
    """
    spec = pipeline.spec
    trained = spec.max_length
    if length is None:
        length = 4 * trained if trained else DEFAULT_LENGTH
    if length < 1:
        raise ConfigError("A window holds at least one token", where=f"length = {length}")
    table = spec.longest_text
    # The model cannot compute positions that it has not learned.
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


def pseudo_likelihood(
    pipeline: EncoderPipeline,
    texts: Sequence[str],
    *,
    length: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> TextLikelihood:
    """Measure how well a masked model predicts each token of a text from all others (Salazar 2020).

    Each token is hidden once, so a text of n tokens is read n times.

    Args:
        pipeline: masked language model, from `heedful.load`.
        texts: texts, at least one; texts longer than `length` are cut into windows.
        length: maximum number of tokens of an input, including special tokens.
        batch_tokens: positions of a batch.
        progress: receiver of (done, total) tokens.

    Raises:
        ModelError: when the model cannot fill masks.
        ConfigError: when a window has no room for a token.
        DataError: when there is no text.
    """
    reading = MaskedReading.of(pipeline, length)
    framed = FramedTexts.of(pipeline.tokenizer, texts)
    tokens = sum(framed.predictions) - len(texts)  # end tokens are not predicted
    total, done = 0.0, 0  # nats; tokens
    for ids in framed.ids:
        for losses in reading.losses(ids, batch_tokens):
            total += sum(losses)
            done += len(losses)
            if progress is not None:
                progress(done, tokens)
    facts = framed.facts | {"length": reading.length, "stride": reading.room}
    return TextLikelihood(total, tokens, **facts, pseudo=True)


@dataclass(frozen=True)
class MaskedReading:
    """The windows in which a masked model reads texts.

    Args:
        pipeline: masked language model.
        mask: id of the mask token.
        length: maximum number of tokens of an input, including special tokens.
        room: the same without special tokens.
    """

    pipeline: EncoderPipeline
    mask: int
    length: int
    room: int

    @classmethod
    def of(cls, pipeline: EncoderPipeline, length: int | None) -> Self:
        """Check a model, and return the windows in which it reads.

        Args:
            pipeline: masked language model.
            length: maximum number of tokens of an input; the model's if None.

        Raises:
            ModelError: when the model cannot fill masks.
            ConfigError: when a window has no room for a token.
        """
        pipeline.require("masked_lm")
        tokenizer, mask = pipeline.tokenizer, pipeline.tokenizer.mask
        if mask is None:
            raise ConfigError(
                "The model's tokenizer has no mask token", remedy="Give a masked model"
            )
        length = longest_input(pipeline.spec) or DEFAULT_LENGTH if length is None else length
        # The special tokens of every window take up room.
        room = length - len(tokenizer.first) - len(tokenizer.last)
        if room < 1:
            raise ConfigError(f"There is no room for a token in {length}", where="length")
        return cls(pipeline, mask, length, room)

    def losses(self, ids: Sequence[int], batch_tokens: int) -> Iterator[list[float]]:
        """Yield the losses of the tokens of each window of a text in nats.

        Args:
            ids: ids of a text between the begin and end token of a causal language model, which
                are left out.
            batch_tokens: positions of a batch.
        """
        for start in range(1, len(ids) - 1, self.room):
            part = ids[start : min(start + self.room, len(ids) - 1)]
            yield _hidden_losses(self.pipeline, part, self.mask, batch_tokens)


def _hidden_losses(
    pipeline: EncoderPipeline, ids: Sequence[int], mask: int, batch_tokens: int
) -> list[float]:
    """Return the losses of tokens in nats, each predicted while it alone is hidden."""
    whole = frame(pipeline.tokenizer, ids)
    items = [
        EncoderInput((*whole.ids[:place], mask, *whole.ids[place + 1 :]), whole.first, whole.second)
        for place in range(whole.first, whole.first + len(ids))
    ]
    right = torch.tensor(ids, device=pipeline.engine.embedding.weight.device)
    found = [0.0] * len(ids)
    with pipeline.computing():
        for batch in encode(
            pipeline.engine, items, padding=pipeline.tokenizer.pad, batch_tokens=batch_tokens
        ):
            rows = torch.tensor(batch.numbers, device=right.device)
            # Input i hides token i of the part, which comes after the first special tokens.
            states = batch.states[torch.arange(len(rows)), rows + whole.first]
            # The head runs on the hidden tokens only: 1 / L of the cost of all positions.
            logits = pipeline.engine.masked_lm_logits(states).float()
            losses = functional.cross_entropy(logits, right[rows], reduction="none").double()
            for number, loss in zip(batch.numbers, losses.tolist(), strict=True):
                found[number] = loss
    return found
