"""Linformer beside its formula in float64; padding, packing, lengths and steps."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from heedful.errors import ConfigError, ModelError
from heedful.models import cost
from heedful.models.encoder import EncoderModel
from heedful.models.encoder_spec import EncoderSpec
from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import LinformerSpec
from heedful.nn.mixers.linformer import Linformer
from heedful.nn.positions import Positions

from ..on_processor import on_processor

WIDTH, HEADS, RANK, LENGTH = 12, 3, 5, 20


def mixer(sharing="heads"):
    torch.manual_seed(0)
    spec = LinformerSpec(num_heads=HEADS, rank=RANK, length=LENGTH, sharing=sharing)
    return Linformer(WIDTH, spec)


def by_formula(module, x):
    """Equation 7 of Wang 2020 for one text [L, D], head by head."""
    weight, bias = module.projection.weight.double(), module.projection.bias.double()
    mapped = (x.double() @ weight.T + bias).view(len(x), 3, HEADS, -1)
    shared = module.spec.sharing == "key_value"
    heads = []
    for head in range(HEADS):
        q, k, v = mapped[:, 0, head], mapped[:, 1, head], mapped[:, 2, head]
        own = head if module.spec.sharing == "none" else 0
        e = module.key_sums[own, :, : len(x)].double()
        f = e if shared else module.value_sums[own, :, : len(x)].double()
        weights = torch.softmax(q @ (e @ k).T / (WIDTH / HEADS) ** 0.5, -1)
        heads.append(weights @ (f @ v))
    return torch.cat(heads, -1) @ module.output.weight.double().T + module.output.bias.double()


@pytest.mark.parametrize("sharing", ["none", "heads", "key_value"])
@pytest.mark.parametrize("left", [False, True])
def test_output_and_gradients_are_the_papers_whatever_padding(sharing, left):
    module, lengths, size = mixer(sharing), (9, 1, 14), 15
    positions = torch.full((3, size), -1)
    for row, length in enumerate(lengths):
        place = slice(size - length, None) if left else slice(0, length)
        positions[row, place] = torch.arange(length)
    x = torch.randn(3, size, WIDTH, requires_grad=True)
    real = positions >= 0
    found = module(x, Context(Positions.of_self(positions)))[real]
    expected = torch.cat([by_formula(module, row[at]) for row, at in zip(x, real, strict=True)])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    up = torch.randn_like(found)
    parameters = [x, *module.parameters()]
    for one, other in zip(
        torch.autograd.grad(found, parameters, up),
        torch.autograd.grad(expected, parameters, up.double()),
        strict=True,
    ):
        torch.testing.assert_close(one, other.to(one), rtol=1e-4, atol=1e-5)


def encoder(length):
    part = {"kind": "linformer", "num_heads": HEADS, "rank": RANK, "length": length}
    sublayers = [{"name": "mixer", "part": part}]
    stack = {"num_layers": 2, "pattern": [{"sublayers": sublayers}]}
    return EncoderModel(EncoderSpec.parse({"width": WIDTH, "vocabulary": 30, "encoder": stack}))


def test_training_without_padding_is_the_same():
    model = encoder(LENGTH)
    ids, positions = torch.randint(30, (2, 12)), torch.full((2, 12), -1)
    positions[0], positions[1, :3] = torch.arange(12), torch.arange(3)
    real = positions >= 0
    with on_processor(model):
        trained = model.train()(ids, positions)
    for plain in (model(ids, positions), model.eval()(ids, positions)):
        torch.testing.assert_close(trained[real], plain[real], rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_cost_grows_with_the_length_and_is_what_is_counted():
    work = []
    for length in (100, 200):
        model = encoder(length).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.randint(30, (1, length)), torch.arange(length)[None])
        work.append(counter.get_total_flops())
        assert work[-1] == cost.encoding_work(model.spec, length).total
    assert work[1] == 2 * work[0]


def test_what_it_cannot_do_is_refused():
    module, x = mixer(), torch.randn(1, 4, WIDTH)
    with pytest.raises(ModelError, match="token by token"):
        module.initial_state(1, x)
    positions = torch.arange(4)[None]
    with pytest.raises(ModelError, match="packed texts"):
        module(x, Context(Positions.of_self(positions, positions // 2)))
    with pytest.raises(ModelError, match="Position 20 lies past the 20 tokens"):
        module(x, Context(Positions.of_self(positions + 17)))
    with pytest.raises(ConfigError, match="more sums than tokens"):
        LinformerSpec.parse({"num_heads": 2, "rank": 8, "length": 7})
