"""The registry of parts: from the spec of a sub-layer's part to its module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from heedful.nn.attention.global_tokens import GlobalSelfAttention
from heedful.nn.attention.multi_head import build_attention
from heedful.nn.average_attention import AverageAttention
from heedful.nn.linear_attention import LinearAttention
from heedful.nn.linformer import Linformer
from heedful.nn.mamba import Mamba
from heedful.nn.moe import build_feedforward
from heedful.nn.rwkv import ChannelMix, TimeMix
from heedful.nn.s4d import S4D
from heedful.nn.spec import AttentionSpec, PartSpec
from heedful.nn.ssru import SSRU


def _attention(width: int, spec: AttentionSpec) -> nn.Module:
    if spec.global_tokens is not None:
        return GlobalSelfAttention(width, spec)
    return build_attention(width, spec)


BUILDERS: Mapping[str, Callable[[int, Any], nn.Module]] = {
    "attention": _attention,
    "average_attention": AverageAttention,
    "feedforward": build_feedforward,
    "linear_attention": LinearAttention,
    "s4d": S4D,
    "mamba": Mamba,
    "rwkv": TimeMix,
    "channel_mix": ChannelMix,
    "linformer": Linformer,
    "ssru": SSRU,
}
"""For each kind of part a function of the model width D and its spec."""


def build_part(width: int, spec: PartSpec) -> nn.Module:
    """Build the module that a spec describes.

    Args:
        width: model width D.
        spec: of the part.
    """
    return BUILDERS[spec.kind](width, spec)
