"""The order of an epoch: every pair, within budget, the same for the same seed and epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.batch_plan import Indices, plan_epoch

BUDGET = 60
lengths = st.lists(st.tuples(st.integers(1, BUDGET - 1), st.integers(1, BUDGET - 1)), max_size=200)
seeds = st.integers(0, 2**63 - 1)


def plan(
    pairs: list[tuple[int, int]],
    groups: list[tuple[Indices, float]] | None = None,
    *,
    seed: int = 1,
    epoch: int = 0,
    batch_tokens: int = BUDGET,
    pool_batches: int = 5,
) -> list[list[int]]:
    sides = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    batches = plan_epoch(
        sides.max(axis=1) + 1,
        [(np.arange(len(pairs)), 1.0)] if groups is None else groups,
        batch_tokens=batch_tokens,
        pool_batches=pool_batches,
        seed=seed,
        epoch=epoch,
        ties=(sides[:, 0], sides[:, 1]),
    )
    return [batch.tolist() for batch in batches]


@given(pairs=lengths, seed=seeds, epoch=st.integers(0, 1000))
@settings(max_examples=80)
def test_every_pair_once_and_within_budget(
    pairs: list[tuple[int, int]], seed: int, epoch: int
) -> None:
    batches = plan(pairs, seed=seed, epoch=epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(pairs)))
    for batch in batches:
        assert batch
        longest = max(max(pairs[i]) + 1 for i in batch)
        assert longest * len(batch) <= BUDGET
    assert batches == plan(pairs, seed=seed, epoch=epoch)


@given(pairs=lengths, weights=st.tuples(*[st.floats(0.01, 3.5)] * 2), split=st.floats(0, 1))
@settings(max_examples=60)
def test_weights_are_copies_and_a_share(
    pairs: list[tuple[int, int]], weights: tuple[float, float], split: float
) -> None:
    cut = int(split * len(pairs))
    groups = [np.arange(cut), np.arange(cut, len(pairs))]
    batches = plan(pairs, list(zip(groups, weights, strict=True)))
    shown = Counter(i for batch in batches for i in batch)
    for group, weight in zip(groups, weights, strict=True):
        counts = [shown[i] for i in group]
        assert all(count in (int(weight), int(weight) + 1) for count in counts)
        assert abs(sum(counts) - weight * len(group)) <= 0.5


def test_shares_differ_between_epochs() -> None:
    pairs = [(5, 5)] * 100
    group = [(np.arange(100), 0.5)]
    shown = [frozenset(i for b in plan(pairs, group, epoch=e) for i in b) for e in range(4)]
    assert len(set(shown)) == 4
    assert frozenset().union(*shown) != shown[0]


def natural_pairs(count: int) -> list[tuple[int, int]]:
    """Lengths like those of sentences: skewed, the sides correlated."""
    random = np.random.default_rng(0)
    source = random.gamma(6, 2.4, count).astype(int) + 2
    target = np.maximum(1, source + random.normal(0, 2, count).astype(int))
    return list(zip(source.tolist(), target.tolist(), strict=True))


@pytest.mark.parametrize("batch_tokens", [1024, 4096])
def test_little_is_padding(batch_tokens: int) -> None:
    pairs = natural_pairs(20_000)
    batches = plan(pairs, batch_tokens=batch_tokens, pool_batches=100)
    sides = np.array(pairs) + 1
    real = sum(sides[batch].sum() for batch in batches)
    padded = sum(len(batch) * sides[batch].max(axis=0).sum() for batch in batches)
    assert 1 - real / padded < 0.08
    used = [len(b) * sides[b].max() for b in batches]
    assert np.mean(used) > 0.95 * batch_tokens


def test_seed_and_epoch_change_the_order() -> None:
    pairs = natural_pairs(500)
    orders = [
        plan(pairs, seed=seed, epoch=epoch, batch_tokens=200)
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]
    ]
    for i, order in enumerate(orders):
        assert order not in orders[:i]


def test_batches_come_in_random_order_of_length() -> None:
    pairs = natural_pairs(5000)
    longest = [max(max(pairs[i]) for i in b) for b in plan(pairs, batch_tokens=500)]
    steps = np.sign(np.diff(longest))
    assert 0.3 < np.mean(steps > 0) < 0.7


def test_the_order_is_the_same_on_every_machine() -> None:
    # Written down once: a resumed run must meet the order it was started with.
    pairs = [(1 + i % 7, 1 + i % 5) for i in range(20)]
    assert plan(pairs, seed=3, epoch=2, batch_tokens=30, pool_batches=2) == [
        [6, 13],
        [0, 15, 16, 2, 17, 3],
        [1, 7, 10, 8],
        [5, 12, 19],
        [11, 18, 14, 9, 4],
    ]
