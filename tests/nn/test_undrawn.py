"""Modules that are about to be overwritten are built without drawing their first weights."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from heedful.models.build import build_model
from heedful.models.shape import TranslatorShape
from heedful.nn.recurrent import RecurrentEncoder
from heedful.nn.undrawn import undrawn

SPEC = TranslatorShape(
    width=16, encoder_layers=2, decoder_layers=2, num_heads=2, feedforward=32
).expand(40, 40)
RANDOM = ("uniform_", "normal_", "random_", "bernoulli_", "randn", "rand", "randint", "randperm")


class Watched(TorchFunctionMode):
    """Counts the numbers that are drawn."""

    drawn = 0

    def __torch_function__(self, function, types, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        owner = getattr(function, "__objclass__", None) or getattr(function, "__self__", None)
        if function.__name__ in RANDOM and owner is not nn.init:
            self.drawn += result.numel()
        return result


def drawn_by(make) -> int:
    with Watched() as watched:
        make()
    return watched.drawn


def test_nothing_is_drawn():
    def quietly():
        with undrawn():
            build_model(SPEC)

    weights = sum(p.numel() for p in build_model(SPEC).parameters() if p.dim() == 2)
    assert drawn_by(lambda: build_model(SPEC)) >= weights
    assert drawn_by(quietly) == 0


def test_the_same_tensors_are_there_and_new_models_are_drawn_again():
    with undrawn():
        model = build_model(SPEC)
    torch.manual_seed(3)
    other, before = build_model(SPEC), torch.get_rng_state()
    assert {n: t.shape for n, t in model.state_dict().items()} == {
        n: t.shape for n, t in other.state_dict().items()
    }
    layer = nn.Linear(400, 400)
    assert 0 < layer.weight.std() < 1 / math.sqrt(400)
    torch.set_rng_state(before)
    with undrawn():
        build_model(SPEC)
    assert torch.equal(torch.get_rng_state(), before)


def test_maps_that_start_orthogonal_are_computed_from_numbers():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with undrawn():
        layers = RecurrentEncoder(8, 2, "gru").layers
    for name, matrix in layers.named_parameters():
        if name.startswith("weight_hh"):
            for gate in matrix.split(8):
                torch.testing.assert_close(gate @ gate.T, torch.eye(8))
    assert torch.equal(torch.get_rng_state(), before)
