"""Mistral (Jiang 2023): LLaMA with a sliding window."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Names
from heedful.interop.architectures.decoders.llama import (
    decoder_architecture,
    read_decoder,
    window_of,
    write_decoder,
)
from heedful.interop.config_fields import Fields
from heedful.models.model_spec import CausalLMSpec

# Defaults of transformers' MistralConfig, those of the 7B model.
_SIZES = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    # Since version 0.2 of the 7B model files say null, which means no window.
    return read_decoder(
        fields, _SIZES, bias=False, windows=[fields.optional_integer("sliding_window")]
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    return {
        "architectures": ["MistralForCausalLM"],
        **write_decoder(spec),
        "sliding_window": window_of(spec.decoder.pattern[0]),
    }


ARCHITECTURE = decoder_architecture("mistral", _read, _write, "MistralForCausalLM", "MistralModel")
