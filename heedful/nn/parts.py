"""The registry of parts: from the spec of a sub-layer's part to its module."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name

from torch import nn

from heedful.nn.spec import PartSpec

BUILDERS: Mapping[str, str] = {
    "attention": "attention.global_tokens:build_attention",
    "average_attention": "average_attention:AverageAttention",
    "channel_mix": "rwkv:ChannelMix",
    "convolution": "convolution:Convolution",
    "feedforward": "moe:build_feedforward",
    "linear_attention": "linear_attention:LinearAttention",
    "linformer": "linformer:Linformer",
    "mamba": "mamba:Mamba",
    "recurrent": "recurrent:RecurrentMixer",
    "recurrent_decoder": "recurrent_decoder:RecurrentDecoder",
    "rwkv": "rwkv:TimeMix",
    "s4d": "s4d:S4D",
    "score_attention": "attention.score_attention:ScoreAttention",
    "ssru": "ssru:SSRU",
}
"""For each kind of part the module of `heedful.nn`, and the class or function there that makes it
from the model width D and its spec. A module is imported once a model has such a part: a translator
of attention alone loads none of the others."""


def build_part(width: int, spec: PartSpec) -> nn.Module:
    """Build the module that a spec describes.

    Args:
        width: model width D.
        spec: of the part.
    """
    part: nn.Module = resolve_name(f"heedful.nn.{BUILDERS[spec.kind]}")(width, spec)
    return part
