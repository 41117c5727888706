"""The registry of parts: from the spec of a sub-layer's part to its module."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name

from torch import nn

from heedful.nn.spec import PartSpec

BUILDERS: Mapping[str, str] = {
    "attention": "attention.global_tokens:build_attention",
    "average_attention": "mixers.average_attention:AverageAttention",
    "channel_mix": "mixers.rwkv:ChannelMix",
    "convolution": "mixers.convolution:Convolution",
    "feedforward": "moe:build_feedforward",
    "linear_attention": "mixers.linear_attention:LinearAttention",
    "linformer": "mixers.linformer:Linformer",
    "mamba": "mixers.mamba:Mamba",
    "recurrent": "mixers.recurrent:RecurrentMixer",
    "recurrent_decoder": "mixers.recurrent_decoder:RecurrentDecoder",
    "rwkv": "mixers.rwkv:TimeMix",
    "s4d": "mixers.s4d:S4D",
    "score_attention": "attention.score_attention:ScoreAttention",
    "ssru": "mixers.ssru:SSRU",
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
