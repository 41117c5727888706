"""Mamba beside its recurrence in float64; padding, packing, steps and beams change nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import MambaSpec
from heedful.nn.mixers import selective_scan as scans
from heedful.nn.mixers.mamba import Mamba
from heedful.nn.mixers.selective_scan import selective_scan
from heedful.nn.positions import Positions

from .scan_cases import check_definition, check_neighbours, check_packed, check_steps, jittered

WIDTH = 6
LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=3)
PADS = st.lists(st.integers(0, 12), min_size=3, max_size=3)
FEW = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    """Several chunks even in a short text, and several pieces of channels."""
    monkeypatch.setattr(scans, "chunk_length", lambda length: 4)
    monkeypatch.setattr(scans, "_CACHED", 1)


def mixer(**sizes):
    torch.manual_seed(0)
    return jittered(Mamba(WIDTH, MambaSpec(**{"state_size": 3, "expansion": 3, **sizes})))


def naive(module, x):
    """Token by token, state by state."""
    spec, inner = module.spec, module.inner
    value, gate = (x @ module.projection.weight.T).split(inner, -1)
    taps, past = module.taps, torch.zeros(spec.convolution - 1, inner, dtype=x.dtype)
    a, h, outputs = -module.log_decay.exp(), torch.zeros(inner, spec.state_size).double(), []
    for token in value:
        past = torch.cat([past, token[None]])
        u = F.silu((past.T * taps).sum(1) + module.taps_bias)
        past = past[1:]
        ranks, b, c = (module.selection.weight @ u).split([module.rank, *[spec.state_size] * 2])
        step = F.softplus(module.step_size.weight @ ranks + module.step_size.bias)
        h = (step[:, None] * a).exp() * h + (step * u)[:, None] * b
        outputs.append(h @ c + module.skip * u)
    return (torch.stack(outputs) * F.silu(gate)) @ module.output.weight.T


@given(lengths=LENGTHS, pads=PADS, convolution=st.sampled_from([1, 4]))
@FEW
def test_it_is_its_recurrence(lengths, pads, convolution):
    check_definition(mixer(convolution=convolution), naive, lengths, pads[: len(lengths)])


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6))
@FEW
def test_packed_texts_are_as_if_alone(lengths):
    check_packed(mixer(), lengths)


@given(lengths=LENGTHS, pads=PADS, chunk=st.integers(1, 20))
@FEW
def test_steps_are_the_whole(lengths, pads, chunk):
    check_steps(mixer(), lengths, pads[: len(lengths)], chunk)


@given(lengths=LENGTHS, pads=PADS)
@FEW
def test_neighbours_and_padding_change_nothing(lengths, pads):
    check_neighbours(mixer(), lengths, pads[: len(lengths)])


@pytest.mark.parametrize("length", [1, 3, 4, 11])
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_of_the_scan(length, packed):
    torch.manual_seed(0)
    shapes = {"u": (2, length, 5), "step": (2, length, 5), "a": (3, 5)}
    shapes |= {"b": (2, length, 3), "c": (2, length, 3), "state": (2, 3, 5)}
    inputs = {name: torch.randn(shape).double() for name, shape in shapes.items()}
    inputs["step"], inputs["a"] = inputs["step"].exp(), -inputs["a"].exp()
    begins = (torch.rand(2, length) < 0.3) if packed else None
    values = [each.requires_grad_() for each in inputs.values()]
    assert torch.autograd.gradcheck(lambda *args: selective_scan(*args, begins), values)


def test_long_steps_forget_and_do_not_overflow():
    module = mixer()
    with torch.no_grad():
        module.step_size.bias.fill_(200.0)
    x = torch.randn(1, 40, WIDTH, requires_grad=True)
    y = module(x, Context(Positions.of_self(torch.arange(40)[None])))
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_the_state_does_not_grow():
    module = mixer()
    assert module.state_bytes(1, 4) == module.state_bytes(10_000, 4) == 4 * 18 * (3 + 3)


@torch.no_grad()
def test_operations_of_maps_are_those_of_a_run():
    module, length = mixer(), 12
    context = Context(Positions.of_self(torch.arange(length)[None]))
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(1, length, WIDTH), context)
    reads = 2 * length * 18 * 3  # C h, the only part of the scan that is a product of matrices
    assert counter.get_total_flops() == module.work(length, length).weights + reads
