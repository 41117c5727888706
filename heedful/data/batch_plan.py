"""The batches of an epoch as a function of seed and epoch: no state, so a run resumes anywhere.

Token budgets count padding. Pairs are shuffled, cut into pools, sorted by length within a pool, cut
into batches, and the batches shuffled. NumPy keeps the raw bits of its generators stable between
versions but not what is drawn from them, so only the bits are used. Nothing here needs PyTorch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heedful.data.corpus_spec import DataSpec
from heedful.errors import ConfigError, DataError

Indices = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.integer]

NO_PAIR = -1
"""Padding in a row's array of pair numbers."""


_BALANCE = 3
"""Positions of a pair's length that one position of imbalance between the sides outweighs."""

_NEVER = np.iinfo(np.int32).min  # score of a pair that does not fit


def plan_epoch(
    sizes: Sizes,
    groups: Sequence[tuple[Indices, float]],
    *,
    batch_tokens: int,
    pool_batches: int,
    seed: int,
    epoch: int,
    ties: Sequence[Sizes] = (),
) -> list[Indices]:
    """Cut an epoch into batches.

    The largest size in a batch times its number of examples is at most `batch_tokens`.

    Args:
        sizes: positions of every example [n] on its longer side, special tokens counted.
        groups: example numbers with their sampling weight: its integer part gives full copies,
            its fraction a random share, drawn anew every epoch.
        batch_tokens: maximum number of positions of a batch on its longer side, padding counted.
        pool_batches: size of a pool in batches.
        seed: seed of the run.
        epoch: number of the epoch, from 0.
        ties: sort keys [n] each for examples of equal size, the most significant one last.

    Returns:
        The example numbers of every batch, in the order of training.
    """
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
    # Sizes may be stored in 16 or 32 bits, where sums over a pool would overflow.
    wide: Indices = sizes.astype(np.int64)
    batches: list[Indices] = []
    # Sorting all of Multi30k leaves 5 % padding but a fixed order, random batches leave 54 %.
    # Sorting within pools of 50 batches leaves 14 % (docs/design/log.md).
    for pool in shuffled_pools(wide, groups, batch_tokens * pool_batches, bits):
        assert wide[pool].max() <= batch_tokens, "an example that no batch holds"
        # `lexsort` takes its most significant key last: the size.
        pool = pool[np.lexsort([key[pool] for key in (*ties, wide)])]
        batches.extend(_cut(pool, wide[pool], batch_tokens))
    return [batches[i] for i in shuffle(np.arange(len(batches)), bits)]


def nothing_shown() -> DataError:
    """Return the error for weights that leave an epoch without any example."""
    return DataError(
        "An epoch shows no example of any corpus",
        where="data.train",
        remedy="Raise the weights of the corpora (--weights)",
    )


def shuffled_pools(
    sizes: Indices,
    groups: Sequence[tuple[Indices, float]],
    positions: int,
    bits: np.random.PCG64,
) -> list[Indices]:
    """Return the example numbers of an epoch in random order, cut into pools of similar size.

    Args:
        sizes: positions of every example [n].
        groups: example numbers with their sampling weight; see `plan_epoch`.
        positions: positions of a pool, approximately.
        bits: generator that decides the order and the random share of a fractional weight.
    """
    chosen = [_copies(indices, weight, bits) for indices, weight in groups]
    order = shuffle(np.concatenate(chosen) if chosen else np.empty(0, np.int64), bits)
    return _pools(order, sizes[order], positions)


def tempered(
    sizes: Sequence[int], weights: Sequence[float], temperature: float
) -> tuple[float, ...]:
    """Return sampling weights that make a corpus's share proportional to its size^(1 / T).

    The epoch keeps its length. A temperature of 1 changes nothing, a high one gives all corpora the
    same share (Arivazhagan 2019, "Massively Multilingual Neural Machine Translation in the Wild").

    Args:
        sizes: examples of every corpus.
        weights: copies of each corpus in an epoch before tempering; they multiply the sizes.
        temperature: temperature T, above 0.
    """
    if temperature == 1:
        return tuple(weights)
    shown = [size * weight for size, weight in zip(sizes, weights, strict=True)]
    largest = max(shown, default=0)
    # Sizes are divided by the largest, so that a small T cannot overflow.
    powers = [(each / largest) ** (1 / temperature) if each else 0.0 for each in shown]
    return tuple(
        sum(shown) * power / sum(powers) / size if size else weight
        for size, weight, power in zip(sizes, weights, powers, strict=True)
    )


def plan_files(
    sizes: Sizes, bounds: Sequence[int] | Indices, data: DataSpec, *, seed: int, epoch: int
) -> list[Indices]:
    """Cut an epoch of the examples of several files into batches; see `plan_epoch`.

    Args:
        sizes: positions of every example [n], special tokens counted.
        bounds: number of the first example of every training file, and the number of examples.
        data: weights of the files and their temperature, token budget and size of pools.
        seed: seed of the run.
        epoch: number of the epoch, from 0.
    """
    weights = tempered(
        [end - start for start, end in itertools.pairwise(bounds)],
        [corpus.weight for corpus in data.train],
        data.temperature,
    )
    groups = [
        (np.arange(start, end, dtype=np.int64), weight)
        for start, end, weight in zip(bounds[:-1], bounds[1:], weights, strict=True)
    ]
    budget, pool = data.budget, data.pool_batches
    return plan_epoch(sizes, groups, batch_tokens=budget, pool_batches=pool, seed=seed, epoch=epoch)


def plan_once(
    sizes: Sizes, data: DataSpec, chosen: Indices | None = None, ties: Sequence[Sizes] = ()
) -> list[Indices]:
    """Cut the chosen examples into batches that hold each of them once, the same in every call.

    Args:
        sizes: positions of every example [n], special tokens counted.
        data: token budget.
        chosen: numbers of the examples; all if None.
        ties: sort keys for examples of equal size; see `plan_epoch`.
    """
    chosen = np.arange(len(sizes), dtype=np.int64) if chosen is None else chosen
    # All examples are one pool: the order does not matter in validation, and padding is least.
    return plan_epoch(
        sizes,
        [(chosen, 1.0)],
        batch_tokens=data.budget,
        pool_batches=max(1, len(sizes)),
        seed=0,
        epoch=0,
        ties=ties,
    )


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
    """Cut an epoch into batches of rows, each of which holds several pairs.

    A row has equally many positions for sources and for targets, and is filled with pairs that suit
    both sides (vector bin packing). Pairs are shuffled and cut into pools before, and rows are
    shuffled after packing.

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
    # Empty rows are spread evenly: otherwise the last update of an epoch would have only a few
    # pairs.
    bounds = [len(rows) * number // batches for number in range(batches + 1)] if batches else []
    return [
        _table([rows[i] for i in order[start:end]], batch_rows)
        for start, end in itertools.pairwise(bounds)
    ]


def pack(source: Indices, target: Indices, row_length: int) -> list[Indices]:
    """Pack pairs into few rows, which are filled one after the other.

    A row takes the longest pair that leaves equal space on both sides. Packing by the lengths of
    the longer sides (best fit decreasing) left 5.6 % of Multi30k's rows empty, this function 1.4 %,
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
    # Numbers of the pairs of each kind.
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


def _copies(indices: Indices, weight: float, bits: np.random.PCG64) -> Indices:
    whole = int(weight)
    share = round((weight - whole) * len(indices))
    return np.concatenate([np.tile(indices, whole), shuffle(indices, bits)[:share]])


def shuffle(values: Indices, bits: np.random.PCG64) -> Indices:
    """Return the values in a random order that depends on nothing but the bits."""
    # Sorted random keys, since `Generator.permutation` may change between versions of NumPy.
    keys = np.atleast_1d(bits.random_raw(len(values)))
    return values[np.argsort(keys, kind="stable")]


def uniform(bits: np.random.PCG64, count: int) -> npt.NDArray[np.float64]:
    """Return random numbers in [0, 1), uniformly distributed [count]."""
    # Only the upper 53 bits are used, as many as a float64's mantissa holds exactly.
    high: npt.NDArray[np.uint64] = np.atleast_1d(bits.random_raw(count)) >> np.uint64(11)
    return high.astype(np.float64) * 2.0**-53


def _pools(order: Indices, sizes: Indices, positions: int) -> list[Indices]:
    """Cut the order into parts of about `positions` positions each."""
    ends = np.cumsum(sizes)
    if not len(ends):
        return []
    cuts = np.searchsorted(ends, np.arange(positions, ends[-1], positions))
    return [pool for pool in np.split(order, cuts) if len(pool)]


def _cut(pool: Indices, sizes: Indices, budget: int) -> list[Indices]:
    """Cut a pool, sorted by ascending size, into the largest batches that the budget allows."""
    batches = []
    start = 0
    while start < len(pool):
        # At most budget // size pairs of that size or longer fit; the window shrinks as sizes grow.
        window = sizes[start : start + budget // int(sizes[start])]
        fits = np.arange(1, len(window) + 1) * window <= budget
        count = int(np.count_nonzero(fits))
        batches.append(pool[start : start + count])
        start += count
    return batches


def _table(rows: Sequence[Indices], count: int) -> Indices:
    """Return the pair numbers of `count` rows, of which the last may be empty, as one array."""
    table = np.full((count, max(map(len, rows))), NO_PAIR, np.int64)
    for line, row in zip(table, rows, strict=False):
        line[: len(row)] = row
    return table
