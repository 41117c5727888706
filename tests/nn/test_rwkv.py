"""RWKV beside its definition in float64; padding, packing, steps and beams change nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import ChannelMixSpec, RWKVSpec
from heedful.nn.mixers import rwkv
from heedful.nn.mixers.rwkv import ChannelMix, TimeMix
from heedful.nn.positions import Positions

from .scan_cases import check_definition, check_neighbours, check_packed, check_steps, jittered

WIDTH = 6
LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=3)
PADS = st.lists(st.integers(0, 12), min_size=3, max_size=3)
FEW = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
BOTH = st.sampled_from(["time", "channel"])


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(rwkv, "chunk_length", lambda length: min(length, 4))


def mixer(name):
    torch.manual_seed(0)
    if name == "time":
        return jittered(TimeMix(WIDTH, RWKVSpec()))
    return jittered(ChannelMix(WIDTH, ChannelMixSpec(width=10)))


def shifted(x, share):
    before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    return x * share + before * (1 - share)


def naive_time(module, x):
    """Every weight of every token for every other, as the paper writes it."""
    k = shifted(x, module.key_mix) @ module.key.weight.T
    v = shifted(x, module.value_mix) @ module.value.weight.T
    r = shifted(x, module.receptance_mix) @ module.receptance.weight.T
    w, outputs = module.decay.exp(), []
    for t in range(len(x)):
        logs = [k[i] - (t - 1 - i) * w for i in range(t)] + [k[t] + module.bonus]
        shares = torch.stack(logs).softmax(0)
        outputs.append((shares * v[: t + 1]).sum(0))
    return (r.sigmoid() * torch.stack(outputs)) @ module.output.weight.T


def naive_channel(module, x):
    k = (shifted(x, module.key_mix) @ module.key.weight.T).clamp(min=0) ** 2
    r = shifted(x, module.receptance_mix) @ module.receptance.weight.T
    return r.sigmoid() * (k @ module.value.weight.T)


NAIVE = {"time": naive_time, "channel": naive_channel}


@given(lengths=LENGTHS, pads=PADS, name=BOTH)
@FEW
def test_it_is_its_definition(lengths, pads, name):
    check_definition(mixer(name), NAIVE[name], lengths, pads[: len(lengths)])


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6), name=BOTH)
@FEW
def test_packed_texts_are_as_if_alone(lengths, name):
    check_packed(mixer(name), lengths)


@given(lengths=LENGTHS, pads=PADS, chunk=st.integers(1, 20), name=BOTH)
@FEW
def test_steps_are_the_whole(lengths, pads, chunk, name):
    check_steps(mixer(name), lengths, pads[: len(lengths)], chunk)


@given(lengths=LENGTHS, pads=PADS, name=BOTH)
@FEW
def test_neighbours_and_padding_change_nothing(lengths, pads, name):
    check_neighbours(mixer(name), lengths, pads[: len(lengths)])


@pytest.mark.parametrize("size", [300.0, -300.0])
def test_weights_neither_overflow_nor_vanish(size):
    module = mixer("time")
    x = (torch.randn(1, 30, WIDTH) * size).requires_grad_()
    y = module(x, Context(Positions.of_self(torch.arange(30)[None])))
    expected = naive_time(mixer("time").double(), x[0].detach().double())
    torch.testing.assert_close(y[0].double(), expected, rtol=1e-3, atol=0.1)
    y.sum().backward()
    assert x.grad.isfinite().all()


def test_the_state_does_not_grow():
    assert mixer("time").state_bytes(10_000, 4) == 4 * 4 * WIDTH
    assert mixer("channel").state_bytes(10_000, 4) == 4 * WIDTH


@pytest.mark.parametrize("name", ["time", "channel"])
@torch.no_grad()
def test_operations_of_maps_are_those_of_a_run(name):
    module, context = mixer(name), Context(Positions.of_self(torch.arange(9)[None]))
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(1, 9, WIDTH), context)
    assert counter.get_total_flops() == module.work(9, 9).weights
