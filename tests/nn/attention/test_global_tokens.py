"""Global tokens with projections of their own: a plain loop, padding, captures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.nn.attention.global_tokens import GlobalSelfAttention
from heedful.nn.attention.masks import AnyOf, Window
from heedful.nn.attention.sparse_masks import GlobalTokens
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context, build_part
from heedful.nn.positions import Positions
from heedful.nn.spec import AttentionSpec

WIDTH, HEADS, COUNT = 8, 2, 2
MASK = AnyOf(parts=(Window(size=2), GlobalTokens(count=COUNT)))


def module() -> GlobalSelfAttention:
    torch.manual_seed(0)
    spec = AttentionSpec(num_heads=HEADS, mask=MASK, global_tokens=COUNT)
    built = build_part(WIDTH, spec).double()
    assert isinstance(built, GlobalSelfAttention)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def by_loop(attention: GlobalSelfAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Longformer's attention of one text [L, D], a query at a time: output, weights."""
    names = ("query", "key", "value")
    maps = {}
    for own, fused in ((False, attention.projection), (True, attention.global_projection)):
        for name, weight, bias in zip(
            names, fused.weight.chunk(3), fused.bias.chunk(3), strict=True
        ):
            maps[name, own] = (x @ weight.T + bias).view(len(x), HEADS, -1)
    mixed, all_weights = [], torch.zeros(HEADS, len(x), len(x), dtype=x.dtype)
    for i in range(len(x)):
        own = i < COUNT
        seen = [j for j in range(len(x)) if own or j < COUNT or abs(i - j) < 2]
        heads = []
        for head in range(HEADS):
            q = maps["query", own][i, head]
            k, v = (maps[name, own][seen, head] for name in ("key", "value"))
            weights = torch.softmax(k @ q / (WIDTH / HEADS) ** 0.5, 0)
            all_weights[head, i, seen] = weights
            heads.append(weights @ v)
        mixed.append(torch.cat(heads))
    return torch.stack(mixed) @ attention.output.weight.T + attention.output.bias, all_weights


@pytest.mark.parametrize("left", [False, True])
def test_output_weights_and_gradients_are_those_of_a_loop(left: bool) -> None:
    attention, lengths, size = module(), (7, 1, 4), 8
    positions = torch.full((3, size), -1)
    for row, length in enumerate(lengths):
        place = slice(size - length, None) if left else slice(0, length)
        positions[row, place] = torch.arange(length)
    x = torch.randn(3, size, WIDTH, dtype=torch.float64, requires_grad=True)
    real = positions >= 0
    capture = Capture(["here.weights"])
    context = Context(Positions.of_self(positions), capture=capture, address="here")
    attention(x, context)
    found = attention(x, Context(Positions.of_self(positions)))[real]
    expected = [by_loop(attention, row[at]) for row, at in zip(x, real, strict=True)]
    torch.testing.assert_close(found, torch.cat([output for output, _ in expected]))
    for row, (_, weights) in enumerate(expected):
        seen = capture.found["here.weights"][row][:, real[row]][:, :, real[row]]
        torch.testing.assert_close(seen, weights.to(seen.dtype), rtol=1e-5, atol=1e-6)
    up = torch.randn_like(found)
    parameters = [x, *attention.parameters()]
    right = torch.autograd.grad(torch.cat([output for output, _ in expected]), parameters, up)
    for one, other in zip(torch.autograd.grad(found, parameters, up), right, strict=True):
        torch.testing.assert_close(one, other)
