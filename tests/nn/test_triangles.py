"""Triangle multiplication and attention beside loops over residues in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from heedful.errors import ModelError
from heedful.models import cost
from heedful.models.encoder import EncoderModel
from heedful.models.encoder_spec import EncoderSpec
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context, build_part
from heedful.nn.pair_mixer_spec import TriangleAttentionSpec, TriangleMultiplicationSpec
from heedful.nn.positions import Positions

from ..on_processor import on_processor

WIDTH, SIDE, HEADS = 6, 3, 2
SPECS = {
    "outgoing": TriangleMultiplicationSpec(side=SIDE, edges="outgoing", width=4),
    "incoming": TriangleMultiplicationSpec(side=SIDE, edges="incoming", width=4),
    "starting": TriangleAttentionSpec(side=SIDE, node="starting", num_heads=HEADS),
    "ending": TriangleAttentionSpec(side=SIDE, node="ending", num_heads=HEADS),
}


def mixer(name):
    torch.manual_seed(2)
    module = build_part(WIDTH, SPECS[name])
    with torch.no_grad():  # biases begin at 0, where they say nothing
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def linear(state, name, z):
    weight, bias = state[f"{name}.weight"], state.get(f"{name}.bias")
    return weight @ z if bias is None else weight @ z + bias


def norm(state, z):
    deviation = ((z - z.mean()) ** 2).mean().add(1e-5).sqrt()
    return (z - z.mean()) / deviation * state["norm.weight"] + state["norm.bias"]


def multiplied(state, z, i, j, incoming):
    """Algorithm 11 or 12 of Jumper 2021 for one edge of z, a dictionary of the pairs there are."""

    def factor(side, edge):
        gate = torch.sigmoid(linear(state, f"{side}_gate", z[edge]))
        return gate * linear(state, side, z[edge])

    total = torch.zeros(4, dtype=torch.float64)
    for k in range(SIDE):
        one, two = ((k, i), (k, j)) if incoming else ((i, k), (j, k))
        if one in z and two in z:
            total = total + factor("left", one) * factor("right", two)
    gate = torch.sigmoid(linear(state, "output_gate", z[i, j]))
    return gate * linear(state, "output", norm(state, total))


def attended(state, z, i, j, ending):
    """Algorithm 13 or 14 of Jumper 2021 for one edge."""
    heads = []
    for head in range(HEADS):

        def own(name, edge, head=head):
            return linear(state, name, z[edge]).view(HEADS, -1)[head]

        q, scores, values = own("query", (i, j)), [], []
        for k in range(SIDE):
            key, third = ((k, j), (k, i)) if ending else ((i, k), (j, k))
            if key not in z:
                continue
            bias = linear(state, "edge_bias", z[third])[head] if third in z else 0.0
            scores.append(q @ own("key", key) / len(q) ** 0.5 + bias)
            values.append(own("value", key))
        weights = torch.softmax(torch.stack(scores), 0)
        mixed = (weights[:, None] * torch.stack(values)).sum(0)
        heads.append(torch.sigmoid(own("gate", (i, j))) * mixed)
    return linear(state, "output", torch.cat(heads))


def by_loops(module, name, x, places):
    """The update of a sequence [L, D] whose tokens have these positions; the first pair is at 1."""
    state = {key: value.double() for key, value in module.state_dict(keep_vars=True).items()}
    rows = {divmod(at - 1, SIDE): row for row, at in enumerate(places) if 1 <= at <= SIDE * SIDE}
    z = {edge: x[row].double() for edge, row in rows.items()}
    result = [torch.zeros(WIDTH, dtype=torch.float64)] * len(places)
    for (i, j), row in rows.items():
        update = multiplied if name in ("outgoing", "incoming") else attended
        result[row] = update(state, z, i, j, name in ("incoming", "ending"))
    return torch.stack(result)


@pytest.mark.parametrize("name", SPECS)
def test_output_and_gradients_are_the_papers_whatever_padding(name):
    module = mixer(name)
    whole = [-1, *range(SIDE * SIDE + 2), -1]
    lacking = [-1, -1, 0, 3, 1, 2, 7, 5, 4, -1, -1, -1, -1]  # pairs 5, 7 and 8 are missing
    positions = torch.tensor([whole, lacking])
    x = torch.randn(2, len(whole), WIDTH, requires_grad=True)
    real = positions >= 0
    found = module(x, Context(Positions.of_self(positions)))[real]
    rows = zip(x, positions.tolist(), strict=True)
    expected = torch.cat([by_loops(module, name, *row) for row in rows])[real.flatten()]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    up = torch.randn_like(found)
    parameters = [x, *module.parameters()]
    for one, other in zip(
        torch.autograd.grad(found, parameters, up),
        torch.autograd.grad(expected, parameters, up.double()),
        strict=True,
    ):
        torch.testing.assert_close(one, other.to(one), rtol=1e-4, atol=1e-5)


@given(order=st.permutations(range(SIDE)))
@settings(max_examples=10, deadline=None)
@torch.no_grad()
def test_residues_have_no_order(order):
    """Renaming the residues renames the updates: only positions tell a chain's direction."""
    pairs = torch.randn(1, SIDE, SIDE, WIDTH)
    for name in SPECS:
        module, context = mixer(name), Context(Positions.counting(1, SIDE**2 + 1, pairs.device))

        def update(grid, module=module, context=context):
            x = torch.cat([torch.zeros(1, 1, WIDTH), grid.flatten(1, 2)], 1)
            return module(x, context)[:, 1:].unflatten(1, (SIDE, SIDE))

        renamed = update(pairs[:, order][:, :, order])
        torch.testing.assert_close(renamed, update(pairs)[:, order][:, :, order])


@torch.no_grad()
def test_a_capture_has_the_weights_of_triangles():
    module, capture = mixer("ending"), Capture(["mixer.triangles"])
    x = torch.randn(2, SIDE**2 + 1, WIDTH)
    positions = torch.arange(SIDE**2 + 1).repeat(2, 1)
    positions[1, 4] = -1  # pair (1, 0)
    module(x, Context(Positions.of_self(positions), capture=capture, address="mixer"))
    weights = capture.found["mixer.triangles"]
    assert weights.shape == (2, HEADS, SIDE, SIDE, SIDE)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, SIDE, SIDE))
    assert (weights[0] > 0).all()
    # Edge (i, 0) reads (k, 0) at [0, i, k].
    assert (weights[1, :, 0, :, 1] == 0).all()


def encoder(**own):
    parts = [{"name": name, "part": spec.plain()} for name, spec in SPECS.items()]
    stack = {"num_layers": 2, "pattern": [{"sublayers": parts}]}
    return EncoderModel(EncoderSpec.parse({"width": WIDTH, "vocabulary": 30, "encoder": stack}))


def test_training_on_a_processor_is_the_same():
    model = encoder()
    length = SIDE**2 + 2
    ids, positions = torch.randint(30, (2, length)), torch.full((2, length), -1)
    positions[0], positions[1, :4] = torch.arange(length), torch.arange(4)
    real = positions >= 0
    with on_processor(model):
        trained = model.train()(ids, positions)
    torch.testing.assert_close(trained[real], model.eval()(ids, positions)[real])


@torch.no_grad()
def test_cost_is_what_is_counted():
    model, length = encoder().eval(), SIDE**2 + 2
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(30, (1, length)), torch.arange(length)[None])
    assert counter.get_total_flops() == cost.encoding_work(model.spec, length).total


@pytest.mark.parametrize("name", SPECS)
def test_what_it_cannot_do_is_refused(name):
    module, x = mixer(name), torch.randn(1, SIDE**2 + 1, WIDTH)
    with pytest.raises(ModelError, match="token by token"):
        module.initial_state(1, x)
    positions = torch.arange(SIDE**2 + 1)[None]
    with pytest.raises(ModelError, match="packed chains"):
        module(x, Context(Positions.of_self(positions, positions // 2)))
    with pytest.raises(ModelError, match=r"9 tokens cannot hold the 3 × 3 pairs .* position 1"):
        module(x[:, :-1])
