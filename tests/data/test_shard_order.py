"""The order of streamed examples: what each epoch shows, and that any block can be sought."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.batch_plan import tempered
from heedful.data.shard_order import ShardOrder

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)  # examples of the shards of a corpus


def order_of(
    sizes: list[list[int]], weights: list[float], blocks: int = 3, window: int = 4, seed: int = 1
) -> ShardOrder:
    starts = [np.cumsum([0, *each]) for each in sizes]
    return ShardOrder(starts, weights, blocks=blocks, shuffle_shards=window, seed=seed)


def epoch_of(order: ShardOrder, epoch: int = 0) -> list[list[int]]:
    return [order.block(epoch, block).tolist() for block in range(order.blocks)]


def shown_in(order: ShardOrder, epoch: int = 0) -> list[int]:
    return [number for block in epoch_of(order, epoch) for number in block]


@given(
    st.lists(SIZES, min_size=1, max_size=3),
    st.integers(1, 8),
    st.integers(1, 30),
    st.integers(0, 2**63 - 1),
    st.integers(0, 5),
)
def test_an_epoch_shows_every_example_once(sizes, blocks, window, seed, epoch) -> None:
    order = order_of(sizes, [1.0] * len(sizes), blocks, window, seed)
    shown = shown_in(order, epoch)
    assert sorted(shown) == list(range(sum(map(sum, sizes)))) == list(range(len(order)))


@given(
    SIZES,
    SIZES,
    st.floats(0, 3).filter(bool),
    st.floats(0, 3).filter(bool),
    st.integers(1, 8),
)
def test_weights_are_kept_to_half_an_example(first, second, one, other, blocks) -> None:
    order = order_of([first, second], [one, other], blocks)
    counts = Counter(shown_in(order))
    for numbers, weight in (
        (range(sum(first)), one),
        (range(sum(first), sum(first) + sum(second)), other),
    ):
        shown = [counts[number] for number in numbers]
        assert abs(sum(shown) - weight * len(shown)) <= 0.5
        assert all(int(weight) <= each <= int(weight) + 1 for each in shown)


@given(st.lists(SIZES, min_size=2, max_size=4), st.integers(1, 8))
def test_every_block_has_the_same_share_of_each_corpus(sizes, blocks) -> None:
    order = order_of(sizes, [1.5] * len(sizes), blocks)
    for block in epoch_of(order):
        corpora = np.searchsorted(order.bounds, block, side="right") - 1
        for number, sequence in enumerate(order.sequences):
            assert abs(np.count_nonzero(corpora == number) - len(sequence) / blocks) < 1


def test_a_block_depends_on_seed_epoch_and_block_alone() -> None:
    sizes = [[10] * 12, [3]]
    backwards = order_of(sizes, [1, 7], blocks=4)
    last_first = [backwards.block(2, block).tolist() for block in (3, 2, 1, 0)]
    assert epoch_of(order_of(sizes, [1, 7], blocks=4), 2) == last_first[::-1]
    other_epoch = epoch_of(order_of(sizes, [1, 7], blocks=4), 1)
    other_seed = epoch_of(order_of(sizes, [1, 7], blocks=4, seed=2), 2)
    assert all(a != b for a, b in zip(last_first[::-1], other_epoch, strict=True))
    assert all(a != b for a, b in zip(last_first[::-1], other_seed, strict=True))


def test_shards_of_a_window_are_shuffled_together() -> None:
    order = order_of([[100] * 40], [1.0], blocks=10, window=8)
    first = order.block(0, 0) // 100
    counts = np.unique(first, return_counts=True)[1]
    assert len(counts) == 8  # 400 examples of 8 shards, not of 4
    assert 25 < counts.min() < counts.max() < 80
    alone = order_of([[100] * 40], [1.0], blocks=10, window=1)
    assert len(np.unique(alone.block(0, 0) // 100)) == 4


def test_a_partial_epoch_takes_every_example_equally_often() -> None:
    """Also that of a short shard: 1,000 epochs, within five standard deviations."""
    order = order_of([[9, 1]], [0.1], blocks=1, window=1)
    counts = Counter(n for epoch in range(1000) for n in shown_in(order, epoch))
    assert sum(counts.values()) == 1000
    limit = 5 * (1000 * 0.1 * 0.9) ** 0.5
    assert all(abs(counts[number] - 100) < limit for number in range(10))


def test_temperature_raises_small_corpora() -> None:
    assert tempered([900, 100], [1.0, 2.0], 1) == (1.0, 2.0)
    sizes, weights = [10**6, 10**4, 10**2], [1.0, 1.0, 2.0]
    for temperature in (0.5, 2, 5):
        found = tempered(sizes, weights, temperature)
        shown = [size * weight for size, weight in zip(sizes, found, strict=True)]
        wanted = [(n * w) ** (1 / temperature) for n, w in zip(sizes, weights, strict=True)]
        assert sum(shown) == pytest.approx(10**6 + 10**4 + 200)
        for each, other in zip(shown, wanted, strict=True):
            assert each / sum(shown) == pytest.approx(other / sum(wanted))
    equal = tempered(sizes, weights, 1e6)
    assert equal[2] * 100 == pytest.approx(equal[0] * 10**6, rel=1e-4)
    assert tempered([0, 5], [1.0, 1.0], 2) == (1.0, 1.0)
