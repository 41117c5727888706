from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from heedful.engines.training import residual_norm as residual_norm_module
from heedful.engines.training.residual_norm import ResidualNorm, apply_norm, residual_norm
from heedful.kernels import library
from heedful.models.stack import Stack
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Causal
from heedful.nn.mixer import Context, Memory
from heedful.nn.norms import RMSNorm
from heedful.nn.positions import Positions
from heedful.nn.spec import AttentionSpec, FeedForwardSpec, NormSpec

from ...on_processor import on_processor

pytestmark = [
    pytest.mark.skipif(library.kernels() is None, reason="no kernels were compiled here"),
    pytest.mark.usefixtures("level"),
]


def add_residual(x, output, probability, norm):
    """The stream after a sum that is normed last."""
    after = ResidualNorm(norm=norm, dropout=probability)
    return residual_norm(x, output, after)[0]


def add_and_norm(x, output, probability, norm):
    """The stream after a sum, and its norm for the next part."""
    after = ResidualNorm(input_norm=norm, dropout=probability)
    return residual_norm(x, output, after)


def norm_of(kind: str, width: int, seed: int) -> nn.Module | None:
    if kind == "none":
        return None
    if kind == "layer":
        norm = nn.LayerNorm(width, eps=1e-5)
    else:
        norm = RMSNorm(width, 1e-6, unit_offset=kind == "offset")
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
        weight = weight + norm.unit_offset
        return whole / (whole.square().mean(-1, keepdim=True) + norm.epsilon).sqrt() * weight
    apart = whole - whole.mean(-1, keepdim=True)
    return apart / (apart.square().mean(-1, keepdim=True) + norm.eps).sqrt() * weight + norm.bias


@given(
    rows=st.integers(1, 40),
    width=st.sampled_from([16, 48, 128]),
    kind=st.sampled_from(["none", "layer", "rms", "offset"]),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_sum_norm_and_gradients_are_those_of_the_formula(rows, width, kind, half, seed):
    torch.manual_seed(seed)
    x = torch.randn(rows, width, requires_grad=True)
    change = torch.randn(rows, width, dtype=torch.bfloat16 if half else torch.float32)
    change.requires_grad_()
    norm = norm_of(kind, width, seed)
    y = add_residual(x, change, 1e-12, norm)  # so rarely that nothing is dropped
    assert y.dtype == torch.float32
    assert y.grad_fn.name() == "_ResidualNormBackward"
    up = torch.randn_like(y)
    mine = [x, change, *([] if norm is None else norm.parameters())]
    found = torch.autograd.grad(y, mine, up)
    expected = by_definition(x.double() + change.double(), norm)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    for each, other in zip(found, torch.autograd.grad(expected, mine, up.double()), strict=True):
        tolerance = 1e-5 if each.dtype == torch.float32 else 1e-2
        torch.testing.assert_close(each, other, rtol=tolerance, atol=tolerance * rows**0.5)


@given(
    rows=st.integers(1, 40),
    width=st.sampled_from([16, 48, 128]),
    kind=st.sampled_from(["layer", "rms", "offset"]),
    halves=st.sampled_from(["", "change", "products", "change, products", "x, change, products"]),
    wanted=st.sampled_from(["sum", "norm", "sum, norm"]),
    frozen=st.sampled_from(["", "x", "change"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=120)
def test_a_sum_and_its_norm_are_those_of_the_formula(
    rows, width, kind, halves, wanted, frozen, seed
):
    torch.manual_seed(seed)
    x, change = (
        torch.randn(rows, width)
        .to(torch.bfloat16 if name in halves.split(", ") else torch.float32)
        .requires_grad_(name != frozen)
        for name in ("x", "change")
    )
    norm = norm_of(kind, width, seed)
    for_products = torch.bfloat16 if "products" in halves else torch.float32
    with torch.autocast("cpu", torch.bfloat16, enabled="products" in halves):
        found = add_and_norm(x, change, 0.0, norm)
    assert [each.grad_fn.name() for each in found] == ["_ResidualNormBackward"] * 2
    assert [each.dtype for each in found] == [
        torch.promote_types(x.dtype, change.dtype),
        for_products,
    ]

    whole = x.double() + change.double()
    expected = (whole, by_definition(whole, norm))
    for each, other in zip(found, expected, strict=True):
        # The norm of a sum in bfloat16 is the norm of what was rounded.
        near = 1e-5 if each.dtype == torch.float32 and x.dtype == torch.float32 else 4e-2
        torch.testing.assert_close(each.double(), other, rtol=near, atol=near)

    used = [i for i, name in enumerate(("sum", "norm")) if name in wanted.split(", ")]
    ups = [torch.randn_like(found[i]) for i in used]
    mine = [each for each in (x, change, *norm.parameters()) if each.requires_grad]
    gradients = torch.autograd.grad([found[i] for i in used], mine, ups, allow_unused=True)
    right = torch.autograd.grad(
        [expected[i] for i in used], mine, [up.double() for up in ups], allow_unused=True
    )
    for each, other in zip(gradients, right, strict=True):
        if other is None:
            assert each is None
            continue
        near = 1e-5 if each.dtype == torch.float32 and x.dtype == torch.float32 else 4e-2
        torch.testing.assert_close(each, other, rtol=near, atol=near * rows**0.5)


@pytest.mark.parametrize("half", [False, True])
def test_a_sum_and_its_norm_drop_the_same_forward_and_backward(half):
    torch.manual_seed(5)
    x = torch.randn(60, 64, requires_grad=True)
    change = torch.randn(60, 64).to(torch.bfloat16 if half else torch.float32).requires_grad_()
    norm = norm_of("layer", 64, 1)
    whole, y = add_and_norm(x, change, 0.25, norm)
    kept = (whole != x).double()  # no number of `change` is zero
    assert kept.mean().item() == pytest.approx(0.75, abs=5 * (0.1875 / 3840) ** 0.5)

    expected = x.double() + change.double() * kept / 0.75
    torch.testing.assert_close(whole.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y.double(), by_definition(expected, norm), rtol=1e-5, atol=1e-5)
    ups, mine = (torch.randn_like(whole), torch.randn_like(y)), (x, change, *norm.parameters())
    found = torch.autograd.grad((whole, y), mine, ups)
    outputs = (expected, by_definition(expected, norm))
    right = torch.autograd.grad(outputs, mine, [up.double() for up in ups])
    for each, other in zip(found, right, strict=True):
        near = 1e-4 if each.dtype == torch.float32 else 1e-2
        torch.testing.assert_close(each, other, rtol=near, atol=near)
    assert torch.equal(found[1] != 0, kept.bool())


def test_a_gradient_that_passes_on_as_it_is_is_not_copied():
    x, change = (torch.randn(3, 16, requires_grad=True) for _ in range(2))
    whole, y = add_and_norm(x, change, 0.0, norm_of("layer", 16, 0))
    up = torch.randn_like(whole)
    for found in torch.autograd.grad(whole, (x, change), up, retain_graph=True):
        assert found.data_ptr() == up.data_ptr()
    one, two = torch.autograd.grad((whole, y), (x, change), (up, up))
    assert one.data_ptr() == two.data_ptr() != up.data_ptr()


def test_where_no_gradient_comes_none_goes_on(stopping):
    x, change = (torch.randn(3, 16, requires_grad=True) for _ in range(2))
    outputs = add_and_norm(x, change, 0.1, norm_of("rms", 16, 0))
    stopped = sum(stopping(each).sum() for each in outputs)
    assert torch.autograd.grad(stopped, (x, change), allow_unused=True) == (None, None)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("half", [False, True])
def test_a_norm_alone_comes_as_products_read_it(kind, half):
    torch.manual_seed(3)
    x = torch.randn(5, 7, 64, requires_grad=True)
    norm = norm_of(kind, 64, 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        y = apply_norm(x, norm)
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
        y = apply_norm(x.requires_grad_(), norm_of("layer", 16, 0))
    assert y.isnan().all()


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_drops_the_share_asked_for_and_keeps_the_mean(probability):
    torch.manual_seed(0)
    change = torch.ones(400, 1024, requires_grad=True)
    y = add_residual(torch.zeros(400, 1024), change, probability, None)
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
        (add_residual(torch.zeros_like(change), change, 0.3, None)[0] != 0).double() - 0.7
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
            y = add_residual(x, change, 0.3, norm)
            return [y, *torch.autograd.grad(y.square().sum(), norm.parameters())]
        finally:
            torch.set_num_threads(before)

    for one, two in zip(draw(3, 1), draw(3, 2), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(draw(3, 1)[0], draw(4, 1)[0])


def test_without_kernels_it_is_operations_of_pytorch(monkeypatch):
    x = torch.randn(6, 48, requires_grad=True)
    norm = norm_of("rms", 48, 2)

    def draw() -> list[torch.Tensor]:
        both = add_and_norm(x, x.sin(), 0.0, norm)
        return [add_residual(x, x.sin(), 0.0, norm), apply_norm(x, norm), *both]

    found = draw()
    monkeypatch.setattr(residual_norm_module, "has_row_kernels", lambda width: False)
    for one, two in zip(found, draw(), strict=True):
        assert two.grad_fn.name() != "_ResidualNormBackward"
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


def steps(of: torch.Tensor) -> Iterator[str]:
    """The names of all that gradients go through."""
    seen, left = set(), [of.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [following for following, _ in node.next_functions]
        yield node.name()


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("half", [False, True])
def test_a_decoder_is_the_same_with_kernels_and_without(monkeypatch, kind, placement, half):
    attention = AttentionSpec(num_heads=2)
    block = BlockSpec.of(
        norm_placement=placement,
        norm=NormSpec(kind=kind),
        self_attention=attention.model_copy(update={"mask": Causal()}),
        cross_attention=attention,
        feedforward=FeedForwardSpec(width=64),
        dropout=0.0,
    )
    torch.manual_seed(7)
    stack = Stack(32, StackSpec.of(num_layers=2, block=block, final_norm=NormSpec()), "decoder")
    x = torch.randn(2, 5, 32, requires_grad=True)
    memory, up = torch.randn(2, 4, 32, requires_grad=True), torch.randn(2, 5, 32)
    queries, keys = (torch.arange(length).repeat(2, 1) for length in (5, 4))
    mine = [x, memory, *stack.parameters()]

    def draw() -> tuple[list[str], list[torch.Tensor]]:
        context = Context(Positions(queries, queries), Positions(queries, keys))
        with on_processor(stack), torch.autocast("cpu", torch.bfloat16, enabled=half):
            y = stack(x, context, stack.read(Memory(memory, keys)))
            through = list(steps(y))
            return through, [y, *torch.autograd.grad(y, mine, up)]

    through, found = draw()
    assert through.count("_ResidualNormBackward") == 6  # one for each norm, first or last
    # Where norms come first, the sum that ends a block is the only one without a norm.
    assert through.count("AddBackward0") == (2 if placement == "pre" else 0)
    monkeypatch.setattr(residual_norm_module, "has_row_kernels", lambda width: False)
    through, plain = draw()
    assert "_ResidualNormBackward" not in through
    for one, two in zip(found, plain, strict=True):
        apart = (one - two).norm() / two.norm()
        assert apart < (3e-2 if half else 1e-5)
