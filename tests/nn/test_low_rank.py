"""Parametrised weights, against sums written out."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

from heedful.nn.linear_layers import FusedLinear
from heedful.nn.low_rank import LowRank, NewRows


@settings(max_examples=40)
@given(
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    chosen=st.integers(0, 15),
    rank=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_chosen_maps_get_their_product_and_the_others_nothing(
    widths: list[int], chosen: int, rank: int, seed: int
) -> None:
    torch.manual_seed(seed)
    names = [f"map{i}" for i in range(len(widths))]
    layer = FusedLinear(5, dict(zip(names, widths, strict=True)), bias=True)
    before = layer.weight.detach().clone()
    x = torch.randn(2, 5)
    plain = layer(x)
    starts = [sum(widths[:i]) for i in range(len(widths))]
    maps = {
        name: (start, start + width)
        for i, (name, start, width) in enumerate(zip(names, starts, widths, strict=True))
        if chosen >> i & 1
    }
    change = LowRank(maps, 5, rank, 0.5)
    parametrize.register_parametrization(layer, "weight", change)
    assert all(torch.equal(a, b) for a, b in zip(layer(x), plain, strict=True))
    expected = before.clone()
    for name, (start, stop) in maps.items():
        nn.init.normal_(change.up[name])
        for row in range(start, stop):
            for column in range(5):
                products = [
                    change.up[name][row - start, r] * change.down[name][r, column]
                    for r in range(rank)
                ]
                expected[row, column] += 0.5 * sum(products)
    torch.testing.assert_close(layer.weight, expected, rtol=1e-5, atol=1e-5)
    outside = torch.ones(len(before), dtype=torch.bool)
    for start, stop in maps.values():
        outside[start:stop] = False
    assert torch.equal(layer.weight[outside], before[outside])


def test_a_sum_is_not_computed_in_lower_precision() -> None:
    layer = nn.Linear(8, 8)
    change = LowRank({"a": (0, 8)}, 8, 2, 1.0)
    nn.init.normal_(change.up["a"])
    parametrize.register_parametrization(layer, "weight", change)
    whole = layer.weight
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.weight, whole)


@given(before=st.integers(0, 3), new=st.integers(1, 3), after=st.integers(0, 3))
@settings(max_examples=20)
def test_only_new_rows_of_a_table_learn(before: int, new: int, after: int) -> None:
    module = nn.Module()
    module.table = nn.Parameter(torch.randn(before + new + after, 2), requires_grad=False)
    whole = module.table.detach().clone()
    rows = NewRows(whole[before : before + new], before)
    parametrize.register_parametrization(module, "table", rows, unsafe=True)
    assert torch.equal(module.table, whole)
    module.table.sum().backward()
    assert torch.equal(rows.rows.grad, torch.ones(new, 2))
    assert module.parametrizations.table.original.numel() == 2 * (before + after)
