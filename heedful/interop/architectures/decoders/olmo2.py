"""OLMo 2 (2024): LLaMA whose parts are normed on their outputs, queries and keys over all heads."""

from __future__ import annotations

import functools
from typing import Any

from heedful.interop.architecture import Names
from heedful.interop.architectures.decoders.llama import (
    decoder_architecture,
    decoder_table,
    read_decoder,
    write_decoder,
)
from heedful.interop.config_fields import Fields
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.spec import NormSpec

# Defaults of transformers' Olmo2Config.
_SIZES = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_NORMS = {
    "post_attention_layernorm": "self_attention_output_norm",
    "post_feedforward_layernorm": "feedforward_output_norm",
}


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    spec = read_decoder(
        fields,
        _SIZES,
        bias=fields.flag("attention_bias", False),
        query_key_norm=NormSpec(kind="rms", epsilon=fields.number("rms_norm_eps", 1e-5)),
        query_key_norm_over="all_heads",
    )
    norm = NormSpec(kind="rms", epsilon=fields.number("rms_norm_eps", 1e-5))
    pattern = tuple(
        block.replace(norm=norm, norm_placement="output") for block in spec.decoder.pattern
    )
    decoder = spec.decoder.model_copy(update={"pattern": pattern, "final_norm": norm})
    return spec.model_copy(update={"decoder": decoder})


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    config = write_decoder(spec)
    if spec.decoder.pattern[0].self_attention.head_width is None:
        del config["head_dim"]  # their config has no such field
    return {
        "architectures": ["Olmo2ForCausalLM"],
        **config,
        "attention_bias": spec.decoder.pattern[0].self_attention.bias,
    }


ARCHITECTURE = decoder_architecture(
    "olmo2",
    _read,
    _write,
    "Olmo2ForCausalLM",
    "Olmo2Model",
    tensors=functools.partial(decoder_table, norms=_NORMS),
)
