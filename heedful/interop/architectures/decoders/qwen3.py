"""Qwen 3 (Yang 2025): Qwen 2 without biases, with RMS norms of queries and keys per head."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Names
from heedful.interop.architectures.decoders.llama import (
    decoder_architecture,
    read_decoder,
    write_decoder,
)
from heedful.interop.architectures.decoders.qwen2 import (
    SIZES,
    read_qwen_windows,
    write_qwen_windows,
)
from heedful.interop.config_fields import Fields
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.spec import NormSpec

# Heads of 128 channels whatever the width; D / H would be 64 in the 0.6B model.
_SIZES = SIZES | {"head_dim": 128}


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    return read_decoder(
        fields,
        _SIZES,
        windows=read_qwen_windows(fields, names),
        bias=fields.flag("attention_bias", False),
        # One weight [E] for all heads, applied before the rotation (Dehghani 2023).
        query_key_norm=NormSpec(kind="rms", epsilon=fields.number("rms_norm_eps", 1e-6)),
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        **write_decoder(spec),
        **write_qwen_windows(spec),
        "attention_bias": spec.decoder.pattern[0].self_attention.bias,
    }


ARCHITECTURE = decoder_architecture("qwen3", _read, _write, "Qwen3ForCausalLM", "Qwen3Model")
