"""Qwen 3 with a mixture of experts (Yang 2025)."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Names
from heedful.interop.architectures.decoders.llama import (
    decoder_architecture,
    read_decoder,
    write_decoder,
)
from heedful.interop.architectures.decoders.mixtral import experts_of, experts_table, with_experts
from heedful.interop.architectures.decoders.qwen2 import read_qwen_windows, write_qwen_windows
from heedful.interop.config_fields import Fields
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.spec import ExpertsSpec, NormSpec

# Defaults of transformers' Qwen3MoeConfig.
_SIZES = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}
_MAPS = {f"{name}_proj": name for name in ("gate", "up", "down")}


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    # Layers with one network between layers of experts.
    fields.refuse_unless("decoder_sparse_step", [1], 1)
    fields.refuse_unless("mlp_only_layers", [[]], [])
    spec = read_decoder(
        fields,
        _SIZES,
        windows=read_qwen_windows(fields, names),
        bias=fields.flag("attention_bias", False),
        query_key_norm=NormSpec(kind="rms", epsilon=fields.number("rms_norm_eps", 1e-6)),
    )
    experts = ExpertsSpec(
        num_experts=fields.integer("num_local_experts", 128)
        if fields.has("num_local_experts")
        else fields.integer("num_experts", 128),
        per_token=fields.integer("num_experts_per_tok", 8),
        renormalize=fields.flag("norm_topk_prob", False),
    )
    return with_experts(spec, fields, experts, fields.integer("moe_intermediate_size", 768))


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    experts = experts_of(spec)
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        **write_decoder(spec),
        **write_qwen_windows(spec),
        "attention_bias": spec.decoder.pattern[0].self_attention.bias,
        "moe_intermediate_size": spec.decoder.pattern[0].feedforward.width,
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.per_token,
        "norm_topk_prob": experts.renormalize,
        "router_aux_loss_coef": experts.balance_weight,
    }


ARCHITECTURE = decoder_architecture(
    "qwen3_moe",
    _read,
    _write,
    "Qwen3MoeForCausalLM",
    "Qwen3MoeModel",
    tensors=lambda spec, names: experts_table(spec, names, "mlp", _MAPS),
    inert=("output_router_logits",),
)
