"""Mamba and RWKV beside the classes of `transformers`, with random weights."""

from __future__ import annotations

import pytest
import torch

from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import ChannelMixSpec, MambaSpec, RWKVSpec
from heedful.nn.mixers.mamba import Mamba
from heedful.nn.mixers.rwkv import ChannelMix, TimeMix
from heedful.nn.positions import Positions

pytest.importorskip("transformers")
WIDTH, LENGTH = 16, 37


def inputs() -> tuple[torch.Tensor, Context]:
    torch.manual_seed(3)
    positions = torch.arange(LENGTH).expand(2, LENGTH)
    return torch.randn(2, LENGTH, WIDTH), Context(Positions.of_self(positions))


def randomized(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))
    return module.eval()


@torch.no_grad()
def test_mamba() -> None:
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    config = MambaConfig(
        hidden_size=WIDTH, state_size=8, expand=3, conv_kernel=4, time_step_rank=5, vocab_size=9
    )
    theirs = randomized(MambaMixer(config, 0))
    ours = Mamba(WIDTH, MambaSpec(state_size=8, expansion=3, rank=5)).eval()
    value, gate = theirs.in_proj.weight.chunk(2)
    ours.load_state_dict(
        {
            "value.weight": value,
            "gate.weight": gate,
            "taps": theirs.conv1d.weight[:, 0],
            "taps_bias": theirs.conv1d.bias,
            "selection.weight": theirs.x_proj.weight,
            "step_size.weight": theirs.dt_proj.weight,
            "step_size.bias": theirs.dt_proj.bias,
            "log_decay": theirs.A_log,
            "skip": theirs.D,
            "output.weight": theirs.out_proj.weight,
        }
    )
    x, context = inputs()
    expected = theirs(x)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(ours(x, context), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_rwkv() -> None:
    from transformers import RwkvConfig
    from transformers.models.rwkv.modeling_rwkv import RwkvFeedForward, RwkvSelfAttention

    config = RwkvConfig(hidden_size=WIDTH, intermediate_size=24, vocab_size=9)
    names = {"decay": "time_decay", "bonus": "time_first", "key_mix": "time_mix_key"}
    names |= {"value_mix": "time_mix_value", "receptance_mix": "time_mix_receptance"}
    pairs = (
        (RwkvSelfAttention(config), TimeMix(WIDTH, RWKVSpec())),
        (RwkvFeedForward(config), ChannelMix(WIDTH, ChannelMixSpec(width=24))),
    )
    for theirs, ours in pairs:
        tensors = randomized(theirs).state_dict()
        weights = {
            name: tensors[names.get(name, name)].reshape(tensor.shape)
            for name, tensor in ours.state_dict().items()
        }
        ours.eval().load_state_dict(weights)
        x, context = inputs()
        torch.testing.assert_close(ours(x, context), theirs(x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 17, 300, 2000])
def test_mamba_beside_mambapy(length: int) -> None:
    """The block of another project: its scan goes through a tree of halves, ours through chunks."""
    from mambapy.mamba import MambaBlock, MambaConfig

    torch.manual_seed(0)
    theirs = MambaBlock(MambaConfig(d_model=24, n_layers=1)).double()
    ours = Mamba(24, MambaSpec()).double()
    weights = {
        "projection.weight": theirs.in_proj.weight,
        "taps": theirs.conv1d.weight[:, 0],
        "taps_bias": theirs.conv1d.bias,
        "selection.weight": theirs.x_proj.weight,
        "step_size.weight": theirs.dt_proj.weight,
        "step_size.bias": theirs.dt_proj.bias,
        "log_decay": theirs.A_log,
        "skip": theirs.D,
        "output.weight": theirs.out_proj.weight,
    }
    with torch.no_grad():
        for name, weight in weights.items():
            ours.get_parameter(name).copy_(weight)
    x = torch.randn(2, length, 24, dtype=torch.float64)
    context = Context(Positions.of_self(torch.arange(length).expand(2, -1)))
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [theirs(inputs[0]), ours(inputs[1], context)]
    seen = torch.randn_like(x)
    for y in outputs:
        y.backward(seen)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, rtol=0, atol=1e-9)
