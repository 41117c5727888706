"""Masks: what they show, exact algebra, sound bounds, words and pictures."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import ModelError
from heedful.nn.attention.masks import (
    FAR,
    AllOf,
    AnyOf,
    Causal,
    Everything,
    Mask,
    Prefix,
    SameSegment,
    Window,
)
from heedful.nn.positions import Positions, picture

LINE = Positions.of_self(torch.arange(5)[None])

simple = st.one_of(
    st.just(Everything()),
    st.just(Causal()),
    st.just(SameSegment()),
    st.builds(Window, st.integers(1, 6)),
    st.builds(Prefix, st.integers(0, 6)),
)
masks = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner), st.builds(lambda a, b: a | b, inner, inner)
    ),
    max_leaves=5,
)


@st.composite
def places(draw: st.DrawFn) -> Positions:
    def row(length: int, low: int) -> torch.Tensor:
        numbers = st.lists(st.integers(low, 9), min_size=length, max_size=length)
        return torch.tensor([draw(numbers), draw(numbers)])

    queries, keys = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    return Positions(row(queries, -1), row(keys, -1), row(queries, 0) % 2, row(keys, 0) % 2)


def rows(mask: Mask) -> list[str]:
    return picture(mask, LINE).splitlines()


def test_simple_masks_as_pictures() -> None:
    assert rows(Everything()) == ["■■■■■"] * 5
    assert rows(Causal()) == ["■····", "■■···", "■■■··", "■■■■·", "■■■■■"]
    assert rows(Window(2)) == ["■■···", "■■■··", "·■■■·", "··■■■", "···■■"]
    assert rows(Prefix(2)) == ["■■···"] * 5
    assert rows(Causal() | Prefix(3)) == ["■■■··", "■■■··", "■■■··", "■■■■·", "■■■■■"]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_causal_window_shows_as_many_keys_as_its_size(size: int) -> None:
    assert rows(Causal() & Window(size))[-1].count("■") == size


def test_packed_sequences_do_not_see_each_other() -> None:
    packed = Positions.of_self(torch.tensor([[0, 1, 0, 1, 2]]), torch.tensor([[0, 0, 1, 1, 1]]))
    assert picture(Causal() & SameSegment(), packed).splitlines() == [
        "■····",
        "■■···",
        "··■··",
        "··■■·",
        "··■■■",
    ]


def test_positions_without_segments_are_one_segment() -> None:
    assert rows(SameSegment()) == ["■■■■■"] * 5


def test_segments_of_one_side_only_are_an_error() -> None:
    half = Positions(torch.zeros(1, 1).long(), torch.zeros(1, 1).long(), torch.zeros(1, 1).long())
    with pytest.raises(ModelError, match="segments"):
        half.visible(SameSegment())


@given(masks, masks, places())
def test_algebra_is_exact(one: Mask, other: Mask, at: Positions) -> None:
    assert torch.equal(at.visible(one & other), at.visible(one) & at.visible(other))
    assert torch.equal(at.visible(one | other), at.visible(one) | at.visible(other))


@given(masks, st.integers(0, 9), st.integers(0, 4))
def test_bounds_contain_all_that_is_visible(mask: Mask, lo: int, more: int) -> None:
    queries = torch.arange(lo, lo + more + 1)[None]
    keys = torch.arange(40)[None]
    seen = Positions(queries, keys).visible(mask).any(2).flatten().nonzero().flatten().tolist()
    bounds = mask.bounds(lo, lo + more)
    assert all(any(first <= key <= last for first, last in bounds) for key in seen)
    assert all(0 <= first <= last <= FAR for first, last in bounds)
    gaps = [after - before for (_, before), (after, _) in pairwise(bounds)]
    assert all(gap > 1 for gap in gaps)  # ascending and apart


@given(masks, st.integers(0, 9))
def test_bounds_of_a_single_query_are_exact(mask: Mask, place: int) -> None:
    keys = torch.arange(40)
    at = Positions(torch.tensor([[place]]), keys[None])
    bounds = mask.bounds(place, place)
    within = [any(first <= key <= last for first, last in bounds) for key in keys.tolist()]
    assert at.visible(mask).flatten().tolist() == within


@pytest.mark.parametrize(
    ("mask", "bounds"),
    [
        (Everything(), [(0, FAR)]),
        (Causal(), [(0, 9)]),
        (Window(3), [(3, 11)]),
        (Window(20), [(0, 28)]),
        (Prefix(4), [(0, 3)]),
        (SameSegment(), [(0, FAR)]),
        (Causal() & Window(3), [(3, 9)]),
        (Prefix(2) | (Causal() & Window(3)), [(0, 1), (3, 9)]),
        (Prefix(3) | Window(3), [(0, 11)]),
        (Causal() | Window(3), [(0, 11)]),
        ((Prefix(2) | Window(3)) & Causal(), [(0, 1), (3, 9)]),
        ((Prefix(2) | Window(3)) & Prefix(5), [(0, 1), (3, 4)]),
        (AllOf(()), [(0, FAR)]),
    ],
)
def test_bounds_are_tight(mask: Mask, bounds: list[tuple[int, int]]) -> None:
    assert list(mask.bounds(5, 9)) == bounds


@pytest.mark.parametrize("mask", [Prefix(2) & Window(3), Prefix(0), AnyOf(())])
def test_bounds_of_nothing_are_empty_and_do_not_widen_a_union(mask: Mask) -> None:
    assert mask.bounds(5, 9) == ()
    assert (mask | Window(2)).bounds(5, 9) == ((4, 10),)
    assert (mask & Causal()).bounds(5, 9) == ()


def test_masks_are_values() -> None:
    assert Causal() & Window(3) == Causal() & Window(3)
    assert len({Causal() & Window(3), Causal() & Window(3), Window(3)}) == 2
    assert Causal() & Window(3) & Prefix(1) == AllOf((Causal(), Window(3), Prefix(1)))
    assert Everything() & Causal() == Causal()
    assert Causal() | Everything() == Everything()


def test_masks_are_built_from_settings() -> None:
    spec = AnyOf(parts=(AllOf(parts=(Causal(), Window(size=3))), Prefix(length=2)))
    assert spec == AnyOf((AllOf((Causal(), Window(3))), Prefix(2)))
    assert SameSegment() == SameSegment()


def test_masks_say_what_they_show() -> None:
    assert Causal().describe() == "keys at or before its own position"
    words = (Causal() & Window(3) | Prefix(2)).describe()
    assert "less than 3 positions away" in words
    assert "the first 2 positions" in words
