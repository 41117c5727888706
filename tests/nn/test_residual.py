from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from heedful.nn import residual
from heedful.nn.native import library
from heedful.nn.norms import RMSNorm
from heedful.nn.residual import add_residual, normed

pytestmark = [
    pytest.mark.skipif(library.kernels() is None, reason="no kernels were compiled here"),
    pytest.mark.usefixtures("level"),
]


def norm_of(kind: str, width: int, seed: int) -> nn.Module | None:
    if kind == "none":
        return None
    norm = nn.LayerNorm(width, eps=1e-5) if kind == "layer" else RMSNorm(width, 1e-6)
    torch.manual_seed(seed)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def by_definition(whole, norm):
    """In float64, from the formula."""
    if norm is None:
        return whole
    weight = norm.weight.double()
    if isinstance(norm, RMSNorm):
        return whole / (whole.square().mean(-1, keepdim=True) + norm.epsilon).sqrt() * weight
    apart = whole - whole.mean(-1, keepdim=True)
    return apart / (apart.square().mean(-1, keepdim=True) + norm.eps).sqrt() * weight + norm.bias


@given(
    rows=st.integers(1, 40),
    width=st.sampled_from([16, 48, 128]),
    kind=st.sampled_from(["none", "layer", "rms"]),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_sum_norm_and_gradients_are_those_of_the_formula(rows, width, kind, half, seed):
    torch.manual_seed(seed)
    x = torch.randn(rows, width, requires_grad=True)
    change = torch.randn(rows, width, dtype=torch.bfloat16 if half else torch.float32)
    change.requires_grad_()
    norm = norm_of(kind, width, seed)
    y = add_residual(x, change, 1e-12, norm, True)  # so rarely that nothing is dropped
    assert y.dtype == torch.float32
    assert y.grad_fn.name() == "_PassingBackward"
    up = torch.randn_like(y)
    mine = [x, change, *([] if norm is None else norm.parameters())]
    found = torch.autograd.grad(y, mine, up)
    expected = by_definition(x.double() + change.double(), norm)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    for each, other in zip(found, torch.autograd.grad(expected, mine, up.double()), strict=True):
        tolerance = 1e-5 if each.dtype == torch.float32 else 1e-2
        torch.testing.assert_close(each, other, rtol=tolerance, atol=tolerance * rows**0.5)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("half", [False, True])
def test_a_norm_alone_comes_as_products_read_it(kind, half):
    torch.manual_seed(3)
    x = torch.randn(5, 7, 64, requires_grad=True)
    norm = norm_of(kind, 64, 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        y = normed(x, norm, True)
    assert y.dtype == (torch.bfloat16 if half else torch.float32)
    expected = by_definition(x.double(), norm)
    rounded = expected.float().to(y.dtype)  # by the same rule: to nearest, ties to even
    torch.testing.assert_close(y.float(), rounded.float(), rtol=1e-2 if half else 1e-5, atol=1e-5)
    if half:
        assert (y == rounded).float().mean() > 0.999  # the rest lay between two by 1e-7
    up = torch.randn_like(y)
    mine = [x, *norm.parameters()]
    found = torch.autograd.grad(y, mine, up)
    for each, other in zip(found, torch.autograd.grad(expected, mine, up.double()), strict=True):
        torch.testing.assert_close(each, other, rtol=1e-4, atol=1e-4)


def test_what_is_no_number_stays_none_in_half():
    x = torch.ones(1, 16)
    x[0, 3] = torch.nan
    with torch.autocast("cpu", torch.bfloat16):
        y = normed(x.requires_grad_(), norm_of("layer", 16, 0), True)
    assert y.isnan().all()


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_drops_the_share_asked_for_and_keeps_the_mean(probability):
    torch.manual_seed(0)
    change = torch.ones(400, 1024, requires_grad=True)
    y = add_residual(torch.zeros(400, 1024), change, probability, None, True)
    dropped = (y == 0).double().mean().item()
    # Five standard deviations of a binomial share over 409,600 draws.
    assert dropped == pytest.approx(probability, abs=5 * (0.25 / 409_600) ** 0.5)
    assert y.double().mean().item() == pytest.approx(1, abs=0.03)
    (gradient,) = torch.autograd.grad(y.sum(), change)
    assert torch.equal(gradient, y)


def test_decisions_are_independent_of_each_other_and_of_other_calls():
    torch.manual_seed(1)
    change = torch.ones(1, 98_304, requires_grad=True)
    first, second = (
        (add_residual(torch.zeros_like(change), change, 0.3, None, True)[0] != 0).double() - 0.7
        for _ in range(2)
    )
    for lag in (1, 2, 3, 4, 8, 16, 64, 512, 4096):
        correlation = (first[lag:] * first[:-lag]).mean().item() / 0.21
        assert abs(correlation) < 5 / 98_304**0.5, lag
    assert abs((first * second).mean().item() / 0.21) < 5 / 98_304**0.5


def test_the_seed_decides_and_threads_do_not():
    x, change = torch.randn(300, 256), torch.randn(300, 256)
    norm = norm_of("layer", 256, 0)

    def draw(seed: int, threads: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            y = add_residual(x, change, 0.3, norm, True)
            return [y, *torch.autograd.grad(y.square().sum(), norm.parameters())]
        finally:
            torch.set_num_threads(before)

    for one, two in zip(draw(3, 1), draw(3, 2), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(draw(3, 1)[0], draw(4, 1)[0])


def test_without_kernels_it_is_operations_of_pytorch(monkeypatch):
    x = torch.randn(6, 48, requires_grad=True)
    norm = norm_of("rms", 48, 2)
    found = [add_residual(x, x.sin(), 0.0, norm, True), normed(x, norm, True)]
    monkeypatch.setattr(residual, "passes_rows", lambda width: False)
    plain = [add_residual(x, x.sin(), 0.0, norm, True), normed(x, norm, True)]
    for one, two in zip(found, plain, strict=True):
        assert two.grad_fn.name() != "_PassingBackward"
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
