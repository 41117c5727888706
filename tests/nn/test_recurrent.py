"""The recurrent baseline, against loops over single tokens in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.nn.recurrent import RecurrentEncoder

CELLS = ["rnn", "lstm", "gru"]
WIDTH = 5


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def step(cell, read, kept, state, memory):
    """One token: `read` and `kept` are the maps of input and state with their biases applied."""
    if cell == "rnn":
        return np.tanh(read + kept), memory
    if cell == "gru":
        (r1, z1, n1), (r2, z2, n2) = np.split(read, 3), np.split(kept, 3)
        reset, update = sigmoid(r1 + r2), sigmoid(z1 + z2)
        return (1 - update) * np.tanh(n1 + reset * n2) + update * state, memory
    enter, forget, new, leave = np.split(read + kept, 4)
    memory = sigmoid(forget) * memory + sigmoid(enter) * np.tanh(new)
    return sigmoid(leave) * np.tanh(memory), memory


def by_loop(encoder, tokens):
    """States [L, D] of the tokens [L, D] of one text."""
    weights = {name: p.detach().numpy() for name, p in encoder.layers.named_parameters()}
    for layer in range(encoder.layers.num_layers):
        state = memory = np.zeros(tokens.shape[1])
        states = []
        for token in tokens:
            read = weights[f"weight_ih_l{layer}"] @ token + weights[f"bias_ih_l{layer}"]
            kept = weights[f"weight_hh_l{layer}"] @ state + weights[f"bias_hh_l{layer}"]
            state, memory = step(encoder.cell, read, kept, state, memory)
            states.append(state)
        tokens = np.stack(states)
    return tokens


def made(cell, layers=2):
    torch.manual_seed(0)
    encoder = RecurrentEncoder(WIDTH, layers, cell).double()
    with torch.no_grad():  # no bias at its neutral start
        for parameter in encoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return encoder


@pytest.mark.parametrize("cell", CELLS)
@given(data=st.data())
@settings(max_examples=25)
def test_states_are_those_of_a_loop_wherever_padding_stands(cell, data):
    length = data.draw(st.integers(1, 6))
    rows = data.draw(
        st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=4)
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    x = rng.normal(size=(len(rows), length, WIDTH))
    positions = np.full((len(rows), length), -1)
    for row, real in enumerate(rows):
        # In any order: what is read next is what stands next, not what is stored next.
        positions[row, real] = rng.permutation(sum(real)) * 3
    encoder = made(cell)
    found = encoder(torch.from_numpy(x), torch.from_numpy(positions)).detach().numpy()
    for row in range(len(rows)):
        places = [p for p in np.argsort(positions[row]) if positions[row, p] >= 0]
        if places:
            expected = by_loop(encoder, x[row, places])
            np.testing.assert_allclose(found[row, places], expected, rtol=1e-9, atol=1e-12)
        assert not found[row, positions[row] < 0].any()


@pytest.mark.parametrize("cell", CELLS)
def test_padding_has_no_gradient_and_gets_none(cell):
    encoder = made(cell)
    x = torch.randn(2, 4, WIDTH, dtype=torch.float64, requires_grad=True)
    positions = torch.tensor([[-1, 0, 1, -1], [-1, -1, -1, -1]])
    encoder(x, positions).sum().backward()
    assert x.grad[0, 1:3].abs().min() > 0
    assert not x.grad[0, [0, 3]].any()
    assert not x.grad[1].any()
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters())


@pytest.mark.parametrize("cell", CELLS)
def test_start(cell):
    """Orthogonal state maps gate by gate; the gate that keeps is open as far as it was asked."""
    encoder = RecurrentEncoder(WIDTH, 2, cell, keep_bias=3.0)
    eye = torch.eye(WIDTH)
    for name, parameter in encoder.layers.named_parameters():
        parts = parameter.split(WIDTH)
        if name.startswith("weight_hh"):
            for part in parts:
                torch.testing.assert_close(part @ part.T, eye, rtol=0, atol=1e-5)
        elif name.startswith("bias"):
            kept = [float(part.detach().mean()) for part in parts]
            gated = cell != "rnn" and name.startswith("bias_ih")
            assert kept == ([0.0, 3.0, 0.0, 0.0][: len(kept)] if gated else [0.0] * len(kept))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_an_open_gate_keeps_the_first_token(cell):
    """With a gate that hardly closes, the first token is still felt 30 steps later."""
    felt = {}
    for bias in (-2.0, 8.0):
        torch.manual_seed(1)
        encoder = RecurrentEncoder(WIDTH, 1, cell, keep_bias=bias)
        x = torch.randn(1, 30, WIDTH, requires_grad=True)
        encoder(x, torch.arange(30)[None])[0, -1].sum().backward()
        felt[bias] = float(x.grad[0, 0].norm())
    assert felt[8.0] > 1e-4 > 1e6 * felt[-2.0]
