"""SmolLM 3 (2025): LLaMA with layers that do not rotate queries and keys (Yang 2025)."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Names, check_layers
from heedful.interop.architectures.decoders.llama import (
    FULL,
    decoder_architecture,
    read_decoder,
    shortest_period,
    write_decoder,
)
from heedful.interop.config_fields import Fields
from heedful.models.model_spec import CausalLMSpec

# Defaults of transformers' SmolLM3Config.
_SIZES = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
}


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    fields.refuse_unless("use_sliding_window", [False], False)
    fields.ignore("sliding_window", "max_window_layers")
    if not {FULL}.issuperset(fields.texts("layer_types")):
        raise fields.wrong("layer_types", "use_sliding_window is false")
    spec = read_decoder(
        fields,
        _SIZES,
        bias=fields.flag("attention_bias", False),
        feedforward_bias=fields.flag("mlp_bias", False),
    )
    check_layers(spec.decoder.num_layers, names, fields.where)
    (block,) = spec.decoder.pattern
    unrotated = block.self_attention.model_copy(update={"rotary": None})
    blocks = {1: block, 0: block.replace(self_attention=unrotated)}
    rotates = shortest_period(_rotating_layers(fields, spec.decoder.num_layers))
    pattern = tuple(blocks[each] for each in rotates)
    return spec.model_copy(
        update={
            "decoder": spec.decoder.model_copy(update={"pattern": pattern}),
            "tied": fields.flag("tie_word_embeddings", True),
        }
    )


def _rotating_layers(fields: Fields, number: int) -> list[int]:
    """Return 1 for each layer that rotates and 0 for the others; in spite of the field's name."""
    interval, layers = fields.integer("no_rope_layer_interval", 4), fields.get("no_rope_layers")
    if layers is None:
        return [int((layer + 1) % interval != 0) for layer in range(number)]
    if not isinstance(layers, list) or len(layers) != number or not {0, 1}.issuperset(layers):
        raise fields.wrong("no_rope_layers", f"0 or 1 for each of {number} layers is needed")
    return list(map(int, layers))


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    rotaries = [block.self_attention.rotary for block in spec.decoder.blocks]
    feedforward = spec.decoder.pattern[0].feedforward
    return {
        "architectures": ["SmolLM3ForCausalLM"],
        **write_decoder(spec),
        "no_rope_layers": [int(rotary is not None) for rotary in rotaries],
        "attention_bias": spec.decoder.pattern[0].self_attention.bias,
        "mlp_bias": feedforward.bias,
    }


ARCHITECTURE = decoder_architecture("smollm3", _read, _write, "SmolLM3ForCausalLM", "SmolLM3Model")
