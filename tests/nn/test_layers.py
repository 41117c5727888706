"""Norms, feed-forward, embeddings and fused projections against plain arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.feedforward import FeedForward
from heedful.nn.linear_layers import FusedLinear, StoredApart
from heedful.nn.norms import build_norm
from heedful.nn.spec import EmbeddingSpec, FeedForwardSpec, NormSpec, PositionSpec


def test_norms_by_hand():
    x = np.array([[1.0, 2.0, 3.0, 6.0]])
    layer = build_norm(NormSpec(kind="layer", epsilon=1e-5), 4)
    rms = build_norm(NormSpec(kind="rms", epsilon=1e-6), 4)
    centred = (x - 3) / math.sqrt(3.5 + 1e-5)
    scaled = x / math.sqrt(12.5 + 1e-6)
    given = torch.tensor(x, dtype=torch.float32)
    np.testing.assert_allclose(layer(given).detach().numpy(), centred, rtol=1e-5)
    np.testing.assert_allclose(rms(given).detach().numpy(), scaled, rtol=1e-5)
    offset = build_norm(NormSpec(kind="rms", epsilon=1e-6, unit_offset=True), 4)
    np.testing.assert_allclose(offset(given).detach().numpy(), scaled, rtol=1e-5)
    torch.nn.init.constant_(offset.weight, 0.4)
    np.testing.assert_allclose(offset(given).detach().numpy(), 1.4 * scaled, rtol=1e-5)
    torch.manual_seed(0)
    rows, wide = torch.randn(64, 4).bfloat16(), offset.weight.double() + 1
    rms_of_rows = rows.double().square().mean(-1, keepdim=True).add(1e-6).sqrt()
    rounded_once = (rows.double() / rms_of_rows * wide).bfloat16()
    assert torch.equal(offset(rows), rounded_once)
    with pytest.raises(ValueError, match="unit_offset"):
        NormSpec(unit_offset=True)


def _erf_gelu(x):
    return np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.flat]).reshape(x.shape)


def _tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _relu(x):
    return np.maximum(x, 0)


def _silu(x):
    return x / (1 + np.exp(-x))


def _quick_gelu(x):
    return x / (1 + np.exp(-1.702 * x))


PLAIN = {"relu": _relu, "gelu": _erf_gelu, "gelu_tanh": _tanh_gelu, "silu": _silu}
PLAIN["quick_gelu"] = _quick_gelu
GATED = {"swiglu": _silu, "geglu": _erf_gelu, "geglu_tanh": _tanh_gelu, "reglu": _relu}


@pytest.mark.parametrize("activation", [*PLAIN, *GATED])
@pytest.mark.parametrize("bias", [True, False])
def test_feedforward_by_hand(activation, bias):
    torch.manual_seed(0)
    spec = FeedForwardSpec(width=7, activation=activation, bias=bias)
    module = FeedForward(4, spec)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    weights = {k: v.double().numpy() for k, v in module.state_dict().items()}
    x = torch.randn(2, 3, 4)
    given = x.double().numpy()

    def linear(name, value):
        return value @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)

    if activation in GATED:
        inner = GATED[activation](linear("gate", given)) * linear("up", given)
    else:
        inner = PLAIN[activation](linear("up", given))
    np.testing.assert_allclose(
        module(x).detach().numpy(), linear("down", inner), rtol=1e-4, atol=1e-4
    )
    assert ("gate.weight" in weights) == (activation in GATED)
    assert ("up.bias" in weights) == bias


def test_embedding_is_scaled_and_padding_has_no_position():
    torch.manual_seed(0)
    table = TokenEmbedding(10, 8)
    spec = EmbeddingSpec(scale=True, positions=PositionSpec(kind="sinusoidal"))
    embed = InputEmbedding(8, spec)
    ids, positions = torch.tensor([[3, 4, 3]]), torch.tensor([[-1, 0, 1]])
    x = embed(ids, positions, table)
    torch.testing.assert_close(x[0, 0], table.weight[3] * math.sqrt(8))
    at_zero = torch.tensor([0.0, 1.0] * 4)
    torch.testing.assert_close(x[0, 1], table.weight[4] * math.sqrt(8) + at_zero)
    plain = InputEmbedding(8, EmbeddingSpec(scale=False, positions=PositionSpec(kind="none")))
    torch.testing.assert_close(plain(ids, positions, table)[0, 2], table.weight[3])


def test_a_rounded_scale_is_a_number_of_the_tables_type():
    spec = EmbeddingSpec(scale="rounded", positions=PositionSpec(kind="none"))
    embed, table = InputEmbedding(12, spec), TokenEmbedding(10, 12)
    ids, positions = torch.tensor([[3]]), torch.tensor([[0]])
    torch.testing.assert_close(embed(ids, positions, table)[0, 0], table.weight[3] * math.sqrt(12))
    table.bfloat16()
    expected = (table.weight[3].double() * 3.46875).bfloat16()  # of sqrt(12) = 3.4641…
    assert torch.equal(embed(ids, positions, table)[0, 0], expected)


def test_embedding_starts_with_unit_variance_after_its_scale():
    torch.manual_seed(0)
    table = TokenEmbedding(2000, 64)
    assert (table.weight.std() * math.sqrt(64)).item() == pytest.approx(1, rel=0.02)


class _Holder(StoredApart):
    def __init__(self, bias):
        super().__init__()
        self.fused = FusedLinear(3, {"left": 2, "right": 4}, bias=bias)
        self.other = torch.nn.Linear(2, 2)


@pytest.mark.parametrize("bias", [True, False])
def test_fused_maps_are_stored_apart_and_loaded_back(bias):
    torch.manual_seed(0)
    outer = torch.nn.ModuleDict({"a": _Holder(bias), "b": _Holder(bias)})
    state = outer.state_dict()
    names = {"left.weight", "right.weight", "other.weight", "other.bias"}
    names |= {"left.bias", "right.bias"} if bias else set()
    assert set(state) == {f"{place}.{name}" for place in "ab" for name in names}
    x = torch.randn(5, 3)
    left, right = outer["a"].fused(x)
    left_bias = state["a.left.bias"] if bias else 0
    torch.testing.assert_close(left, x @ state["a.left.weight"].T + left_bias)
    assert right.shape == (5, 4)
    copy = torch.nn.ModuleDict({"a": _Holder(bias), "b": _Holder(bias)})
    copy.load_state_dict(state)
    torch.testing.assert_close(copy["a"].fused(x)[1], right)
    del state["a.left.weight"]
    with pytest.raises(RuntimeError, match=r"a\.fused\.weight"):
        copy.load_state_dict(state)
