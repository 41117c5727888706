"""Pieces of texts as the rows of an encoder's batches.

A row is consecutive pieces of one text in the frame that its tokenizer puts around a text. It never
holds parts of two texts, so that its first token stands for it whether its pieces are predicted or
its label is, and a model sees in training what it is given afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.encoded import Indices
from heedful.data.order import plan_batches
from heedful.data.parts import rows_of
from heedful.data.spec import DataSpec
from heedful.data.stream import EncodedTexts
from heedful.errors import ConfigError
from heedful.text.protocol import TextTokenizer


@dataclass(frozen=True)
class Rows:
    """Which pieces of a stream stand in which row.

    Args:
        starts: number of each row's first piece in the stream [N] int64.
        counts: how many pieces it has [N] int64.
        frame: how many tokens stand around them.
    """

    starts: Indices
    counts: Indices
    frame: int

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.starts)


@dataclass(frozen=True)
class RowBatch:
    """Rows side by side.

    Args:
        ids: [B, L] int64.
        positions: [B, L] int64, counted from 0; −1 is padding.
        targets: int64, what is to be predicted: [B, L] of each token, −1 where nothing is, or [B]
            of each row.
        indices: [B] int64, numbers of the rows' first pieces in the stream.
        target_tokens: how many targets there are.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    indices: Tensor
    target_tokens: int

    def to(self, device: torch.device | str) -> RowBatch:
        """The batch on a device."""
        return RowBatch(
            self.ids.to(device),
            self.positions.to(device),
            self.targets.to(device),
            self.indices,
            self.target_tokens,
        )

    def part(self, start: int, stop: int) -> RowBatch:
        """The rows from `start` until `stop`, padded as they were."""
        real = int((self.targets[start:stop] >= 0).sum())
        return rows_of(self, start, stop, target_tokens=real)


def frame_size(tokenizer: TextTokenizer) -> int:
    """How many tokens stand around the pieces of a row."""
    return len(tokenizer.first) + len(tokenizer.last)


def cut_texts(
    texts: EncodedTexts, tokenizer: TextTokenizer, max_length: int, *, seed: int, epoch: int
) -> Rows:
    """Cut every text into rows without overlap; no piece is left out.

    Where a text that needs several is cut differs by epoch: its first row may be shorter.

    Args:
        texts: the stream.
        tokenizer: gives the frame.
        max_length: of a row, its frame counted.
        seed: of the run.
        epoch: counted from 0.

    Raises:
        ConfigError: when a row has no room for a piece.
    """
    room = _room(tokenizer, max_length)
    drawn = int(np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw())
    shift = drawn % room if epoch else 0
    begins, pieces = _pieces(texts)
    lead = np.where(pieces > room, shift, 0)
    per_text = -(-(pieces + lead) // room)
    text = np.repeat(np.arange(len(pieces)), per_text)
    number = np.arange(len(text)) - np.repeat(np.cumsum(per_text) - per_text, per_text)
    low = np.maximum(number * room - lead[text], 0)
    high = np.minimum((number + 1) * room - lead[text], pieces[text])
    return Rows(begins[text] + low, high - low, frame_size(tokenizer))


def first_rows(texts: EncodedTexts, tokenizer: TextTokenizer, max_length: int) -> Rows:
    """One row for every text; what goes past `max_length` tokens is left out.

    Raises:
        ConfigError: when a row has no room for a piece.
    """
    room = _room(tokenizer, max_length)
    begins, pieces = _pieces(texts)
    return Rows(begins, np.minimum(pieces, room), frame_size(tokenizer))


def plan_rows(
    rows: Rows,
    texts: EncodedTexts,
    weights: Sequence[float],
    data: DataSpec,
    *,
    seed: int,
    epoch: int,
    sizes: Indices | None = None,
) -> list[Indices]:
    """The row numbers of every batch of an epoch, in the order of training.

    Args:
        rows: of the texts.
        texts: the stream.
        weights: how often an epoch shows each of its files.
        data: the token budget and the size of pools.
        seed: of the run.
        epoch: counted from 0.
        sizes: tokens that count for each row [N]; its pieces and their frame if None.
    """
    bounds = np.searchsorted(rows.starts, texts.starts)
    groups = [
        (np.arange(start, end, dtype=np.int64), weight)
        for start, end, weight in zip(bounds[:-1], bounds[1:], weights, strict=True)
    ]
    sizes = rows.counts + rows.frame if sizes is None else sizes
    lengths = (sizes - 1).astype(np.int32)  # the plan itself counts one token more
    return plan_batches(
        lengths,
        lengths,
        groups,
        batch_tokens=data.budget,
        pool_batches=data.pool_batches,
        seed=seed,
        epoch=epoch,
    )


def validation_rows(
    rows: Rows, texts: EncodedTexts, data: DataSpec, sizes: Indices | None = None
) -> list[Indices]:
    """The row numbers of batches in which every row is once, always the same ones."""
    weights = [1.0] * len(texts.readers)
    whole = data.model_copy(update={"pool_batches": max(1, len(rows))})
    return plan_rows(rows, texts, weights, whole, seed=0, epoch=0, sizes=sizes)


def frame_rows(
    pieces: Sequence[npt.NDArray[np.int64]], tokenizer: TextTokenizer
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ids and positions [B, L] of rows of pieces, padded on the right."""
    length = frame_size(tokenizer) + max(len(row) for row in pieces)
    ids = np.full((len(pieces), length), tokenizer.pad, np.int64)
    positions = np.full(ids.shape, -1, np.int64)
    for number, row in enumerate(pieces):
        whole = [*tokenizer.first, *row, *tokenizer.last]
        ids[number, : len(whole)] = whole
        positions[number, : len(whole)] = np.arange(len(whole))
    return ids, positions


def _room(tokenizer: TextTokenizer, max_length: int) -> int:
    """How many pieces a row has room for."""
    room = max_length - frame_size(tokenizer)
    if room < 1:
        raise ConfigError(
            f"Of {max_length} tokens {frame_size(tokenizer)} are special ones; there is no room "
            "for text",
            where="data.max_length",
            remedy="Raise it",
        )
    return room


def _pieces(texts: EncodedTexts) -> tuple[Indices, Indices]:
    """Number of every text's first piece, and how many it has."""
    bounds = texts.bounds
    return bounds[:-1] + 1, np.diff(bounds) - 2
