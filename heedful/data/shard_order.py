"""The order of streamed examples as a function of seed, epoch and block, without a saved state.

In each epoch every corpus is a sequence of its own: its shards are in random order, and the
examples of some neighbouring shards, a window, are shuffled together. An epoch is cut into blocks,
each with the same share of every sequence, so that the mixture of corpora is the same from
beginning to end. Otherwise a corpus of 1 shard among 10,000 would be in only one block of a
thousand. A block reads a few shards and depends on no other block.
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
        number: number of the corpus.
        starts: number of the first example of every shard, and the number of examples.
        weight: copies of the corpus in an epoch.
        window: number of shards whose examples are shuffled together.
        seed: seed of the run.
    """

    number: int
    starts: Indices
    weight: float
    window: int
    seed: int

    @property
    def size(self) -> int:
        """Number of examples of the corpus."""
        return int(self.starts[-1])

    def __len__(self) -> int:
        whole = int(self.weight)
        return whole * self.size + round((self.weight - whole) * self.size)

    def part(self, epoch: int, start: int, end: int) -> Indices:
        """Return the numbers of the examples at places `start` until `end` of an epoch.

        Each full copy of the corpus has an order of its own. The last, partial copy begins at a
        random place, so that over the epochs it shows every example equally often.
        """
        parts = [np.empty(0, np.int64)]
        for copy in range(start // self.size, -(-end // self.size)):
            low = max(start - copy * self.size, 0)
            high = min(end - copy * self.size, self.size)
            # Shards are permuted, not examples: a permutation of 100 million would take 800 MB.
            bits = self._bits(epoch, copy)
            order = shuffle(np.arange(len(self.starts) - 1), bits)
            shift = int(bits.random_raw() % self.size) if copy >= int(self.weight) else 0
            for first, last in _rotated(low + shift, high + shift, self.size):
                parts.extend(self._windows(epoch, copy, order, first, last))
        return np.concatenate(parts)

    def _windows(
        self, epoch: int, copy: int, order: Indices, first: int, last: int
    ) -> Iterator[Indices]:
        """Yield the examples at places `first` until `last` of a copy, window by window."""
        sizes = np.diff(self.starts)[order]
        ends = np.cumsum(sizes)
        for window in range(-(-len(order) // self.window)):
            mine = slice(window * self.window, (window + 1) * self.window)
            end = int(ends[mine][-1])
            start = end - int(sizes[mine].sum())
            if end <= first or start >= last:
                continue
            # The whole window is shuffled even for a part of it, so every block sees the same
            # order.
            places = shuffle(np.arange(end - start), self._bits(epoch, copy, window))
            places = places[max(first - start, 0) : last - start]
            inner = ends[mine] - start
            shard = np.searchsorted(inner, places, side="right")
            yield self.starts[order[mine]][shard] + places - (inner - sizes[mine])[shard]

    def _bits(self, *parts: int) -> np.random.PCG64:
        return np.random.PCG64(np.random.SeedSequence([self.seed, self.number, *parts]))


def _rotated(first: int, last: int, size: int) -> list[tuple[int, int]]:
    """Split a range of a circle of `size` places into one or two ranges without wrap-around."""
    if first >= size:
        return [(first - size, last - size)]
    return [(first, last)] if last <= size else [(first, size), (0, last - size)]


class ShardOrder:
    """The order of the examples of all corpora, block by block.

    Examples of all corpora are numbered consecutively.

    Args:
        starts: first example of every shard and the number of examples, for each corpus.
        weights: copies of each corpus in an epoch.
        blocks: number of blocks of an epoch.
        shuffle_shards: number of shards whose examples are shuffled together, over all corpora; a
            block reads about as many, or two of each corpus.
        seed: seed of the run.

    Attributes:
        bounds: number of the first example of every corpus, and the number of examples.
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
        # The window is divided by the share of each corpus, at least one shard for each.
        self.sequences = [
            CorpusSequence(
                number, each, weight, max(1, round(shuffle_shards * size / sum(shown))), seed
            )
            for number, (each, weight, size) in enumerate(zip(starts, weights, shown, strict=True))
        ]

    def __len__(self) -> int:
        return sum(map(len, self.sequences))

    def block(self, epoch: int, block: int) -> Indices:
        """Return the numbers of a block's examples, with repetitions if the weight is above 1."""
        parts = []
        for base, sequence in zip(self.bounds.tolist(), self.sequences, strict=False):
            # Integer division of the ends: blocks meet exactly, and differ by one example at most.
            start, end = (len(sequence) * number // self.blocks for number in (block, block + 1))
            parts.append(base + sequence.part(epoch, start, end))
        return np.concatenate(parts)
