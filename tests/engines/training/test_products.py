"""Maps of one input, whose gradients come back side by side."""

from __future__ import annotations

import pytest
import torch

from heedful.nn.linear_layers import FusedLinear

from ...on_processor import either_way, on_processor


@pytest.mark.parametrize("order", ["side by side", "exchanged", "apart"])
def test_gradients_of_fused_maps_are_joined_and_not_copied_if_they_lie_side_by_side(order):
    torch.manual_seed(0)
    fused = FusedLinear(3, {"one": 2, "two": 4, "three": 2}, bias=True)
    with on_processor(fused):
        parts = fused(torch.randn(5, 7, 3))
    together = torch.randn(5, 7, 8)
    given = list(together.split([2, 4, 2], dim=-1))
    if order == "exchanged":
        given[0], given[2] = given[2], given[0]
    if order == "apart":
        given[1] = together.clone().split([2, 4, 2], dim=-1)[1]  # alike, in other memory
    arrived = []
    parts[0].grad_fn.next_functions[0][0].register_prehook(lambda g: arrived.append(g[0]))
    torch.autograd.backward(parts, given)
    assert torch.equal(arrived[0], torch.cat(given, -1))
    assert (arrived[0].data_ptr() == together.data_ptr()) == (order == "side by side")
    torch.testing.assert_close(fused.bias.grad, torch.cat(given, -1).sum((0, 1)))


@either_way
def test_fused_maps_have_second_derivatives_and_unused_ones_have_zeros(trained):
    torch.manual_seed(0)
    fused = FusedLinear(3, {"one": 2, "two": 4}, bias=False).double()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)

    def joined(x):
        return torch.cat(fused(x), -1) ** 3  # whose gradient comes back as parts of one

    with trained(fused):
        assert torch.autograd.gradgradcheck(joined, (x,))
        fused(x)[1].sum().backward()
    assert torch.equal(fused.weight.grad[:2], torch.zeros(2, 3, dtype=torch.float64))
