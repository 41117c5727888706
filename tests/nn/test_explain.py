"""Plans of the operations besides attention: what they say is what is run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.device import own_products
from heedful.kernels.library import has_gemm, kernels
from heedful.nn import linear_layers, sublayer
from heedful.nn.attention.attend import Plan
from heedful.nn.capture import Capture
from heedful.nn.explain import (
    explain_linear,
    explain_linear_attention,
    explain_residual_norm,
    explain_sublayer,
)
from heedful.nn.fused_sublayer import Parameters, fused_sublayer
from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import LinearAttentionSpec
from heedful.nn.mixers.linear_attention import LinearAttention
from heedful.nn.positions import Positions
from heedful.nn.sublayer import ResidualNorm, residual_norm

WIDTH = 512
needs_products = pytest.mark.skipif(
    kernels() is None or not has_gemm("float32", WIDTH), reason="no products in C here"
)


def rows(count: int = 64, width: int = WIDTH) -> Tensor:
    return torch.randn(1, count, width, requires_grad=True)


def was_called(monkeypatch: pytest.MonkeyPatch, function: Any) -> list[object]:
    calls: list[object] = []
    apply = function.apply
    monkeypatch.setattr(function, "apply", lambda *given: [calls.append(1), apply(*given)][1])
    return calls


@needs_products
@pytest.mark.parametrize(
    ("weight", "count", "kernel", "word"),
    [
        (torch.randn(WIDTH, WIDTH), 64, "native", "float32"),
        (torch.randn(WIDTH, WIDTH), 63, "torch", "few rows"),
        (torch.randn(WIDTH + 1, WIDTH), 64, "torch", "odd"),
        (torch.randn(64, WIDTH), 64, "torch", "width"),
        (torch.randn(WIDTH, WIDTH).t(), 64, "torch", "contiguous"),
    ],
)
def test_linear(
    monkeypatch: pytest.MonkeyPatch, weight: Tensor, count: int, kernel: str, word: str
) -> None:
    found = explain_linear(rows(count), weight)
    assert found.kernel == kernel
    assert word in (found.reason if kernel == "native" else found.rejected["native"])
    calls = was_called(monkeypatch, linear_layers._Linear)
    linear_layers.linear(rows(count), weight, None)
    assert bool(calls) == (kernel == "native")


@needs_products
def test_linear_without_gradients_or_own_products() -> None:
    weight = torch.randn(WIDTH, WIDTH)
    with torch.no_grad():
        assert "gradient" in explain_linear(rows(), weight).rejected["native"]
    token = own_products.set(False)
    try:
        assert "switched off" in explain_linear(rows(), weight).rejected["native"]
    finally:
        own_products.reset(token)


@pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")
@pytest.mark.parametrize(
    ("changes", "captured", "word"),
    [
        ({}, False, None),
        ({}, True, "capture"),
        ({"residual": False}, False, "at most one norm"),
        ({"norm": None}, False, "single pass"),
        ({"norm": nn.LayerNorm(64, bias=False)}, False, "no bias"),
    ],
)
def test_residual_norm(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], captured: bool, word: str | None
) -> None:
    x, output = rows(4, 64), rows(4, 64)
    after = replace(ResidualNorm(nn.LayerNorm(64)), **changes)
    found = explain_residual_norm(x, output, after, training=True, captured=captured)
    assert found.kernel == ("torch" if word else "native")
    assert word is None or word in found.rejected["native"]
    calls = was_called(monkeypatch, sublayer._ResidualNorm)
    capture = Capture({"stream"}) if captured else None
    context = Context(Positions.of_self(torch.arange(4)[None]), capture=capture)
    residual_norm(x, output, after, context, training=True)
    assert bool(calls) == (word is None)
    assert explain_residual_norm(x, output, after, training=False).kernel == "torch"


@needs_products
@pytest.mark.parametrize("count", [64, 8])
def test_a_sublayer(count: int) -> None:
    up, down = (Parameters(torch.randn(WIDTH, WIDTH), None) for _ in range(2))
    x = rows(count)
    after = ResidualNorm(nn.LayerNorm(WIDTH))
    found = explain_sublayer(x, x, up, "relu", down, after)
    assert found.kernel == ("fused" if count == 64 else "parts")
    assert ("few rows" in found.rejected.get("fused", "")) == (count == 8)
    assert (fused_sublayer(x, x, up, "relu", down, after) is None) == (count == 8)


@pytest.mark.parametrize(
    ("causal", "stepping", "kernel"),
    [(True, False, "chunks"), (False, False, "products"), (True, True, "sums")],
)
def test_linear_attention(causal: bool, stepping: bool, kernel: str) -> None:
    attention = LinearAttention(16, LinearAttentionSpec(num_heads=2, causal=causal))
    found = explain_linear_attention(attention, stepping=stepping)
    assert found.kernel == kernel
    assert set(found.rejected) == {"chunks", "products", "sums"} - {kernel}
    assert all(found.rejected.values())


def test_a_plan_as_a_table() -> None:
    plan = Plan("torch", "it serves everything", {"native": "no gradient is wanted"})
    assert plan.table("64 rows").splitlines() == [
        "64 rows",
        "-> torch      it serves everything",
        "   native     no gradient is wanted",
    ]
