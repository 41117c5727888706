"""Feature maps beside the weights they stand for: cosFormer's, and softmax for Performer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ModelError
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import LinearAttentionSpec
from heedful.nn.mixers.feature_maps import RandomFeatures
from heedful.nn.mixers.linear_attention import LinearAttention
from heedful.nn.positions import Positions

WIDTH, HEADS = 16, 2
COSINE = {"kind": "cosine", "length": 90}
RANDOM = {"kind": "random", "num_features": 40, "redraw_every": 3, "seed": 5}


def mixer(features, *, causal=True):
    torch.manual_seed(1)
    spec = LinearAttentionSpec.parse({"num_heads": HEADS, "causal": causal, "features": features})
    return LinearAttention(WIDTH, spec)


def dense(module, x, positions, kind):
    """Weights of every pair in float64, from the formula of the paper."""
    maps = [each.double() for each in module.projection.weight.chunk(3)]
    biases = [each.double() for each in module.projection.bias.chunk(3)]
    q, k, v = (
        (x.double() @ m.T + b).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for m, b in zip(maps, biases, strict=True)
    )
    if kind == "cosine":
        distance = (positions[:, None, :, None] - positions[:, None, None, :]).double()
        products = q.clamp(min=0) @ k.clamp(min=0).mT
        weights = products * torch.cos(distance * math.pi / (2 * COSINE["length"]))
    else:
        omega = module.features.directions(x.device).double()
        q, k = (each / (WIDTH / HEADS) ** 0.25 for each in (q, k))
        q, k = (
            torch.exp(each @ omega.T - each.square().sum(-1, keepdim=True) / 2) for each in (q, k)
        )
        weights = q @ k.mT
    weights = weights * (positions >= 0)[:, None, None, :]
    if module.causal:
        weights = weights.tril()
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    return mixed @ module.output.weight.double().T + module.output.bias.double(), weights


@pytest.mark.parametrize("features", [COSINE, RANDOM], ids=["cosine", "random"])
@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=3),
    causal=st.booleans(),
    left=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_output_weights_and_gradients_are_those_of_the_papers(features, lengths, causal, left):
    module = mixer(features, causal=causal)
    if features["kind"] == "cosine":
        with torch.no_grad():  # sums of weights away from 0, by which float32 could not divide
            module.projection.bias[: 2 * WIDTH] += 0.7
    size = max(lengths) + 1
    positions = torch.full((len(lengths), size), -1)
    for row, length in enumerate(lengths):
        place = slice(size - length, None) if left else slice(0, length)
        positions[row, place] = torch.arange(length)
    x = torch.randn(len(lengths), size, WIDTH, requires_grad=True)
    capture = Capture(["here.weights"])
    y = module(x, Context(Positions.of_self(positions), capture=capture, address="here"))
    expected, weights = dense(module, x, positions, features["kind"])
    real = positions >= 0
    torch.testing.assert_close(y[real].double(), expected[real], rtol=1e-4, atol=1e-5)
    seen = capture.found["here.weights"].double().transpose(1, 2)[real]
    torch.testing.assert_close(seen, weights.transpose(1, 2)[real], rtol=1e-3, atol=1e-5)
    up = torch.randn_like(y) * real[..., None]
    parameters = [x, *module.parameters()]
    found = torch.autograd.grad(y, parameters, up)
    right = torch.autograd.grad(expected, parameters, up.double())
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other.to(one), rtol=1e-3, atol=1e-3)


def test_the_error_to_softmax_falls_as_one_over_the_root_of_the_features():
    source = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 64, 16, dtype=torch.float64, generator=source) * 0.4
    exact = torch.softmax(q @ k.T / 4, -1) @ v
    numbers, errors = (32, 128, 512), []
    for number in numbers:
        squares = []
        for seed in range(40):
            features = RandomFeatures(16, number, None, seed)
            places = torch.arange(64)[None]
            fq, fk = (
                features(each.float()[None, None], places, of_keys=keys)[0, 0].double()
                for each, keys in ((q, False), (k, True))
            )
            weights = fq @ fk.T
            found = weights / weights.sum(-1, keepdim=True) @ v
            squares.append((found - exact).square().mean().item())
        errors.append(math.sqrt(np.mean(squares)))
    slope = np.polyfit(np.log(numbers), np.log(errors), 1)[0]
    assert -0.65 < slope < -0.4, errors
    assert errors[-1] < 0.1 * exact.std()


def test_products_of_random_features_have_the_mean_of_softmax():
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(3))
    at = torch.zeros(1, 1).long()
    products = []
    for seed in range(400):
        features = RandomFeatures(8, 64, None, seed)
        of_query = torch.exp(
            q * 8**-0.25 @ features.directions(q.device).T - q.square().sum() * 8**-0.5 / 2
        )
        products.append((of_query * features(k, at, of_keys=True)).sum().item() * 64**-0.5)
    exact = math.exp((q * k).sum().item() / math.sqrt(8))
    assert np.mean(products) == pytest.approx(exact, rel=4 * np.std(products) / exact / 20)


def test_directions_are_orthogonal_in_groups_and_as_long_as_gaussian_ones():
    omega = RandomFeatures(16, 4096, None, 0).directions(torch.device("cpu"))
    for group in omega.split(16)[:9]:
        products = group @ group.T
        torch.testing.assert_close(
            products - products.diag().diag(), torch.zeros(16, 16), atol=1e-4, rtol=0
        )
    assert omega.square().sum(1).mean().item() == pytest.approx(16, rel=0.02)
    assert omega.mean(0).abs().max().item() < 0.08


def test_directions_are_drawn_anew_in_training_and_come_back_with_the_weights():
    module, x = mixer(RANDOM), torch.randn(1, 4, WIDTH)
    context = Context(Positions.of_self(torch.arange(4)[None]))

    def omega(of=module):
        return of.features.directions(x.device)

    first = omega()
    module.eval()
    for _ in range(9):
        module(x, context)
    assert torch.equal(omega(), first)
    module.train()
    module(x, context)
    module(x, context)
    assert torch.equal(omega(), first)
    module(x, context)
    second = omega()
    assert not torch.equal(second, first)
    again = mixer(RANDOM)
    assert torch.equal(omega(again), first)
    again.load_state_dict(module.state_dict())
    assert torch.equal(omega(again), second)
    assert torch.equal(again.eval()(x, context), module.eval()(x, context))
    assert torch.equal(again.bfloat16().features.directions(x.device), second)
    other = mixer(RANDOM | {"seed": 6})
    assert not torch.equal(omega(other), first)


def test_texts_past_the_length_of_cosine_features_are_refused():
    module = mixer({"kind": "cosine", "length": 4})
    context = Context(Positions.of_self(torch.arange(5)[None]))
    with pytest.raises(ModelError, match="Position 4 lies past the 4 tokens"):
        module(torch.randn(1, 5, WIDTH), context)
