"""DeepSeek V2 (2024): latent attention, and experts by their shares beside a network of all."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Names
from heedful.interop.architectures.decoders.deepseek_v3 import (
    LATENT_INERT,
    experts_of_last,
    latent_table,
    read_latent_decoder,
    write_latent_decoder,
)
from heedful.interop.architectures.decoders.llama import decoder_architecture
from heedful.interop.config_fields import Fields
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.spec import ExpertsSpec

# Defaults of transformers' DeepseekV2Config.
_SIZES = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "moe_intermediate_size": 1407,
    "n_shared_experts": 2,
    "first_k_dense_replace": 0,
}


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    fields.refuse_unless("mlp_bias", [False], False)
    fields.refuse_unless("scoring_func", ["softmax"], "softmax")
    # Their class never scales the weights of experts to sum 1.
    fields.refuse_unless("norm_topk_prob", [False], False)
    in_groups = fields.choice(
        "topk_method", {"greedy": False, "group_limited_greedy": True}, "greedy"
    )
    groups = {}
    if in_groups:
        groups = {
            "num_groups": fields.integer("n_group"),
            "groups_per_token": fields.integer("topk_group"),
        }
    fields.ignore("n_group", "topk_group")
    experts = ExpertsSpec(
        num_experts=fields.integer("n_routed_experts", 64),
        per_token=fields.integer("num_experts_per_tok"),
        renormalize=False,
        scale=fields.number("routed_scaling_factor", 1.0),
        **groups,
    )
    return read_latent_decoder(fields, names, _SIZES, "pairs", experts)


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    in_groups = experts_of_last(spec).num_groups > 1
    return {
        "architectures": ["DeepseekV2ForCausalLM"],
        **write_latent_decoder(spec),
        "topk_method": "group_limited_greedy" if in_groups else "greedy",
    }


ARCHITECTURE = decoder_architecture(
    "deepseek_v2",
    _read,
    _write,
    "DeepseekV2ForCausalLM",
    "DeepseekV2Model",
    tensors=latent_table,
    inert=LATENT_INERT,
)
