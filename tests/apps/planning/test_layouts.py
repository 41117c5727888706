"""Layouts and their groups, against lists of all ranks and their hosts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.planning.layouts import Layout, layouts


def groups_by_rank(layout: Layout, axes: tuple[str, ...]) -> list[list[int]]:
    """Ranks that differ in these dimensions only, written out; tensor changes fastest."""
    order = ("data", "shard", "context", "tensor")
    ranges = [range(getattr(layout, axis)) for axis in order]
    ranks = {place: rank for rank, place in enumerate(itertools.product(*ranges))}
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, rank in ranks.items():
        fixed = tuple(at for axis, at in zip(order, place, strict=True) if axis not in axes)
        groups.setdefault(fixed, []).append(rank)
    return list(groups.values())


@pytest.mark.parametrize("devices", [1, 2, 6, 8, 12, 64])
def test_every_factorisation_is_there_once(devices: int) -> None:
    found = list(layouts(devices))
    every = {
        numbers
        for numbers in itertools.product(range(1, devices + 1), repeat=3)
        if devices % (numbers[0] * numbers[1] * numbers[2]) == 0
    }
    assert len(found) == len(set(found)) == len(every)
    assert {layout[:3] for layout in found} == every
    assert all(layout.devices == devices for layout in found)
    assert found[0] == Layout(data=devices)


@given(
    sizes=st.tuples(*[st.sampled_from([1, 2, 4])] * 4),
    per_host=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_groups_are_those_of_numbered_ranks(
    sizes: tuple[int, int, int, int], per_host: int
) -> None:
    layout = Layout(*sizes)
    cases = {
        ("tensor",): layout.tensor_group(per_host),
        ("context",): layout.context_group(per_host),
        ("shard",): layout.shard_group(per_host),
        ("data", "context"): layout.copies_group(per_host),
    }
    for axes, group in cases.items():
        for ranks in groups_by_rank(layout, axes):
            hosts = [rank // per_host for rank in ranks]
            assert group.size == len(ranks)
            assert group.in_host == max(hosts.count(host) for host in hosts)


def test_layouts_are_described_by_what_is_divided() -> None:
    assert Layout().describe() == "one device"
    assert Layout(data=4, tensor=2).describe() == "data 4 × tensor 2"
