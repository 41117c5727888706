"""Scores of Transformer-XL beside the paper's formula, a pair at a time, by every kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heedful.engines.class_exchange import Exchange
from heedful.engines.host_parts import HOST_KINDS, PROCESSOR_KERNELS
from heedful.engines.host_rare_parts import HostTransformerXL
from heedful.errors import ConfigError
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.nn.attention.attend import KernelSet, attend
from heedful.nn.attention.kernels import chunked
from heedful.nn.attention.masks import Causal, Everything
from heedful.nn.attention.relative_positions import BiasOfHeads, TransformerXL
from heedful.nn.positions import Positions

HEADS, KEY_HEADS, WIDTH, MODEL_WIDTH, SCALE = 4, 2, 6, 10, 0.3


on_host_or_not = pytest.mark.parametrize("on_host", [False, True])


def bias_of(on_host: bool, heads: int = HEADS) -> TransformerXL:
    """The definition's, or that of an engine that reads positions."""
    torch.manual_seed(1)
    bias = TransformerXL(heads, WIDTH, MODEL_WIDTH, SCALE).double()
    for parameter in bias.parameters():
        nn.init.normal_(parameter)
    if on_host:
        Exchange(bias, HOST_KINDS).make()
        assert type(bias) is HostTransformerXL
    return bias


def vectors(*shape: int) -> Tensor:
    return torch.randn(2, *shape, WIDTH, dtype=torch.float64, requires_grad=True)


def waves(distance: int) -> Tensor:
    """R of the paper, in the layout of the authors: all sines, then all cosines."""
    steps = torch.arange(0, MODEL_WIDTH, 2, dtype=torch.float64)
    angles = distance / 10_000 ** (steps / MODEL_WIDTH)
    return torch.cat([angles.sin(), angles.cos()])


def paper_score(bias: TransformerXL, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """The four terms (a) to (d) of section 3.3, scaled."""
    u, v = bias.content_query[head], bias.distance_query[head]
    matrix = bias.weight[head * WIDTH : (head + 1) * WIDTH]
    place = matrix @ waves(distance)
    return SCALE * (q @ k + q @ place + u @ k + v @ place)


def paper(bias: TransformerXL, q: Tensor, k: Tensor, v: Tensor, at: Tensor, causal: bool) -> Tensor:
    outputs = []
    for b in range(len(q)):
        for h in range(HEADS):
            shared = h // (HEADS // KEY_HEADS)
            for i in range(q.shape[2]):
                place = int(at[b, i])
                seen = [j for j in range(k.shape[2]) if at[b, j] >= 0]
                seen = [j for j in seen if not causal or at[b, j] <= place]
                if place < 0 or not seen:
                    outputs.append(torch.zeros(WIDTH, dtype=q.dtype))
                    continue
                scores = [
                    paper_score(bias, h, q[b, h, i], k[b, shared, j], place - int(at[b, j]))
                    for j in seen
                ]
                outputs.append(torch.softmax(torch.stack(scores), 0) @ v[b, shared, seen])
    return torch.stack(outputs).view_as(q)


@on_host_or_not
@pytest.mark.parametrize("layout", ["in order", "counted", "padded"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", ["reference", "matmul", "sdpa", "chunked", "decode", None])
def test_scores_and_gradients_are_the_papers(
    kernel: str | None,
    causal: bool,
    layout: str,
    on_host: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunked, "QUERY_BLOCK", 3)
    monkeypatch.setattr(chunked, "KEY_BLOCK", 2)
    bias = bias_of(on_host)
    q, k, v = vectors(HEADS, 5), vectors(KEY_HEADS, 5), vectors(KEY_HEADS, 5)
    at = torch.arange(5).expand(2, -1) + 3
    if layout == "padded":
        at = torch.stack([torch.arange(5), torch.arange(5) - 2]).clamp(min=-1)
    mask = Causal() if causal else Everything()
    positions = Positions.of_self(at)
    if layout == "counted":
        at = at - 3
        positions = Positions.counting(2, 5, at.device)
    assert (bias.diagonals(positions) is None) == (
        layout == "padded" or (layout == "in order" and not on_host)
    )
    kernels = PROCESSOR_KERNELS if on_host else KernelSet()
    found = attend(q, k, v, positions, mask, [bias], SCALE, kernel=kernel, kernels=kernels)
    expected = paper(bias, q, k, v, at, causal)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    learned = (q, k, v, *bias.parameters())
    up = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, learned, up),
        torch.autograd.grad(expected, learned, up),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@on_host_or_not
@given(
    queries=st.integers(1, 7), keys=st.integers(1, 7), first=st.integers(0, 9), at=st.integers(0, 9)
)
@settings(max_examples=25, deadline=None)
def test_places_in_any_order_give_what_the_skew_gives(
    on_host: bool, queries: int, keys: int, first: int, at: int
) -> None:
    bias, q, k = bias_of(on_host), vectors(HEADS, queries), vectors(KEY_HEADS, keys)
    query = torch.arange(at, at + queries).expand(2, -1)
    key = torch.arange(first, first + keys).expand(2, -1)
    in_order = bias(q, k, Positions(query, key))
    turned = bias(q, k.flip(2), Positions(query, key.flip(1)))
    torch.testing.assert_close(turned.flip(-1), in_order, rtol=1e-6, atol=1e-6)


@on_host_or_not
@pytest.mark.parametrize("queries", [1, 4])
def test_no_distance_is_too_far_and_only_distances_count(queries: int, on_host: bool) -> None:
    bias, q, k = bias_of(on_host), vectors(HEADS, queries), vectors(KEY_HEADS, 3)
    query = 50_000 + torch.arange(queries).expand(2, -1)
    key = torch.tensor([[0, 1, 2]]).expand(2, -1)
    found = bias(q, k, Positions(query, key))
    u, v = (each[0] for each in (bias.content_query, bias.distance_query))
    place = bias.weight[:WIDTH] @ waves(50_000 - 1)
    expected = (q[1, 0, 0] + SCALE * v) @ place + SCALE * (u @ k[1, 0, 1])
    torch.testing.assert_close(found[1, 0, 0, 1], expected, rtol=1e-5, atol=1e-5)
    later = bias(q, k, Positions(query + 1_000_000, key + 1_000_000))
    torch.testing.assert_close(later, found, rtol=1e-5, atol=1e-5)


@on_host_or_not
def test_heads_that_pruning_left_keep_their_scores(on_host: bool) -> None:
    bias, q, k = bias_of(on_host), vectors(HEADS, 3), vectors(HEADS, 3)
    at = Positions.of_self(torch.arange(3).expand(2, -1))
    left = [0, 3]
    pruned = BiasOfHeads(bias, left)(q[:, left], k[:, left], at)
    torch.testing.assert_close(pruned, bias(q, k, at)[:, left])


def test_a_width_without_pairs_is_refused() -> None:
    shape = TranslatorShape(width=15, num_heads=3, positions="transformer_xl")
    with pytest.raises(ConfigError, match="width 15 is odd"):
        translator_spec(shape, 9, 9)
