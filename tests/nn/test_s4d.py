"""S4D beside its recurrence in float64; padding, packing, steps and beams change nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import S4DSpec
from heedful.nn.mixers import s4d
from heedful.nn.mixers.s4d import S4D, initial_frequencies
from heedful.nn.positions import Positions

from .scan_cases import check_definition, check_neighbours, check_packed, check_steps, jittered

WIDTH = 6
FIXTURE = [HealthCheck.function_scoped_fixture]
LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=3)
PADS = st.lists(st.integers(0, 12), min_size=3, max_size=3)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(s4d, "_CHUNK", 8)


def mixer(discretization: str = "zoh", initialization: str = "lin") -> S4D:
    spec = S4DSpec(state_size=8, discretization=discretization, initialization=initialization)
    torch.manual_seed(0)
    return jittered(S4D(WIDTH, spec))


def naive(module: S4D, x: torch.Tensor) -> torch.Tensor:
    """h' = A h + u by steps: exactly between tokens, or by the trapezoid rule."""
    step = module.log_step.exp()[:, None]
    a = torch.complex(-module.log_decay.exp(), module.frequency)
    if module.discretization == "zoh":
        factor = (step * a).exp()
        entry = (factor - 1) / a
    else:
        factor = (2 + step * a) / (2 - step * a)
        entry = 2 * step / (2 - step * a)
    c = torch.complex(module.readout[..., 0], module.readout[..., 1])
    h, outputs = torch.zeros_like(a), []
    for u in x:
        h = factor * h + entry * u[:, None]
        outputs.append(2 * (c * h).sum(-1).real + module.skip * u)
    y = torch.nn.functional.gelu(torch.stack(outputs))
    value, gate = (y @ module.output.weight.T + module.output.bias).chunk(2, -1)
    return value * torch.sigmoid(gate)


@given(
    lengths=LENGTHS,
    pads=PADS,
    discretization=st.sampled_from(["zoh", "bilinear"]),
    initialization=st.sampled_from(["lin", "inv"]),
)
@settings(max_examples=10, deadline=None, suppress_health_check=FIXTURE)
def test_it_is_its_recurrence(lengths, pads, discretization, initialization):
    module = mixer(discretization, initialization)
    check_definition(module, naive, lengths, pads[: len(lengths)])


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6))
@settings(max_examples=10, deadline=None, suppress_health_check=FIXTURE)
def test_packed_texts_are_as_if_alone(lengths):
    check_packed(mixer(), lengths)


@given(lengths=LENGTHS, pads=PADS, chunk=st.integers(1, 20))
@settings(max_examples=10, deadline=None, suppress_health_check=FIXTURE)
def test_steps_are_the_whole(lengths, pads, chunk):
    check_steps(mixer(), lengths, pads[: len(lengths)], chunk)


@given(lengths=LENGTHS, pads=PADS)
@settings(max_examples=6, deadline=None, suppress_health_check=FIXTURE)
def test_neighbours_and_padding_change_nothing(lengths, pads):
    check_neighbours(mixer(), lengths, pads[: len(lengths)])


def test_states_start_as_in_the_paper():
    lin = initial_frequencies(S4DSpec(state_size=8))
    torch.testing.assert_close(lin, torch.tensor([0, math.pi, 2 * math.pi, 3 * math.pi]))
    inverse = initial_frequencies(S4DSpec(state_size=8, initialization="inv"))
    expected = [8 / math.pi * (8 / (2 * n + 1) - 1) for n in range(4)]
    torch.testing.assert_close(inverse, torch.tensor(expected))
    torch.manual_seed(0)
    module = S4D(200, S4DSpec())
    assert module.log_decay.exp().eq(0.5).all()
    steps = module.log_step.exp()
    assert 0.001 <= steps.min() < 0.002
    assert 0.05 < steps.max() <= 0.1


def test_the_state_does_not_grow():
    module = mixer()
    assert module.state_bytes(1, 4) == module.state_bytes(10_000, 4) == WIDTH * 4 * 8


@pytest.mark.parametrize("length", [5, 8, 19])
@torch.no_grad()
def test_operations_are_those_of_a_run(length):
    module = S4D(16, S4DSpec(state_size=8))
    context = Context(Positions.of_self(torch.arange(length)[None]))
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(1, length, 16), context)
    assert counter.get_total_flops() == module.work(length, length).total
