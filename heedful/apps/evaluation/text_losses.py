"""Token losses of texts under a language model, in windows or over whole texts.

Texts are cut into windows as in training: the begin token replaces the first token of each window,
and positions count from 0. With a stride below the length, windows overlap. A token is scored in
the first window that contains it, so a larger overlap gives tokens more context. A model with a
memory (Transformer-XL) reads whole texts, segment after segment, and needs no windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from heedful.data.padding import pad
from heedful.errors import ConfigError, DataError
from heedful.pipelines.batching import plan_batches, split_on_oom
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.text.tokenizer import TextTokenizer

BATCH_TOKENS = 8192
"""Default number of positions of a batch."""

DEFAULT_LENGTH = 1024
"""Window length in tokens for a model without a maximum length."""

_LOGIT_NUMBERS = 1 << 24
"""Maximum number of logits in memory at once: 64 MB."""

Progress = Callable[[int, int], None]
"""Receiver of the number of finished items and of all items."""


class LossWindow(NamedTuple):
    """A window of consecutive tokens of a text.

    Args:
        text: index of the text.
        start: index of the first input; input i predicts token i + 1 of the framed text.
        scored: index of the first input whose prediction counts.
        stop: index after the last input.
    """

    text: int
    start: int
    scored: int
    stop: int


def text_windows(predictions: Sequence[int], length: int, stride: int) -> list[LossWindow]:
    """Cut texts into windows; every prediction counts in exactly one of them.

    Args:
        predictions: number of predictions of each text.
        length: maximum number of tokens of a window.
        stride: tokens from the start of one window to that of the next, at most `length`.
    """
    assert 1 <= stride <= length, (stride, length)
    windows = []
    for text, count in enumerate(predictions):
        stop = 0
        start = 0
        while stop < count:
            # A prediction counts in the first window that contains it, so scoring continues where
            # the previous window ended.
            scored, stop = stop, min(start + length, count)
            windows.append(LossWindow(text, start, scored, stop))
            start += stride
    return windows


@dataclass(frozen=True)
class FramedTexts:
    """Texts with their token ids between the begin and the end token.

    Args:
        ids: token ids of each text, begin and end token included.
        texts: the texts themselves.
        unknown: number of unknown tokens.
        lossless: True if the ids decode to exactly the same texts.
    """

    ids: list[list[int]]
    texts: Sequence[str]
    unknown: int
    lossless: bool

    @classmethod
    def of(cls, tokenizer: TextTokenizer, texts: Sequence[str]) -> FramedTexts:
        """Encode texts.

        Args:
            tokenizer: tokenizer of the model.
            texts: texts to measure.

        Raises:
            DataError: when there is no text.
        """
        if not any(texts):
            raise DataError("There is no text to measure", remedy="Give a file with text in it")
        encoded = tokenizer.encode_batch(texts)
        unknown = sum(ids.count(tokenizer.unk) for ids in encoded)
        # If tokens lose text, bits per byte are those of another text, so callers report the loss.
        exact = all(tokenizer.decode(ids) == t for ids, t in zip(encoded, texts, strict=True))
        framed = [[tokenizer.bos, *ids, tokenizer.eos] for ids in encoded]
        return cls(framed, texts, unknown, exact)

    @property
    def facts(self) -> dict[str, Any]:
        """Sizes of the texts, number of unknown tokens, and whether the tokens are lossless."""
        return {
            "bytes": sum(len(text.encode()) for text in self.texts),
            "characters": sum(map(len, self.texts)),
            "texts": len(self.texts),
            "unknown": self.unknown,
            "lossless": self.lossless,
        }

    @property
    def predictions(self) -> list[int]:
        """Number of predictions of each text."""
        return [len(ids) - 1 for ids in self.ids]


def window_length(pipeline: GenerationPipeline, length: int | None) -> int:
    """Return the length of windows in tokens.

    Args:
        pipeline: language model.
        length: requested length; the model's maximum if None.

    Raises:
        ConfigError: when the length is below 1, or too long for the model.
    """
    spec = pipeline.spec
    table = spec.longest_text
    if length is None:
        return spec.max_length or table or DEFAULT_LENGTH
    if length < 1:
        raise ConfigError("A window holds at least one token", where=f"length = {length}")
    if table is not None and length > table:
        learned = spec.num_positions is not None
        bound = f"has learned {table} positions" if learned else f"reads {table} tokens at once"
        raise ConfigError(
            f"The model {bound}, and a window of {length} tokens needs more",
            where="length",
            remedy=f"Give at most {table}, or a model with rotary or sinusoidal positions",
        )
    pipeline.notice_length(length)
    return length


def losses_of_windows(
    pipeline: GenerationPipeline,
    framed: FramedTexts,
    windows: Sequence[LossWindow],
    batch_tokens: int,
    progress: Progress | None,
) -> Iterator[tuple[LossWindow, npt.NDArray[np.float64]]]:
    """Compute the losses of windows.

    Args:
        pipeline: language model.
        framed: texts with their token ids.
        windows: windows of the texts.
        batch_tokens: positions of a batch.
        progress: receiver of (done, total) windows.

    Yields:
        Each window, in any order, with the loss of each of its predictions in nats.
    """
    model, tokenizer = pipeline.engine, pipeline.tokenizer
    device = next(iter(model.parameters())).device
    plan = plan_batches(
        [window.stop - window.start for window in windows],
        width=1,
        batch_tokens=batch_tokens,
        batch_size=None,
    )

    def run(numbers: list[int]) -> list[npt.NDArray[np.float64]]:
        rows = [windows[number] for number in numbers]
        # As in training, the begin token replaces the first token of a window.
        inputs = [framed.ids[row.text][row.start + 1 : row.stop] for row in rows]
        ids, positions = pad(inputs, 0, first=tokenizer.bos)
        targets, _ = pad([framed.ids[row.text][row.start + 1 : row.stop + 1] for row in rows], 0)
        ids, targets, positions = (each.to(device) for each in (ids, targets, positions))
        states = model(ids, positions)
        losses = losses_of_targets(model, states.flatten(0, 1), targets.flatten())  # [B · L]
        # In float64, since a sum runs over the millions of losses of a corpus.
        table = losses.view(targets.shape).double().cpu().numpy()
        return [line[: row.stop - row.start] for line, row in zip(table, rows, strict=True)]

    done = 0
    with pipeline.computing():
        for numbers, losses in split_on_oom(plan, run):
            yield from zip((windows[number] for number in numbers), losses, strict=True)
            done += len(numbers)
            if progress is not None:
                progress(done, len(windows))


def losses_of_whole_texts(
    pipeline: GenerationPipeline,
    framed: FramedTexts,
    length: int,
    batch_tokens: int,
    progress: Progress | None,
) -> Iterator[float]:
    """Compute the losses of whole texts with a model that has a memory.

    Each segment of a text attends to cached keys and values of the segments before it.

    Args:
        pipeline: language model.
        framed: texts with their token ids.
        length: length of a segment in tokens.
        batch_tokens: positions of a batch of segments.
        progress: receiver of (done, total) segments.

    Yields:
        The loss of each text in nats, in any order.
    """
    model = pipeline.engine
    device = next(iter(model.parameters())).device
    # Texts of similar length are batched together, so that there is little padding.
    order = sorted(range(len(framed.ids)), key=framed.predictions.__getitem__)
    # Memory grows with the length of a segment, not with that of the texts.
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
            losses = losses_of_targets(model, states.flatten(0, 1), targets[:, part].flatten())
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
    """Return the number of segments of the longest text of a batch."""
    return -(-max(predictions[number] for number in numbers) // length)


def losses_of_targets(model: Any, states: Tensor, targets: Tensor) -> Tensor:
    """Return the loss [R] of states [R, D], in parts: all logits [R, V] may not fit into memory."""
    rows = max(1, _LOGIT_NUMBERS // model.spec.vocabulary)
    parts: Iterable[tuple[Tensor, Tensor]] = zip(
        states.split(rows), targets.split(rows), strict=True
    )
    losses = [
        functional.cross_entropy(model.logits(part).float(), right, reduction="none")
        for part, right in parts
    ]
    return torch.cat(losses)
