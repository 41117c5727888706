"""Rows of tokens as an encoder reads them, in memory, with what is to be predicted of each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import numpy as np
import torch
from torch import Tensor

from heedful.data.encoded import Indices
from heedful.data.order import plan_batches
from heedful.data.parts import rows_of
from heedful.data.spec import DataSpec


@dataclass(frozen=True)
class FramedRow:
    """One input and its targets.

    Args:
        ids: all tokens, special ones included.
        second: where the second text begins; the number of tokens where there is none.
        places: what each target is of: a token, or one of several outputs.
        targets: numbers of what is to be predicted, one for each place.
        where: what to call the row.
    """

    ids: Sequence[int]
    second: int
    places: Sequence[int]
    targets: Sequence[int]
    where: str


@dataclass(frozen=True)
class FramedBatch:
    """Rows side by side. There are T targets in all.

    Args:
        ids: [B, L] int64, padded on the right.
        positions: [B, L] int64, counted from 0; −1 is padding.
        second: [B] int64, where each row's second text begins.
        rows: [T] int64, the row in the batch of each target.
        places: [T] int64, its place in the row.
        targets: [T] int64.
        indices: [B] int64, numbers of the rows.
    """

    ids: Tensor
    positions: Tensor
    second: Tensor
    rows: Tensor
    places: Tensor
    targets: Tensor
    indices: Tensor

    @property
    def target_tokens(self) -> int:
        """How many targets there are."""
        return len(self.targets)

    def to(self, device: torch.device | str) -> Self:
        """The batch on a device."""
        moved = ("ids", "positions", "second", "rows", "places", "targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in moved})

    def part(self, start: int, stop: int) -> Self:
        """The rows from `start` until `stop` with their targets, padded as they were."""
        mine = (self.rows >= start) & (self.rows < stop)
        return rows_of(
            self,
            start,
            stop,
            rows=self.rows[mine] - start,
            places=self.places[mine],
            targets=self.targets[mine],
        )


class FramedRows:
    """The rows of several files, one after the other.

    Args:
        files: the rows of each file; at least one in all, each with at least one target.
        padding: id that fills rows up.
    """

    def __init__(self, files: Iterable[Iterable[FramedRow]], padding: int) -> None:
        parts = [list(file) for file in files]
        rows = list(chain.from_iterable(parts))
        self.padding = padding
        self.ids = [np.array(row.ids, np.int32) for row in rows]
        self.targets = [np.array((row.places, row.targets), np.int32) for row in rows]
        self.second = np.array([row.second for row in rows], np.int64)
        self.where = [row.where for row in rows]
        self.lengths = np.array([len(row.ids) for row in rows], np.int32)
        self.starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.ids)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all rows and of how they are divided into files."""
        found = hashlib.sha256(self.starts.tobytes())
        for ids, second, targets in zip(self.ids, self.second, self.targets, strict=True):
            found.update(f"{len(ids)} {second} {targets.shape}".encode())
            found.update(ids.tobytes() + targets.tobytes())
        return found.hexdigest()

    def batch(self, indices: Indices) -> FramedBatch:
        """Rows by their numbers."""
        length = int(self.lengths[indices].max())
        ids = np.full((len(indices), length), self.padding, np.int64)
        positions = np.full(ids.shape, -1, np.int64)
        for row, index in enumerate(indices):
            size = self.lengths[index]
            ids[row, :size] = self.ids[index]
            positions[row, :size] = np.arange(size)
        targets = [self.targets[index] for index in indices]
        rows = np.repeat(np.arange(len(indices)), [pair.shape[1] for pair in targets])
        places, wanted = np.concatenate(targets, axis=1).astype(np.int64)
        arrays = (ids, positions, self.second[indices], rows, places, wanted, indices)
        return FramedBatch(*map(torch.from_numpy, arrays))

    def plan(
        self, weights: Sequence[float], data: DataSpec, *, seed: int, epoch: int
    ) -> list[Indices]:
        """The row numbers of every batch of an epoch, in the order of training.

        Args:
            weights: how often an epoch shows each of the files.
            data: the token budget and the size of pools.
            seed: of the run.
            epoch: counted from 0.
        """
        bounds = zip(self.starts[:-1], self.starts[1:], weights, strict=True)
        groups = [(np.arange(low, high, dtype=np.int64), weight) for low, high, weight in bounds]
        lengths = self.lengths - 1  # the plan itself counts one token more
        return plan_batches(
            lengths,
            lengths,
            groups,
            batch_tokens=data.budget,
            pool_batches=data.pool_batches,
            seed=seed,
            epoch=epoch,
        )

    def plan_once(self, data: DataSpec) -> list[Indices]:
        """The row numbers of batches in which every row is once, always the same ones."""
        whole = data.model_copy(update={"pool_batches": len(self)})
        return self.plan([1.0] * (len(self.starts) - 1), whole, seed=0, epoch=0)
