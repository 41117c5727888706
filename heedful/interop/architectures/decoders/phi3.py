"""Phi 3 and 4 (Abdin 2024): LLaMA with queries, keys and values, and gate and up, in one matrix."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Names
from heedful.interop.architectures.decoders.llama import (
    decoder_architecture,
    decoder_table,
    read_decoder,
    window_of,
    write_decoder,
)
from heedful.interop.config_fields import Fields
from heedful.interop.rotary_fields import read_share, share_of
from heedful.interop.tensor_table import Table, concatenated, prefix_of
from heedful.models.model_spec import CausalLMSpec

# Defaults of transformers' Phi3Config, those of the mini model.
_SIZES = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
}
_MERGED = r"\.(query|key|value|gate|up)\."


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    width, heads = fields.integer("hidden_size", 3072), fields.integer("num_attention_heads", 32)
    length = fields.integer("max_position_embeddings", 4096)
    return read_decoder(
        fields,
        _SIZES,
        windows=[fields.optional_integer("sliding_window")],
        # Phi 4 mini rotates three quarters of a head.
        rotary=read_share(fields, width // heads, length, 1.0),
        bias=False,
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    config = write_decoder(spec)
    if spec.decoder.pattern[0].self_attention.head_width is None:
        del config["head_dim"]  # their config has no such field
    return {
        "architectures": ["Phi3ForCausalLM"],
        **config,
        "partial_rotary_factor": share_of(spec),
        "sliding_window": window_of(spec.decoder.pattern[0]),
    }


def _table(spec: CausalLMSpec, names: Names) -> Table:
    prefix, block = prefix_of(names, "model."), spec.decoder.pattern[0]
    attention, inner = block.self_attention, block.feedforward.width
    width = attention.width_of_heads(spec.width)
    keys = (attention.num_kv_heads or attention.num_heads) * width
    rules = []
    for number in range(spec.decoder.num_layers):
        layer, own = f"{prefix}layers.{number}.", f"decoder.blocks.{number}."
        maps = [f"{own}self_attention.{name}.weight" for name in ("query", "key", "value")]
        sizes = [attention.num_heads * width, keys, keys]
        rules.append(concatenated(f"{layer}self_attn.qkv_proj.weight", maps, sizes))
        halves = [f"{own}feedforward.{name}.weight" for name in ("gate", "up")]
        rules.append(concatenated(f"{layer}mlp.gate_up_proj.weight", halves, [inner, inner]))
    return decoder_table(spec, names).changed(_MERGED, rules)


ARCHITECTURE = decoder_architecture(
    "phi3",
    _read,
    _write,
    "Phi3ForCausalLM",
    "Phi3Model",
    tensors=_table,
    # Dropout, and the trained length, which matters for scalings that are refused.
    inert=("resid_pdrop", "embd_pdrop", "original_max_position_embeddings"),
)
