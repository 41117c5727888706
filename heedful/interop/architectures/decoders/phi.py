"""Phi 1, 1.5 and 2 (Gunasekar 2023): parallel sub-layers, half of each head rotated."""

from __future__ import annotations

from typing import Any

from heedful.interop.config_fields import Fields
from heedful.interop.plain_decoders import Part, PlainDecoder, is_parallel
from heedful.interop.rotary_fields import read_share, share_of, write_share
from heedful.models.model_spec import CausalLMSpec


def _further(fields: Fields, head_width: int, length: int) -> Part:
    fields.refuse_unless("qk_layernorm", [False], False)
    rotary = read_share(fields, head_width, length, 0.5)
    kv_heads = fields.optional_integer("num_key_value_heads")
    heads = fields.integer("num_attention_heads", 32)
    return Part(
        attention={"rotary": rotary, "num_kv_heads": None if kv_heads == heads else kv_heads},
        embedding={"dropout": fields.number("embd_pdrop", 0.0)},
        model={"output_bias": True},
        parallel=True,
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    return {
        "num_key_value_heads": spec.decoder.block.self_attention.num_kv_heads,
        "partial_rotary_factor": share_of(spec),
        "embd_pdrop": spec.embedding.dropout,
        **write_share(spec),
    }


ARCHITECTURE = PlainDecoder(
    model_type="phi",
    classes=("PhiForCausalLM", "PhiModel"),
    keys={
        "width": ("hidden_size", 2048),
        "heads": ("num_attention_heads", 32),
        "layers": ("num_hidden_layers", 24),
        "inner": ("intermediate_size", 8192),
        "length": ("max_position_embeddings", 2048),
        "vocabulary": ("vocab_size", 51200),
        "epsilon": ("layer_norm_eps", 1e-5),
        "activation": ("hidden_act", "gelu_new"),
        "dropout": ("resid_pdrop", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
    },
    tied=False,
    prefix="model.",
    modules={"embed_tokens": "embedding", "final_layernorm": "decoder.final_norm"},
    layers="layers",
    layer={
        "input_layernorm": "self_attention_norm",
        "self_attn.q_proj": "self_attention.query",
        "self_attn.k_proj": "self_attention.key",
        "self_attn.v_proj": "self_attention.value",
        "self_attn.dense": "self_attention.output",
        "mlp.fc1": "feedforward.up",
        "mlp.fc2": "feedforward.down",
    },
    norms_shared=is_parallel,
    further=_further,
    write=_write,
).architecture()
