"""Latent attention: a step sees what a whole pass sees, and little is cached."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from heedful.nn.attention.latent import LatentSelfAttention
from heedful.nn.attention.masks import Causal
from heedful.nn.mixer import Context
from heedful.nn.positions import Positions
from heedful.nn.spec import AttentionSpec, LatentSpec, NormSpec, RotarySpec


def spec(**changes: Any) -> AttentionSpec:
    settings: dict[str, Any] = {
        "num_heads": 3,
        "head_width": 10,
        "bias": False,
        "mask": Causal(),
        "rotary": RotarySpec(width=4),
        "latent": LatentSpec(width=5, value_width=7, query_width=6),
    }
    return AttentionSpec(**settings | changes)


def context(positions: torch.Tensor) -> Context:
    return Context(Positions.of_self(positions))


@torch.no_grad()
def test_steps_with_padding_are_a_whole_pass() -> None:
    torch.manual_seed(0)
    attention = LatentSelfAttention(16, spec())
    x = torch.randn(2, 6, 16)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3]])
    whole = attention(x, context(positions))
    alone = attention(x[1:, 2:], context(positions[1:, 2:]))
    torch.testing.assert_close(whole[1:, 2:], alone)

    state = attention.initial_state(1, x)
    at = torch.arange(6)[None]
    parts, key_positions = [], torch.empty(1, 0, dtype=torch.int64)
    for part in (slice(0, 4), slice(4, 5), slice(5, 6)):
        key_positions = torch.cat([key_positions, at[:, part]], 1)
        here = Context(Positions(query=at[:, part], key=key_positions))
        mixed, state = attention.step(x[:1, part], state, here)
        parts.append(mixed)
    torch.testing.assert_close(torch.cat(parts, 1), whole[:1])
    # A latent of 5 numbers and a rotated key of 4, instead of 3 heads of 10 and 7.
    cached = state.keys.numel() + state.values.numel()
    assert cached == 6 * (5 + 4)
    assert attention.state_bytes(6, 4) == 4 * cached


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_kv_heads": 1}, "no num_kv_heads"),
        ({"query_key_norm": NormSpec()}, "no query_key_norm"),
        ({"rotary": None}, r"need rotary\.width"),
        ({"rotary": RotarySpec(width=10)}, r"need rotary\.width"),
        ({"head_width": None}, "larger head_width"),
        ({"over": "memory"}, "over the input"),
    ],
)
def test_settings_that_latents_do_not_go_with_are_refused(changes: Any, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        spec(**changes)
