"""Falcon (Almazrouei 2023): parallel sub-layers, few key heads, one matrix for all projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.interop.config_fields import Fields
from heedful.interop.plain_decoders import Part, PlainDecoder, is_parallel
from heedful.interop.rotary_fields import read_rotary, write_share
from heedful.models.model_spec import CausalLMSpec


def _further(fields: Fields, head_width: int, length: int) -> Part:
    # Their penalty of distance is rounded to bfloat16 and divided by the root of the head's width.
    fields.refuse_unless("alibi", [False], False)
    heads = fields.integer("num_attention_heads", 71)
    grouped = fields.flag("new_decoder_architecture", False)
    # These three say nothing about the newer block.
    multi_query, parallel = fields.flag("multi_query", True), fields.flag("parallel_attn", True)
    written = fields.optional_integer("num_kv_heads") or heads
    kv_heads = written if grouped else 1 if multi_query else heads
    norms = fields.optional_integer("num_ln_in_parallel_attn")
    # The 11B model has the newer block with a single norm.
    if grouped and norms not in (None, 2):
        raise fields.wrong("num_ln_in_parallel_attn", "2 norms of the newer block are read")
    bias = fields.flag("bias", False)
    return Part(
        attention={
            "bias": bias,
            "num_kv_heads": None if kv_heads == heads else kv_heads,
            "rotary": read_rotary(fields, length),
        },
        network={"bias": bias},
        embedding={"dropout": 0.0},
        parallel=grouped or parallel,
    )


def _is_grouped(spec: CausalLMSpec) -> bool:
    """Return True for the newer block, that of the 40B model: groups of heads and two norms."""
    return is_parallel(spec) and spec.decoder.block.self_attention.num_kv_heads not in (None, 1)


def _has_one_norm(spec: CausalLMSpec) -> bool:
    return is_parallel(spec) and not _is_grouped(spec)


def _norms(spec: CausalLMSpec) -> Mapping[str, str]:
    first, second = "input_layernorm", "post_attention_layernorm"
    if _is_grouped(spec):
        first, second = "ln_attn", "ln_mlp"
    return {first: "self_attention_norm", second: "feedforward_norm"}


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    attention = spec.decoder.block.self_attention
    return {
        "alibi": False,
        "bias": attention.bias,
        "new_decoder_architecture": _is_grouped(spec),
        "num_kv_heads": attention.num_kv_heads or attention.num_heads,
        "multi_query": attention.num_kv_heads == 1,
        "parallel_attn": is_parallel(spec),
        **write_share(spec),
    }


ARCHITECTURE = PlainDecoder(
    model_type="falcon",
    classes=("FalconForCausalLM", "FalconModel"),
    keys={
        "width": ("hidden_size", 4544),
        "heads": ("num_attention_heads", 71),
        "layers": ("num_hidden_layers", 32),
        "inner": ("ffn_hidden_size", None),
        "length": ("max_position_embeddings", 2048),
        "vocabulary": ("vocab_size", 65024),
        "epsilon": ("layer_norm_epsilon", 1e-5),
        "activation": ("activation", "gelu"),
        "dropout": ("hidden_dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
    },
    tied=True,
    prefix="transformer.",
    modules={"word_embeddings": "embedding", "ln_f": "decoder.final_norm"},
    layers="h",
    layer={
        "self_attention.dense": "self_attention.output",
        "mlp.dense_h_to_4h": "feedforward.up",
        "mlp.dense_4h_to_h": "feedforward.down",
    },
    norms=_norms,
    norms_shared=_has_one_norm,
    fused="self_attention.query_key_value",
    further=_further,
    write=_write,
).architecture()
