"""The order of streamed examples as a function of seed, epoch and block: any place can be sought.

Every corpus is a sequence of its own in each epoch: its shards in random order, and the examples of
some neighbouring shards, a window, shuffled together. An epoch is cut into blocks, and a block
takes the same share of each sequence, so that all corpora are mixed alike from begin to end and a
small one is never bunched. A block reads a few shards and depends on no other block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from heedful.data.batch_plan import Indices, shuffle


@dataclass(frozen=True)
class CorpusSequence:
    """The examples of one corpus in the order of an epoch.

    Args:
        number: of the corpus.
        starts: number of the first example of every shard, and the number of all.
        weight: how often an epoch shows it.
        window: shards whose examples are shuffled together.
        seed: of the run.
    """

    number: int
    starts: Indices
    weight: float
    window: int
    seed: int

    @property
    def size(self) -> int:
        """Examples of the corpus."""
        return int(self.starts[-1])

    def __len__(self) -> int:
        whole = int(self.weight)
        return whole * self.size + round((self.weight - whole) * self.size)

    def part(self, epoch: int, start: int, end: int) -> Indices:
        """Numbers of the examples from place `start` up to `end` of an epoch.

        Each full copy of the corpus is in an order of its own. The last, partial one begins
        anywhere, so that every example is in it equally often over the epochs.
        """
        parts = [np.empty(0, np.int64)]
        for copy in range(start // self.size, -(-end // self.size)):
            low = max(start - copy * self.size, 0)
            high = min(end - copy * self.size, self.size)
            bits = self._bits(epoch, copy)
            order = shuffle(np.arange(len(self.starts) - 1), bits)
            shift = int(bits.random_raw() % self.size) if copy >= int(self.weight) else 0
            for first, last in _rotated(low + shift, high + shift, self.size):
                parts.extend(self._windows(epoch, copy, order, first, last))
        return np.concatenate(parts)

    def _windows(
        self, epoch: int, copy: int, order: Indices, first: int, last: int
    ) -> Iterator[Indices]:
        """The examples from place `first` up to `last` of a copy, window by window."""
        sizes = np.diff(self.starts)[order]
        ends = np.cumsum(sizes)
        for window in range(-(-len(order) // self.window)):
            mine = slice(window * self.window, (window + 1) * self.window)
            end = int(ends[mine][-1])
            start = end - int(sizes[mine].sum())
            if end <= first or start >= last:
                continue
            places = shuffle(np.arange(end - start), self._bits(epoch, copy, window))
            places = places[max(first - start, 0) : last - start]
            inner = ends[mine] - start
            shard = np.searchsorted(inner, places, side="right")
            yield self.starts[order[mine]][shard] + places - (inner - sizes[mine])[shard]

    def _bits(self, *parts: int) -> np.random.PCG64:
        return np.random.PCG64(np.random.SeedSequence([self.seed, self.number, *parts]))


def _rotated(first: int, last: int, size: int) -> list[tuple[int, int]]:
    """A stretch of a circle of so many places, as one or two stretches within it."""
    if first >= size:
        return [(first - size, last - size)]
    return [(first, last)] if last <= size else [(first, size), (0, last - size)]


class ShardOrder:
    """The blocks of all epochs.

    Examples are numbered through the corpora.

    Args:
        starts: of each corpus, number of the first example of every shard, and the number of all.
        weights: how often an epoch shows each corpus.
        blocks: how many an epoch is cut into.
        shuffle_shards: shards whose examples are shuffled together, over all corpora: a block then
            reads about so many, or two of each corpus.
        seed: of the run.

    Attributes:
        bounds: number of the first example of every corpus, and the number of all.
    """

    def __init__(
        self,
        starts: Sequence[Indices],
        weights: Sequence[float],
        *,
        blocks: int,
        shuffle_shards: int,
        seed: int,
    ) -> None:
        self.blocks = blocks
        self.bounds: Indices = np.cumsum([0, *(each[-1] for each in starts)], dtype=np.int64)
        shown = [weight * int(each[-1]) for each, weight in zip(starts, weights, strict=True)]
        self.sequences = [
            CorpusSequence(
                number, each, weight, max(1, round(shuffle_shards * size / sum(shown))), seed
            )
            for number, (each, weight, size) in enumerate(zip(starts, weights, shown, strict=True))
        ]

    def __len__(self) -> int:
        return sum(map(len, self.sequences))

    def block(self, epoch: int, block: int) -> Indices:
        """Numbers of the examples of a block; one that is shown twice stands there twice."""
        parts = []
        for base, sequence in zip(self.bounds.tolist(), self.sequences, strict=False):
            start, end = (len(sequence) * number // self.blocks for number in (block, block + 1))
            parts.append(base + sequence.part(epoch, start, end))
        return np.concatenate(parts)
