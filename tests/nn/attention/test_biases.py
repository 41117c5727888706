"""Biases against loops written from the papers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from heedful.errors import ConfigError, ModelError
from heedful.nn.attention.relative_positions import (
    Alibi,
    Kerple,
    RelativeKeys,
    T5Bias,
    TransformerXL,
)
from heedful.nn.bias_spec import TransformerXLSpec
from heedful.nn.mixer import build_bias
from heedful.nn.positions import Positions
from heedful.nn.spec import (
    AlibiSpec,
    AttentionSpec,
    KerpleSpec,
    RelativeKeysSpec,
    T5BiasSpec,
)
from tests.reference_parts import ExplicitBias

AT = Positions(torch.tensor([[3, 7], [0, 2]]), torch.tensor([[0, 5, 9], [2, 1, 0]]))


KEYS = torch.randn(2, 1, 3, 4)
"""Of no concern to most."""


def query(heads: int, width: int = 4) -> torch.Tensor:
    return torch.randn(2, heads, 2, width)


def test_alibi_slopes_are_the_papers() -> None:
    assert Alibi(8).slopes == tuple(2.0**-i for i in range(1, 9))
    # The official list for 12 heads: those of 8, then every other one of 16.
    assert Alibi(12).slopes == (
        *(2.0**-i for i in range(1, 9)),
        *(2.0**-i for i in (0.5, 1.5, 2.5, 3.5)),
    )


def test_alibi_penalises_distance_on_both_sides() -> None:
    found = Alibi(2)(query(2), KEYS, AT)
    assert found.dtype == torch.float32
    for b, h, i, j in [(0, 0, 0, 0), (0, 1, 0, 2), (1, 1, 1, 1)]:
        distance = abs(int(AT.query[b, i]) - int(AT.key[b, j]))
        assert found[b, h, i, j].item() == -distance * [2.0**-4, 2.0**-8][h]


def paper_bucket(distance: int, buckets: int, farthest: int, bidirectional: bool) -> int:
    """Of the key's position minus the query's."""
    first = 0
    if bidirectional:
        buckets //= 2
        if distance > 0:
            first = buckets
        n = abs(distance)
    else:
        n = max(-distance, 0)
    half = buckets // 2
    if n < half:
        return first + n
    far = half + math.floor(math.log(n / half) / math.log(farthest / half) * (buckets - half))
    return first + min(far, buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (10, 21)])
def test_t5_buckets(bidirectional: bool, buckets: int, farthest: int) -> None:
    bias = T5Bias(1, buckets, farthest, bidirectional)
    with torch.no_grad():
        bias.weight.copy_(torch.arange(buckets)[:, None])
    keys = torch.arange(0, 401)
    at = Positions(torch.tensor([[200]]), keys[None])
    found = bias(torch.randn(1, 1, 1, 4), KEYS, at)[0, 0, 0].long().tolist()
    # At 16, 32, 64 and the like the logarithm is a whole number, and which side it falls on is
    # up to rounding; the buckets there are the ones of the published models.
    for key, bucket in zip(keys.tolist(), found, strict=True):
        expected = paper_bucket(key - 200, buckets, farthest, bidirectional)
        assert bucket == expected, key - 200


def test_t5_table_is_learned() -> None:
    bias = T5Bias(2)
    found = bias(query(2), KEYS, AT)
    assert found.shape == (2, 2, 2, 3)
    found.sum().backward()
    assert bias.weight.grad is not None
    assert bias.weight.grad.sum().item() == 2 * 2 * 2 * 3


def test_t5_buckets_that_cannot_be_laid_out() -> None:
    with pytest.raises(ConfigError, match="buckets"):
        T5Bias(2, num_buckets=2)
    with pytest.raises(ConfigError, match="buckets"):
        T5Bias(2, num_buckets=32, max_distance=8)


def test_relative_keys_are_products_with_the_clipped_distances_vector() -> None:
    bias = RelativeKeys(head_width=4, max_distance=3)
    q = query(2)
    found = bias(q, KEYS, AT)
    for b in range(2):
        for h in range(2):
            for i in range(2):
                for j in range(3):
                    distance = int(AT.key[b, j]) - int(AT.query[b, i])
                    vector = bias.weight.detach()[max(-3, min(3, distance)) + 3]
                    expected = sum(float(q[b, h, i, e] * vector[e]) for e in range(4))
                    assert found[b, h, i, j].item() == pytest.approx(expected, abs=1e-5)


def test_explicit_bias_is_looked_up_by_positions() -> None:
    table = nn.Parameter(torch.randn(1, 2, 10, 10))
    bias = ExplicitBias(table)
    found = bias(query(2), KEYS, AT)
    assert found.shape == (2, 2, 2, 3)
    assert found[0, 1, 1, 2] == table[0, 1, 7, 9]
    assert found[1, 0, 1, 0] == table[0, 0, 2, 2]
    assert list(bias.parameters()) == [table]
    per_row = ExplicitBias(torch.randn(2, 1, 10, 10))
    assert per_row(query(2), KEYS, AT)[1, 0, 0, 1] == per_row.table[1, 0, 0, 1]


def test_explicit_bias_ends_in_an_error() -> None:
    with pytest.raises(ModelError, match="Position 9 lies past"):
        ExplicitBias(torch.zeros(1, 1, 10, 9))(query(2), KEYS, AT)


def test_kerple_is_the_papers_logarithm_of_distance() -> None:
    bias = Kerple(2)
    assert (bias.weight >= 0).all()
    bias.weight.data = torch.tensor([[1.5, 0.2], [0.7, -1.0]])  # a negative one counts as 0.01
    found = bias(query(2), KEYS, AT)
    for b, h, i, j in [(0, 0, 0, 1), (0, 1, 1, 2), (1, 0, 1, 0)]:
        distance = abs(int(AT.query[b, i]) - int(AT.key[b, j]))
        scale, rate = [(1.5, 0.7), (0.2, 0.01)][h]
        expected = -scale * math.log(1 + rate * distance)
        assert found[b, h, i, j].item() == pytest.approx(expected, rel=1e-5)
    found[:, 0].sum().backward()
    assert bias.weight.grad is not None
    assert bias.weight.grad[:, 0].all()


@pytest.mark.parametrize("bias", [Alibi(2), T5Bias(2), Kerple(2), RelativeKeys(4, 3)])
def test_blocks_equal_parts_of_the_whole(bias: nn.Module) -> None:
    q = query(2).mul(4).round()  # products of small integers are exact in any order
    for parameter in bias.parameters():
        nn.init.normal_(parameter, std=4.0)
        parameter.data.round_()
    whole = bias(q, KEYS, AT)
    part = bias(q[:, :, 1:], KEYS[:, :, 1:], AT.at_queries(slice(1, 2)).at_keys(slice(1, 3)))
    assert torch.equal(part, whole[:, :, 1:, 1:3])


def test_biases_are_built_from_settings() -> None:
    attention = AttentionSpec(num_heads=2)
    assert isinstance(build_bias(AlibiSpec(), attention, 8), Alibi)
    assert isinstance(build_bias(KerpleSpec(), attention, 8), Kerple)
    t5 = build_bias(T5BiasSpec(num_buckets=8, max_distance=20), attention, 8)
    assert isinstance(t5, T5Bias)
    assert t5.weight.shape == (8, 2)
    keys = build_bias(RelativeKeysSpec(max_distance=5), attention, 8)
    assert isinstance(keys, RelativeKeys)
    assert keys.weight.shape == (11, 4)
    wide = AttentionSpec(num_heads=2, head_width=3, scale=0.7)
    sinusoidal = build_bias(TransformerXLSpec(), wide, 8)
    assert isinstance(sinusoidal, TransformerXL)
    assert sinusoidal.weight.shape == (2 * 3, 8)
    assert sinusoidal.scale == 0.7
