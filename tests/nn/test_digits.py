"""Float32 products by registers for matrices of 8-bit integers: as exact as float32's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heedful.nn.native import library
from heedful.nn.native.product import RightSide, turned_product

KERNELS = library.kernels()
pytestmark = pytest.mark.skipif(
    KERNELS is None or not KERNELS.heedful_has_tiles(),
    reason="this processor has no registers for matrices",
)
SPAN = 64
"""Numbers of a row that share a scale."""


def multiplied(left: Tensor, right: Tensor) -> Tensor:
    out = torch.full((len(left), right.shape[1]), 7.0)
    return RightSide(right, torch.float32).multiplied(left.contiguous(), out)


def turned(left: Tensor, right: Tensor) -> Tensor:
    out = torch.full((len(left), right.shape[1]), 7.0)
    return turned_product(left.t().contiguous(), right.contiguous(), out)


def by_rows(left: Tensor, right: Tensor) -> Tensor:
    """With numbers of the right side standing side by side along the depth."""
    return multiplied(left, right.t().contiguous().t())


WAYS = [multiplied, by_rows, turned]


def error(found: Tensor, wanted: Tensor) -> float:
    """Root of the mean square, as a share of what is wanted."""
    return float((found.double() - wanted).norm() / wanted.norm())


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [512, 2048, 4100])
def test_errors_are_no_larger_than_those_of_a_float32_product(way, depth):
    left, right = draw(90, depth, seed=depth), draw(depth, 100, seed=depth + 1)
    wanted = left.double() @ right.double()
    assert error(way(left, right), wanted) <= 1.1 * error(left @ right, wanted)


@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 40),
    depth=st.integers(1, 300),
    seed=st.integers(0, 999),
)
@settings(max_examples=40)
@pytest.mark.parametrize("way", WAYS)
def test_no_product_errs_by_more_than_is_said(way, rows, width, depth, seed):
    """In a span by at most 2^-22 of its largest numbers for each, whatever they are."""
    spread = torch.exp(3 * draw(2, depth, seed=seed + 1))
    left = draw(rows, depth, seed=seed) * spread[0]
    right = draw(depth, width, seed=seed + 2) * spread[1][:, None]
    found = way(left, right).double()
    allowed = torch.zeros(rows, width, dtype=torch.float64)
    for k in range(0, depth, SPAN):
        most_left = left[:, k : k + SPAN].abs().amax(1).double()
        most_right = right[k : k + SPAN].abs().amax(0).double()
        count = min(SPAN, depth - k)
        allowed += (count * 2**-22) * most_left[:, None] * most_right
    summed = left.double().abs() @ right.double().abs()
    allowed += (depth / SPAN + 4) * 2**-24 * summed  # sums of spans are float32
    assert bool(((found - left.double() @ right.double()).abs() <= allowed).all())


@pytest.mark.parametrize("way", WAYS)
def test_each_span_has_a_scale_of_its_own(way):
    left, right = draw(20, 3 * SPAN, seed=1), draw(3 * SPAN, 30, seed=2)
    left[:, :SPAN] *= 1e20
    left[:, 2 * SPAN :] *= 1e-20
    right[:SPAN] *= 1e-20
    right[2 * SPAN :] *= 1e20
    wanted = left.double() @ right.double()
    assert error(way(left, right), wanted) < 1e-6
    right[:SPAN] = 0.0
    right[SPAN : 2 * SPAN] = 0.0
    wanted = left.double() @ right.double()
    assert error(way(left, right), wanted) < 1e-6


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [1.0, -1.0, 0.99609375, 1.5, 2.0**-50, 3e15])
def test_sums_of_the_largest_digits_do_not_overflow(way, value):
    depth = 9000
    left, right = torch.full((17, depth), value), torch.full((depth, 18), -value)
    wanted = torch.full((17, 18), -float(depth) * value * value, dtype=torch.float64)
    assert error(way(left, right), wanted) < 1e-6


@pytest.mark.parametrize("way", WAYS)
def test_numbers_too_small_count_as_zero_and_large_ones_do_not_spill(way):
    left, right = torch.full((3, 70), 1e-44), torch.full((70, 5), 1e30)
    assert bool((way(left, right).abs() <= 70 * 1e-44 * 1e30).all())
    left = torch.full((3, 70), 1e30)
    found = way(left, torch.full((70, 5), 1e-30))
    assert torch.allclose(found, torch.full((3, 5), 70.0), rtol=1e-6)
    assert bool((way(left, torch.zeros(70, 5)) == 0.0).all())
    small = way(torch.full((3, 70), 2.0**-110), torch.full((70, 5), 2.0**100))
    assert torch.allclose(small, torch.full((3, 5), 70 * 2.0**-10), rtol=1e-3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_infinite_keeps_its_sign_and_its_place(way, sign):
    left, right = draw(33, 130, seed=3), draw(130, 40, seed=4)
    left[4, 100] = sign * torch.inf
    plain = way(left.masked_fill(left.isinf(), 0.0), right)
    found = way(left, right)
    assert torch.equal(found[4], sign * torch.inf * right[100].sign())
    others = [i for i in range(33) if i != 4]
    assert torch.equal(found[others], plain[others])
    left, right = draw(33, 130, seed=5), draw(130, 40, seed=6)
    right[70, 9] = sign * torch.inf
    found = way(left, right)
    assert torch.equal(found[:, 9], sign * torch.inf * left[:, 70].sign())
    assert bool(found[:, [i for i in range(40) if i != 9]].isfinite().all())


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_number_stays_none_even_beside_what_is_infinite(way):
    left, right = draw(20, 130, seed=3), draw(130, 40, seed=4)
    left[4, 100], left[4, 101] = torch.nan, torch.inf
    right[2, 7] = torch.nan
    found = way(left, right)
    assert bool(found[4].isnan().all())
    assert bool(found[:, 7].isnan().all())
    found[4], found[:, 7] = 0.0, 0.0
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("way", WAYS)
def test_a_row_depends_on_no_other(way):
    left, right = draw(100, 200, seed=8), draw(200, 90, seed=9)
    whole = way(left, right)
    assert torch.equal(way(left[37:59], right), whole[37:59])
    assert torch.equal(way(left, right[:, 5:50].contiguous()), whole[:, 5:50])
