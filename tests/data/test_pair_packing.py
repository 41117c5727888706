"""Rows of several pairs: each pair once, no row too full, one shape, and what stands where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.batch_plan import NO_PAIR, pack, plan_rows
from heedful.data.batches import PairBatch, make_rows, numbers_in
from heedful.errors import ConfigError

LENGTH, ROWS = 20, 3
sizes = st.lists(st.tuples(st.integers(1, LENGTH), st.integers(1, LENGTH)), max_size=120)


def plan(
    pairs: Sequence[tuple[int, int]],
    weights: Sequence[float] = (1.0,),
    *,
    pool_batches: int = 4,
    seed: int = 1,
    epoch: int = 0,
) -> list[list[list[int]]]:
    """Batches of rows of pair numbers; each batch checked to be a table of its rows."""
    sides = np.array(pairs, np.int32).reshape(-1, 2)
    parts = np.array_split(np.arange(len(pairs)), len(weights))
    batches = plan_rows(
        (sides[:, 0], sides[:, 1]),
        list(zip(parts, weights, strict=True)),
        row_length=LENGTH,
        batch_rows=ROWS,
        pool_batches=pool_batches,
        seed=seed,
        epoch=epoch,
    )
    found = []
    for batch in batches:
        assert batch.shape[0] == ROWS
        real = (batch != NO_PAIR).sum(1)
        assert all((row[count:] == NO_PAIR).all() for row, count in zip(batch, real, strict=True))
        found.append([row[:count].tolist() for row, count in zip(batch, real, strict=True)])
    return found


@given(pairs=sizes, seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_every_pair_once_and_no_row_too_full(
    pairs: list[tuple[int, int]], seed: int, epoch: int
) -> None:
    batches = plan(pairs, seed=seed, epoch=epoch)
    rows = [row for batch in batches for row in batch]
    assert sorted(i for row in rows for i in row) == list(range(len(pairs)))
    for row in rows:
        assert all(sum(pairs[i][side] for i in row) <= LENGTH for side in (0, 1))
    filled = [sum(map(bool, batch)) for batch in batches]
    assert len(batches) == -(-sum(filled) // ROWS)
    assert not filled or max(filled) - min(filled) <= 1  # empty rows are spread
    assert batches == plan(pairs, seed=seed, epoch=epoch)


@given(pairs=sizes.filter(bool), weights=st.tuples(*[st.floats(0.01, 3.5)] * 2))
@settings(max_examples=30, deadline=None)
def test_weights_are_copies_and_a_share(
    pairs: list[tuple[int, int]], weights: tuple[float, float]
) -> None:
    shown = Counter(i for batch in plan(pairs, weights) for row in batch for i in row)
    for part, weight in zip(np.array_split(np.arange(len(pairs)), 2), weights, strict=True):
        counts = [shown[int(i)] for i in part]
        assert all(int(weight) <= count <= int(weight) + 1 for count in counts)
        assert sum(counts) == int(weight) * len(part) + round((weight - int(weight)) * len(part))


def test_no_two_rows_of_a_pool_would_fit_into_one() -> None:
    """A row is full before the next is begun."""
    draw = np.random.default_rng(0)
    source, target = draw.integers(1, LENGTH + 1, (2, 400))
    rows = pack(source, target, LENGTH)
    rooms = [LENGTH - np.array([source[row].sum(), target[row].sum()]) for row in rows]
    for number, room in enumerate(rooms):
        later = np.concatenate([*rows[number + 1 :], np.empty(0, np.int64)])
        assert not ((source[later] <= room[0]) & (target[later] <= room[1])).any()


def test_sentences_fill_their_rows() -> None:
    """Lengths as those of short sentences, whose sides differ by a few tokens."""
    draw = np.random.default_rng(0)
    source = draw.integers(5, 30, 3000)
    target = np.clip(source + draw.integers(-4, 5, 3000), 1, None)
    rows = pack(source, target, 128)
    bound = -(-max(source.sum(), target.sum()) // 128)
    assert len(rows) <= 1.02 * bound


def test_epochs_and_seeds_differ_and_the_order_is_pinned() -> None:
    pairs = [(1 + i % 9, 1 + i * 7 % 11) for i in range(24)]
    plans = [plan(pairs, seed=seed, epoch=epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert all(one != two for n, one in enumerate(plans) for two in plans[:n])
    assert plan(pairs[:9], seed=3, epoch=2) == [
        [[6, 5], [1, 8], []],
        [[3], [7, 4, 0, 2], []],
    ]


def test_a_pair_that_no_row_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="21 positions fits no row of 20") as error:
        plan([(3, 4), (2, 21)])
    assert error.value.where == "data.packed_length"


@dataclass(frozen=True)
class Numbered:
    """Pairs by number, as corpora give them, of tokenizers with and without a first token."""

    pairs: list[tuple[list[int], list[int]]]
    first: tuple[int, ...] = ()

    @property
    def tokenizers(self) -> Any:
        source = SimpleNamespace(first=self.first, last=(2,), pad=0)
        return SimpleNamespace(source=source, target=SimpleNamespace(bos=1, eos=2, pad=0))

    def ids_of(self, side: str, indices: Any) -> list[Any]:
        column = ("source", "target").index(side)
        return [np.array(self.pairs[i][column], np.int32) for i in indices]

    def text_of(self, i: int) -> tuple[str, str]:
        raise NotImplementedError


def sequences(batch: PairBatch, ids: torch.Tensor, side: str) -> list[list[list[int]]]:
    """Of each row the tokens of each of its segments, in the order of their positions."""
    found = []
    places, parts = getattr(batch, f"{side}_positions"), getattr(batch, f"{side}_segments")
    for row in range(len(ids)):
        real = places[row] >= 0
        assert (parts[row] >= 0).equal(real)
        whole = []
        for number in range(int(parts[row].max()) + 1):
            slots = (parts[row] == number).nonzero()[:, 0]
            assert places[row, slots].tolist() == list(range(len(slots)))
            assert slots.tolist() == list(range(int(slots[0]), int(slots[0]) + len(slots)))
            whole.append(ids[row, slots].tolist())
        assert (ids[row, ~real] == 0).all()
        found.append(whole)
    return found


@pytest.mark.parametrize("first", [(), (7,)])
def test_what_stands_where(first: tuple[int, ...]) -> None:
    pairs = [([10, 11], [20]), ([12], [21, 22, 23]), ([13, 14, 15], [24])]
    rows = np.array([[2, 0], [NO_PAIR, NO_PAIR], [1, NO_PAIR]])
    batch = make_rows(Numbered(pairs, first), rows, 9)
    for tensor in (batch.source, batch.target_input, batch.source_segments):
        assert tensor is not None
        assert tensor.shape == (3, 9)
        assert tensor.dtype == torch.int64
    order = [[pairs[2], pairs[0]], [], [pairs[1]]]
    sources = [[[*first, *s, 2] for s, _ in row] for row in order]
    assert sequences(batch, batch.source, "source") == sources
    inputs = [[[1, *t] for _, t in row] for row in order]
    assert sequences(batch, batch.target_input, "target") == inputs
    outputs = [[[*t, 2] for _, t in row] for row in order]
    assert sequences(batch, batch.target_output, "target") == outputs
    assert batch.target_tokens == int((batch.target_positions >= 0).sum()) == 8
    assert numbers_in(batch.indices).tolist() == [2, 0, 1]
    assert numbers_in(batch.part(1, 3).indices).tolist() == [1]
    assert batch.part(1, 3).target_tokens == 4
