"""Packing of several pairs into a row: batches of one shape, whatever the lengths of sentences.

A row has equally many positions for sources and for targets, and is filled with pairs that suit
both sides (vector bin packing). As for batches of similar lengths, an epoch is a function of seed
and epoch: pairs are shuffled and cut into pools before, and rows are shuffled after packing.
Nothing here needs PyTorch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from heedful.data.batch_plan import Indices, Sizes, shuffle, shuffled_pools
from heedful.errors import ConfigError

NO_PAIR = -1
"""Padding in a row's array of pair numbers."""


_BALANCE = 3
"""Positions of a pair's length that one position of imbalance between the sides outweighs."""

_NEVER = np.iinfo(np.int32).min  # score of a pair that does not fit


def plan_rows(
    sizes: tuple[Sizes, Sizes],
    groups: Sequence[tuple[Indices, float]],
    *,
    row_length: int,
    batch_rows: int,
    pool_batches: int,
    seed: int,
    epoch: int,
) -> list[Indices]:
    """Cut an epoch into batches of rows.

    Args:
        sizes: positions of the sources and of the targets [n], special tokens counted.
        groups: pair numbers with their sampling weight; see `plan_epoch`.
        row_length: positions of a row on each side.
        batch_rows: number R of rows of a batch.
        pool_batches: size of a pool in batches.
        seed: seed of the run.
        epoch: number of the epoch, from 0.

    Returns:
        The pair numbers of each batch's rows [R, P], in the order of training; `NO_PAIR` is
        padding. Empty rows at the end of an epoch are spread over all batches.

    Raises:
        ConfigError: when a pair is longer than a row.
    """
    source, target = (each.astype(np.int64) for each in sizes)
    longer = np.maximum(source, target)
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
    rows: list[Indices] = []
    positions = row_length * batch_rows * pool_batches
    for pool in shuffled_pools(longer, groups, positions, bits):
        if int(longer[pool].max()) > row_length:
            raise ConfigError(
                f"A pair of {longer[pool].max()} positions fits no row of {row_length}",
                where="data.packed_length",
                remedy="Raise it, or lower data.max_length",
            )
        rows += [pool[row] for row in pack(source[pool], target[pool], row_length)]
    order = shuffle(np.arange(len(rows)), bits)
    batches = -(-len(rows) // batch_rows)
    # Evenly spread: otherwise the last update of an epoch would be made of a few pairs.
    bounds = [len(rows) * number // batches for number in range(batches + 1)] if batches else []
    return [
        _table([rows[i] for i in order[start:end]], batch_rows)
        for start, end in itertools.pairwise(bounds)
    ]


def pack(source: Indices, target: Indices, row_length: int) -> list[Indices]:
    """Pack pairs into few rows, which are filled one after the other.

    A row takes the longest pair that leaves equal space on both sides. Packing by the lengths of
    the longer sides (best fit decreasing) left 5.6 % of Multi30k's rows empty, this leaves 1.4 %,
    of which 0.6 % are unavoidable, as its sources are shorter than its targets.

    Args:
        source: positions of each source [n], at most `row_length`.
        target: positions of each target [n], at most `row_length`.
        row_length: positions of a row on each side.

    Returns:
        Indices of each row's pairs among the n.
    """
    # Pairs of equal sizes are one kind: choosing among a thousand kinds takes some 15 µs a pair.
    kinds, kind, left = np.unique(
        np.stack([source, target], 1).astype(np.int32),
        axis=0,
        return_inverse=True,
        return_counts=True,
    )
    # pairs of each kind
    waiting = np.split(np.argsort(kind.reshape(-1), kind="stable"), np.cumsum(left)[:-1])
    sources, targets = np.ascontiguousarray(kinds.T)
    longer, difference = np.maximum(sources, targets), sources - targets
    rows, packed = [], 0
    while packed < len(source):
        row, source_space, target_space = [], row_length, row_length
        available = left > 0
        while True:
            fits = available & (sources <= source_space) & (targets <= target_space)
            imbalance = np.abs(difference - (source_space - target_space))
            # argmax takes the first of equal scores: packing is deterministic.
            chosen = int(np.where(fits, longer - _BALANCE * imbalance, _NEVER).argmax())
            if not fits[chosen]:
                break
            left[chosen] -= 1
            available[chosen] = left[chosen] > 0
            row.append(waiting[chosen][left[chosen]])
            source_space -= int(sources[chosen])
            target_space -= int(targets[chosen])
        rows.append(np.array(row))
        packed += len(row)
    return rows


def _table(rows: Sequence[Indices], count: int) -> Indices:
    """Return the pair numbers of `count` rows, of which the last may be empty, as one array."""
    table = np.full((count, max(map(len, rows))), NO_PAIR, np.int64)
    for line, row in zip(table, rows, strict=False):
        line[: len(row)] = row
    return table
