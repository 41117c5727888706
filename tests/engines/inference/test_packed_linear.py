"""Layers for models that run: as exact as those they replace, or as their rounding says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.engines.inference.packed_linear import (
    Int8Linear,
    PackedLinear,
    pack_linear,
    packs,
    torch_multiplies_int8,
)
from heedful.nn.feedforward import FeedForward
from heedful.nn.linear_layers import FusedLinear
from heedful.nn.spec import FeedForwardSpec

needs_packing = pytest.mark.skipif(not packs(), reason="this PyTorch packs no weights")
needs_int8 = pytest.mark.skipif(not torch_multiplies_int8(), reason="no exact 8-bit products here")

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(1, 50))


def drawn(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@needs_packing
@given(
    sizes=SIZES, seed=st.integers(0, 99), bias=st.booleans(), then=st.sampled_from(["none", "relu"])
)
@settings(max_examples=40)
@torch.inference_mode()
def test_packed_weights_are_as_exact_as_plain_ones(sizes, seed, bias, then):
    rows, width, out = sizes
    for factor in (1, 30):  # few products, and many
        x, w = drawn(rows * factor, width, seed=seed), drawn(out * factor, width, seed=seed + 1)
        b = drawn(out * factor, seed=seed + 2) if bias else None
        expected = x.numpy().astype(np.float64) @ w.numpy().astype(np.float64).T
        expected += 0.0 if b is None else b.numpy()
        expected = np.maximum(expected, 0.0) if then == "relu" else expected
        found = PackedLinear(w, b, then)(x)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5 * width**0.5)


def rounded(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    largest = np.abs(matrix).max(1, keepdims=True)
    return np.rint(matrix / largest * 127).astype(np.int64), largest / 127


@needs_int8
@given(
    sizes=SIZES,
    seed=st.integers(0, 99),
    bias=st.booleans(),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
@settings(max_examples=40)
@torch.inference_mode()
def test_8_bit_products_are_products_of_rounded_rows(sizes, seed, bias, scale):
    rows, width, out = sizes
    x, w = drawn(rows, width, seed=seed, scale=scale), drawn(out, width, seed=seed + 1)
    b = drawn(out, seed=seed + 2) if bias else None
    (left, left_scale), (right, right_scale) = rounded(x.numpy()), rounded(w.numpy())
    exact = (left @ right.T) * left_scale * right_scale.T + (0.0 if b is None else b.numpy())
    # A number that lies between two bytes may go to either, by its last binary digit.
    slack = 2 * np.abs(right).max() * left_scale * right_scale.max()
    found = Int8Linear(w, b)(x).numpy()
    # The bias is not scaled: beside small products the sum's own last digits count.
    off = np.abs(found - exact) - 2.0**-23 * np.abs(exact)
    assert (off <= 1e-4 * scale + slack).all()
    assert np.median(off) <= 1e-4 * scale


@needs_int8
@torch.inference_mode()
def test_a_row_in_8_bits_does_not_depend_on_its_neighbours():
    x, layer = drawn(33, 64, seed=0), Int8Linear(drawn(48, 64, seed=1), drawn(48, seed=2))
    x[7] *= 1000.0
    x[8] = 0.0
    together = layer(x)
    for row in range(33):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])
    assert torch.equal(together[8], drawn(48, seed=2))
    assert torch.equal(layer(x.view(3, 11, 64)), together.view(3, 11, 48))


@needs_packing
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
@torch.inference_mode()
def test_all_layers_of_a_module_are_replaced(activation):
    torch.manual_seed(0)
    inner = FeedForward(8, FeedForwardSpec.parse({"width": 12, "activation": activation}))
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 8), inner, FusedLinear(8, {"a": 3, "b": 5}, bias=True)
    ).eval()
    x = drawn(4, 6, seed=1)
    expected = module(x)
    pack_linear(module, PackedLinear)
    kinds = {type(part).__name__ for part in module.modules()}
    assert not kinds & {"Linear", "FusedLinear"}
    for found, wanted in zip(module(x), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
