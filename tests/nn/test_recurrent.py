"""The recurrent baseline, against loops over single tokens in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ModelError, UserError
from heedful.models.build import build_model
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import RecurrentSpec
from heedful.nn.mixers.recurrent import RecurrentEncoder, RecurrentMixer
from heedful.nn.positions import Positions

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


def mixer(cell, direction, width=6):
    torch.manual_seed(2)
    module = RecurrentMixer(width, RecurrentSpec(cell=cell, direction=direction)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize("cell", CELLS)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=3), left=st.booleans())
@settings(max_examples=10)
def test_directions_and_gradients_are_those_of_torch_on_each_text_alone(
    cell, direction, lengths, left
):
    module, size = mixer(cell, direction), max(lengths) + 1
    x = torch.randn(len(lengths), size, 6, dtype=torch.float64, requires_grad=True)
    positions = torch.full((len(lengths), size), -1)
    places = [slice(size - n, None) if left else slice(0, n) for n in lengths]
    for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
        positions[row, place] = torch.arange(length)
    y = module(x, Context(Positions.of_self(positions)))
    alone, loss = module.layer.layers, x.new_zeros(())
    up = torch.randn_like(y)
    for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
        if length:
            text = x[row : row + 1, place]
            text = text.flip(1) if direction == "backward" else text
            expected = alone(text)[0]
            expected = expected.flip(1) if direction == "backward" else expected
            torch.testing.assert_close(y[row : row + 1, place], expected)
            loss = loss + (expected[0] * up[row, place]).sum()
    assert not y[positions < 0].any()
    if loss.requires_grad:
        leaves = [x, *module.parameters()]
        for one, other in zip(
            torch.autograd.grad((y * up).sum(), leaves),
            torch.autograd.grad(loss, leaves),
            strict=True,
        ):
            torch.testing.assert_close(one, other)


def language_model(cell, residual=False):
    torch.manual_seed(0)
    part = {"kind": "recurrent", "cell": cell}
    layer = {"name": "recurrent", "part": part, "norm_placement": "none", "residual": residual}
    stack = {"num_layers": 2, "pattern": [{"sublayers": [layer]}]}
    return build_model(CausalLMSpec.parse({"width": 8, "vocabulary": 20, "decoder": stack})).eval()


@pytest.mark.parametrize("cell", CELLS)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    left=st.booleans(),
    chunk=st.integers(1, 4),
)
@settings(max_examples=8)
@torch.no_grad()
def test_language_models_go_on_from_a_prompt_as_in_one_pass(cell, lengths, left, chunk):
    model, size = language_model(cell), max(lengths)
    ids = torch.randint(20, (len(lengths), size))
    positions = torch.full((len(lengths), size), -1)
    for row, length in enumerate(lengths):
        place = slice(size - length, None) if left else slice(0, length)
        positions[row, place] = torch.arange(length)
    texts = [row[at >= 0].tolist() for row, at in zip(ids, positions, strict=True)]
    state = model.start(ids, positions, chunk=chunk)
    state = model.reorder(state, torch.arange(len(lengths))[:, None].expand(-1, 2))
    for step in range(2):
        tokens = torch.randint(20, (len(lengths), 2))
        logits, state = model.step(state, tokens)
        for row, text in enumerate(texts):
            if not step:
                texts[row] = text = [text, text]
            for beam in range(2):
                text[beam] = [*text[beam], int(tokens[row, beam])]
                whole = torch.tensor([text[beam]])
                expected = model.logits(model(whole, torch.arange(whole.shape[1])[None]))[0, -1]
                torch.testing.assert_close(logits[row, beam], expected, rtol=1e-4, atol=1e-5)


def test_packed_texts_are_as_if_alone():
    model = language_model("gru", residual=True)
    ids = torch.randint(20, (2, 9))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 0, 1, 2, 3, 4, -1, -1]])
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1, 1]])
    together = model(ids, positions, segments)
    for row, part in ((0, slice(0, 4)), (0, slice(4, 9)), (1, slice(0, 2)), (1, slice(2, 7))):
        alone = model(ids[row : row + 1, part], positions[row : row + 1, part])
        torch.testing.assert_close(together[row : row + 1, part], alone, rtol=1e-4, atol=1e-6)


def test_what_reads_ahead_does_not_write():
    with pytest.raises(ModelError, match="cannot go token by token"):
        mixer("gru", "both").initial_state(1, torch.empty(0))
    layer = {"name": "recurrent", "part": {"kind": "recurrent", "direction": "both"}}
    stack = {"num_layers": 1, "pattern": [{"sublayers": [layer]}]}
    values = {"width": 8, "vocabulary": 20}
    with pytest.raises(UserError, match="direction both reads tokens not written yet"):
        CausalLMSpec.parse(values | {"decoder": stack})
    with pytest.raises(UserError, match="two directions have half of it each"):
        EncoderSpec.parse(values | {"width": 7, "encoder": stack})
    EncoderSpec.parse(values | {"encoder": stack})
