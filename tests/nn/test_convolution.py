"""Gated convolutions beside `torch.nn.functional.conv1d` on each text alone; steps; beams."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ModelError, UserError
from heedful.nn.mixer import Context, Reordering
from heedful.nn.mixer_spec import ConvolutionSpec
from heedful.nn.mixers.convolution import Convolution
from heedful.nn.positions import Positions

WIDTH = 4


def made(kernel_width, causal):
    torch.manual_seed(5)
    spec = ConvolutionSpec(kernel_width=kernel_width, causal=causal)
    module = Convolution(WIDTH, spec).double()
    with torch.no_grad():
        module.projection.bias.normal_()
    return module


def alone(module, text):
    """The outputs of one text [L, D], by another convolution."""
    k = len(module.offsets)
    weight = module.projection.weight.unflatten(1, (k, WIDTH)).transpose(1, 2)
    before, after = (k - 1, 0) if module.causal else (k // 2, k // 2)
    read = F.pad(text.T[None], (before, after))
    return F.glu(F.conv1d(read, weight, module.projection.bias), 1)[0].T


@pytest.mark.parametrize(
    ("kernel_width", "causal"), [(1, False), (3, False), (5, False), (2, True), (3, True)]
)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=3), left=st.booleans())
@settings(max_examples=10)
def test_outputs_and_gradients_are_those_of_each_text_alone(kernel_width, causal, lengths, left):
    module, size = made(kernel_width, causal), max(lengths) + 1
    x = torch.randn(len(lengths), size, WIDTH, dtype=torch.float64, requires_grad=True)
    positions = torch.full((len(lengths), size), -1)
    for row, length in enumerate(lengths):
        place = slice(size - length, None) if left else slice(0, length)
        positions[row, place] = torch.arange(length)
    y = module(x, Context(Positions.of_self(positions)))
    up, loss = torch.randn_like(y), (x * 0).sum() + sum((p * 0).sum() for p in module.parameters())
    for row, length in enumerate(lengths):
        real = positions[row] >= 0
        if length:
            expected = alone(module, x[row, real])
            torch.testing.assert_close(y[row, real], expected)
            loss = loss + (expected * up[row, real]).sum()
    assert not y[positions < 0].any()
    leaves = [x, *module.parameters()]
    ours = torch.autograd.grad((y * up).sum(), leaves)
    for one, other in zip(ours, torch.autograd.grad(loss, leaves), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kernel_width", [1, 2, 4])
@given(prompt=st.integers(0, 6), padding=st.integers(0, 3), left=st.booleans())
@settings(max_examples=8)
@torch.no_grad()
def test_steps_of_chosen_beams_are_those_of_one_pass(kernel_width, prompt, padding, left):
    module = made(kernel_width, True)
    text = torch.randn(prompt + 3, WIDTH, dtype=torch.float64)
    other = torch.randn(2, WIDTH, dtype=torch.float64)
    places = [*[-1] * padding, *range(prompt)] if left else [*range(prompt), *[-1] * padding]
    padded = torch.zeros(1, len(places), WIDTH, dtype=torch.float64)
    padded[0, [i for i, place in enumerate(places) if place >= 0]] = text[:prompt]
    state = module.initial_state(1, text)
    if places:
        context = Context(Positions.of_self(torch.tensor([places])))
        _, state = module.step(padded, state, context)
    state = state.reorder(Reordering(torch.tensor([[0, 0]])))

    def step(tokens, state):
        return module.step(
            tokens[None], state, Context(Positions.of_self(torch.zeros(1, 2).long()))
        )

    _, state = step(torch.stack([other[0], text[prompt]]), state)
    state = state.reorder(Reordering(torch.tensor([[1, 1]])))
    _, state = step(torch.stack([text[prompt + 1], other[1]]), state)
    y, _ = step(torch.stack([text[prompt + 2], other[0]]), state)
    torch.testing.assert_close(y[0, 0], alone(module, text)[-1])


def test_packed_texts_are_as_if_alone():
    module = made(3, False)
    x = torch.randn(1, 7, WIDTH, dtype=torch.float64)
    positions, segments = (
        torch.tensor([[0, 1, 2, 0, 1, 2, 3]]),
        torch.tensor([[0, 0, 0, 1, 1, 1, 1]]),
    )
    y = module(x, Context(Positions.of_self(positions, segments)))
    torch.testing.assert_close(y[0], torch.cat([alone(module, x[0, :3]), alone(module, x[0, 3:])]))


def test_variance_stays():
    torch.manual_seed(0)
    module = Convolution(256, ConvolutionSpec())
    x = torch.randn(8, 32, 256)
    y = module(x, Context(Positions.of_self(torch.arange(32).expand(8, 32))))
    assert 0.7 < float(y.detach()[:, 2:-2].var()) < 1.5


def test_what_has_no_sense_is_refused_with_the_reason():
    with pytest.raises(UserError, match="kernel_width 4 has no middle"):
        ConvolutionSpec.parse({"kernel_width": 4})
    with pytest.raises(ModelError, match="cannot go token by token"):
        made(3, False).initial_state(1, torch.empty(0))
