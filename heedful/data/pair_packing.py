"""Rows of several pairs: batches of one shape, whatever the lengths of sentences.

A row has as many places for the sources of its pairs as for their targets, and holds pairs that
fill it well on both sides (vector bin packing). Pairs are shuffled and cut into pools before, and
rows shuffled after, so that an epoch is a function of seed and epoch, as it is for batches of
similar lengths. No torch here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from heedful.data.batch_plan import Indices, Sizes, shuffle, shuffled_pools
from heedful.errors import ConfigError

NO_PAIR = -1
"""Stands for no pair among the numbers of a row's."""


_BALANCE = 3
"""Positions by which a pair may be longer for one of unequal room less."""

_NEVER = np.iinfo(np.int32).min


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
        groups: pair numbers and the weight they are shown with; see `plan_epoch`.
        row_length: positions of a row on either side.
        batch_rows: R, rows of a batch.
        pool_batches: how many batches a pool is large enough for.
        seed: of the run.
        epoch: counted from 0.

    Returns:
        Of every batch the pair numbers of its rows [R, P], in the order of training; `NO_PAIR` past
        the last of a row. Rows that are left empty at the end are spread over all batches.

    Raises:
        ConfigError: for a pair that no row holds.
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
    bounds = [len(rows) * number // batches for number in range(batches + 1)] if batches else []
    return [
        _table([rows[i] for i in order[start:end]], batch_rows)
        for start, end in itertools.pairwise(bounds)
    ]


def pack(source: Indices, target: Indices, row_length: int) -> list[Indices]:
    """Put pairs into few rows, which are filled one after the other.

    A row takes the longest pair that leaves equal room on both sides. Packing by the lengths of the
    longer sides (best fit decreasing) left 5.6 % of Multi30k's rows empty, this leaves 1.4 %, of
    which 0.6 % are there because its sources are shorter than its targets.

    Args:
        source: positions of the sources [n], at most `row_length`.
        target: of the targets [n].
        row_length: positions of a row on either side.

    Returns:
        The places of each row's pairs among the n.
    """
    # Sizes in few bytes: a pair takes some 15 µs to choose among a thousand kinds.
    kinds, kind, left = np.unique(
        np.stack([source, target], 1).astype(np.int32),
        axis=0,
        return_inverse=True,
        return_counts=True,
    )
    waiting = np.split(np.argsort(kind.reshape(-1), kind="stable"), np.cumsum(left)[:-1])
    sources, targets = np.ascontiguousarray(kinds.T)
    longer, ahead = np.maximum(sources, targets), sources - targets
    rows, taken = [], 0
    while taken < len(source):
        row, source_room, target_room = [], row_length, row_length
        there = left > 0
        while True:
            fits = there & (sources <= source_room) & (targets <= target_room)
            apart = np.abs(ahead - (source_room - target_room))
            chosen = int(np.where(fits, longer - _BALANCE * apart, _NEVER).argmax())
            if not fits[chosen]:
                break
            left[chosen] -= 1
            there[chosen] = left[chosen] > 0
            row.append(waiting[chosen][left[chosen]])
            source_room -= int(sources[chosen])
            target_room -= int(targets[chosen])
        rows.append(np.array(row))
        taken += len(row)
    return rows


def _table(rows: Sequence[Indices], count: int) -> Indices:
    """Pair numbers of `count` rows, of which the last may be empty, as one array."""
    table = np.full((count, max(map(len, rows))), NO_PAIR, np.int64)
    for line, row in zip(table, rows, strict=False):
        line[: len(row)] = row
    return table
