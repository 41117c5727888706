"""Linear recurrences beside a loop over tokens; average attention and SSRU beside their papers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import AverageAttentionSpec, SSRUSpec
from heedful.nn.mixers.average_attention import AverageAttention
from heedful.nn.mixers.linear_scan import scan
from heedful.nn.mixers.ssru import SSRU
from heedful.nn.positions import Positions

WIDTH = 6


def loop(decay, value, initial):
    states, state = [], initial
    for t in range(value.shape[1]):
        state = decay[:, t] * state + value[:, t]
        states.append(state)
    return torch.stack(states, 1)


@given(length=st.integers(1, 70), batch=st.integers(1, 2), start=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_scan_is_the_loop_forward_and_backward(length, batch, start):
    torch.manual_seed(0)
    options = {"dtype": torch.float64, "requires_grad": True}
    decay, value = (torch.rand(batch, length, 3, **options) for _ in range(2))
    initial = torch.randn(batch, 3, **options)
    found = scan(decay, value, initial if start else None)
    expected = loop(decay, value, initial if start else torch.zeros_like(initial))
    torch.testing.assert_close(found, expected)
    inputs = (decay, value, initial) if start else (decay, value)
    up = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, inputs, up),
        torch.autograd.grad(expected, inputs, up),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_no_decay_is_a_running_sum_of_any_length():
    value = torch.randn(1, 5000, 2, dtype=torch.float64)
    torch.testing.assert_close(scan(torch.ones_like(value), value), value.cumsum(1))
    assert scan(value[:, :0], value[:, :0]).shape == (1, 0, 2)


def average_attention(**own):
    torch.manual_seed(2)
    return AverageAttention(WIDTH, AverageAttentionSpec(**own)).double()


def of_paper(module, y):
    """Equations 1 to 4 of Zhang 2018 for one text [L, D], a token at a time."""
    outputs = []
    for j in range(len(y)):
        g = sum(y[k] for k in range(j + 1)) / (j + 1)
        if module.network is not None:
            up, down = module.network.up, module.network.down
            g = down.weight @ torch.clamp(up.weight @ g + up.bias, min=0) + down.bias
        if module.gate is not None:
            gates = module.gate.weight @ torch.cat([y[j], g]) + module.gate.bias
            gates = 1 / (1 + torch.exp(-gates))
            g = gates[:WIDTH] * y[j] + gates[WIDTH:] * g
        outputs.append(g)
    return torch.stack(outputs)


def of_kim(module, y):
    """Section 3.1 of Kim 2019 for one text, a token at a time."""
    cell, outputs = torch.zeros(WIDTH, dtype=torch.float64), []
    for x in y:
        forget = 1 / (1 + torch.exp(-(module.forget.weight @ x + module.forget.bias)))
        cell = forget * cell + (1 - forget) * (module.value.weight @ x)
        outputs.append(torch.clamp(cell, min=0))
    return torch.stack(outputs)


def ssru():
    torch.manual_seed(3)
    return SSRU(WIDTH, SSRUSpec()).double()


MIXERS = {
    "average": (average_attention, of_paper),
    "no network": (lambda: average_attention(feedforward=0), of_paper),
    "no gate": (lambda: average_attention(gate=False, feedforward=5), of_paper),
    "ssru": (ssru, of_kim),
}


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("left", [False, True])
def test_whole_texts_and_gradients_are_the_papers_whatever_padding(name, left):
    build, paper = MIXERS[name]
    module, lengths, size = build(), (9, 1, 5), 10
    positions = torch.full((3, size), -1)
    for row, length in enumerate(lengths):
        place = slice(size - length, None) if left else slice(0, length)
        positions[row, place] = torch.arange(length)
    x = torch.randn(3, size, WIDTH, dtype=torch.float64, requires_grad=True)
    found = module(x, Context(Positions.of_self(positions)))
    expected = torch.cat(
        [paper(module, row[at >= 0]) for row, at in zip(x, positions, strict=True)]
    )
    real = positions >= 0
    # States are float32.
    torch.testing.assert_close(found[real], expected, rtol=1e-5, atol=1e-6)
    up = torch.randn_like(expected)
    parameters = [x, *module.parameters()]
    for one, other in zip(
        torch.autograd.grad(found[real], parameters, up),
        torch.autograd.grad(expected, parameters, up),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MIXERS)
def test_the_state_does_not_grow(name):
    module = MIXERS[name][0]().float()
    state = module.initial_state(2, torch.empty(0))
    for at in range(3):
        context = Context(Positions.of_self(torch.full((2, 1), at)))
        _, state = module.step(torch.randn(2, 1, WIDTH), state, context)
        assert state.tensors[0].numel() * 4 == 2 * module.state_bytes(at + 1, 4)
