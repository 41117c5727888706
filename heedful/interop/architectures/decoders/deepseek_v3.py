"""DeepSeek V3 (2024): latent attention, and experts in groups that a sigmoid chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.interop.architecture import Names, check_layers
from heedful.interop.architectures.decoders.llama import (
    decoder_architecture,
    decoder_table,
    read_decoder,
    write_decoder,
)
from heedful.interop.config_fields import Fields
from heedful.interop.rotary_fields import read_rotary, write_scaling
from heedful.interop.tensor_table import LINEAR, Rule, Table, concatenated, prefix_of, renamed, same
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec
from heedful.nn.attention.masks import Causal
from heedful.nn.spec import AttentionSpec, ExpertsSpec, FeedForwardSpec, LatentSpec, RotarySpec

# Defaults of transformers' DeepseekV3Config, those of the model of 671 billion parameters.
_SIZES = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
}
_MAPS = {f"{name}_proj": name for name in ("gate", "up", "down")}


def read_latent_decoder(
    fields: Fields, names: Names, sizes: Mapping[str, int], layout: str, experts: ExpertsSpec
) -> CausalLMSpec:
    """Return the spec of a decoder with latent attention, and experts from some layer on.

    Args:
        fields: fields of config.json.
        names: names of the tensors, to check the number of layers.
        sizes: defaults of sizes that config.json leaves out.
        layout: layout of the rotated pairs, as in `RotarySpec`.
        experts: experts of the layers that have them, without the shared network.
    """
    # Biases of two maps of three, which no published model has.
    fields.refuse_unless("attention_bias", [False], False)
    fields.refuse_unless("moe_layer_freq", [1], 1)
    length = fields.integer("max_position_embeddings", sizes["max_position_embeddings"])
    plain, rotated = fields.integer("qk_nope_head_dim", 128), fields.integer("qk_rope_head_dim", 64)
    heads = fields.integer("num_attention_heads", sizes["num_attention_heads"])
    fields.refuse_unless("num_key_value_heads", [heads], heads)
    fields.refuse_unless("head_dim", [rotated], rotated)
    fields.refuse_unless("qk_head_dim", [plain + rotated], plain + rotated)
    rotary = read_rotary(fields, length)
    rotary = rotary.model_copy(update={"width": rotated, "layout": layout})
    fields.ignore("num_key_value_heads", "head_dim")
    spec = read_decoder(fields, sizes, rotary=rotary)
    attention = AttentionSpec(
        num_heads=heads,
        head_width=plain + rotated,
        bias=False,
        scale=_read_scale(fields, plain + rotated, rotary),
        dropout=fields.number("attention_dropout", 0.0),
        mask=Causal(),
        rotary=rotary,
        latent=LatentSpec(
            width=fields.integer("kv_lora_rank", 512),
            value_width=fields.integer("v_head_dim", 128),
            # A missing field is the usual width, a null no latent.
            query_width=None
            if fields.is_null("q_lora_rank")
            else fields.integer("q_lora_rank", 1536),
        ),
    )
    (block,) = spec.decoder.pattern
    dense = block.replace(self_attention=attention)
    inner, shared, first = (
        fields.integer(name, sizes[name])
        for name in ("moe_intermediate_size", "n_shared_experts", "first_k_dense_replace")
    )
    experts = experts.model_copy(update={"shared_width": inner * shared or None})
    network = dense.feedforward.model_copy(update={"width": inner, "experts": experts})
    sparse, layers = dense.replace(feedforward=network), spec.decoder.num_layers
    # The number of layers is not trusted, and the pattern names each of them.
    check_layers(layers, names, fields.where)
    first = min(first, layers)
    pattern = (dense,) * first + (sparse,) * (layers - first)
    stack = spec.decoder.model_copy(update={"pattern": pattern if first else (sparse,)})
    return spec.model_copy(update={"decoder": stack})


def _read_scale(fields: Fields, width: int, rotary: RotarySpec) -> float | None:
    """Return the factor on scores of stretched models; None for the usual one."""
    rope = fields.table("rope_parameters") or fields.table("rope_scaling")
    share = 0.0 if rope is None else rope.number("mscale_all_dim", 0.0)
    if rotary.scaling == "none" or not share:
        return None
    # Digits that survive being written and read.
    return float(f"{width**-0.5 * _growth(rotary, share) ** 2:.12g}")


def _growth(rotary: RotarySpec, share: float) -> float:
    """Return YaRN's factor on queries and on keys (Peng 2023), with DeepSeek's weight of it."""
    stretched = rotary.model_copy(update={"scaling": "yarn", "temperature": None})
    return 1.0 + share * (stretched.attention_factor() - 1.0)


def _write_scale(attention: AttentionSpec) -> dict[str, Any]:
    rotary = attention.rotary or RotarySpec()
    usual, width = 1.0, attention.head_width or 1
    if attention.scale is not None:
        usual = (attention.scale * width**0.5) ** 0.5
    growth = _growth(rotary, 1.0) - 1.0
    return {"mscale_all_dim": (usual - 1.0) / growth} if usual != 1.0 and growth else {}


def write_latent_decoder(spec: CausalLMSpec) -> dict[str, Any]:
    """Return the fields that `read_latent_decoder` reads."""
    blocks = spec.decoder.blocks
    attention = blocks[0].self_attention
    latent = attention.latent or LatentSpec(width=1, value_width=1)
    rotary = attention.rotary or RotarySpec()
    rotated = rotary.width or 0
    sparse = [number for number, block in enumerate(blocks) if block.feedforward.experts]
    first = sparse[0] if sparse else len(blocks)
    network = blocks[-1].feedforward
    experts = experts_of_last(spec)
    scaling = write_scaling(rotary)
    # A layer without experts has the width of the network; one is needed in any case.
    dense = blocks[0].feedforward.width if first else network.width
    return {
        **write_decoder(spec),
        "intermediate_size": dense,
        "head_dim": rotated,
        "qk_head_dim": attention.width_of_heads(spec.width),
        "qk_nope_head_dim": attention.width_of_heads(spec.width) - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": latent.value_width,
        "kv_lora_rank": latent.width,
        "q_lora_rank": latent.query_width,
        "attention_bias": False,
        "first_k_dense_replace": first,
        "moe_intermediate_size": network.width,
        "n_shared_experts": (experts.shared_width or 0) // network.width,
        "n_routed_experts": experts.num_experts,
        "num_experts_per_tok": experts.per_token,
        "n_group": experts.num_groups,
        "topk_group": experts.groups_per_token,
        "routed_scaling_factor": experts.scale,
        **({"rope_scaling": scaling | _write_scale(attention)} if scaling else {}),
    }


def experts_of_last(spec: CausalLMSpec) -> ExpertsSpec:
    """Return the experts of the last layer; one that each token uses where it has one network."""
    single = ExpertsSpec(num_experts=1, per_token=1, renormalize=False)
    return spec.decoder.blocks[-1].feedforward.experts or single


def latent_table(spec: CausalLMSpec, names: Names) -> Table:
    """Return the tensor table of a decoder with latent attention and experts.

    Args:
        spec: spec of the model.
        names: names of their tensors, with or without the prefix "model.".
    """
    prefix, rules = prefix_of(names, "model."), list[Rule]()
    for number, block in enumerate(spec.decoder.blocks):
        theirs, ours = f"{prefix}layers.{number}.", f"decoder.blocks.{number}."
        rules += _attention_rules(block, f"{theirs}self_attn.", f"{ours}self_attention.")
        rules += _network_rules(block.feedforward, f"{theirs}mlp.", f"{ours}feedforward.")
    table = decoder_table(spec, names).changed(r"\.(self_attention|feedforward)\.", rules)
    # Layers that predict further tokens, which their class leaves out, too.
    further = rf"(model\.)?layers\.{spec.decoder.num_layers}\..*"
    return Table(table.rules, table.copies, (*table.ignored, further))


def _attention_rules(block: BlockSpec, theirs: str, ours: str) -> list[Rule]:
    attention = block.self_attention
    latent, rotary = attention.latent, attention.rotary
    rotated = rotary.width or 0 if rotary is not None else 0
    if latent is None:
        return []
    maps = {"o_proj": "output", "kv_a_layernorm": "latent_norm"}
    if latent.query_width is None:
        maps["q_proj"] = "query"
    else:
        maps |= {"q_a_proj": "query_latent", "q_b_proj": "query"}
        maps["q_a_layernorm"] = "query_latent_norm"
    parts = [f"{ours}latent.weight", f"{ours}rotated_key.weight"]
    sizes = attention.num_heads, (attention.head_width or 0) - rotated, latent.value_width
    return [
        *renamed(maps, theirs=theirs, ours=ours, parts=LINEAR),
        concatenated(f"{theirs}kv_a_proj_with_mqa.weight", parts, [latent.width, rotated]),
        _by_head(f"{theirs}kv_b_proj.weight", [f"{ours}key.weight", f"{ours}value.weight"], sizes),
    ]


def _by_head(theirs: str, ours: Sequence[str], sizes: tuple[int, int, int]) -> Rule:
    """Return the rule of keys and values of each head in turn, [H, E - R + Ev, C]."""
    heads, key, value = sizes

    def split(tensors: Sequence[Tensor]) -> list[Tensor]:
        rows = tensors[0].unflatten(0, (heads, key + value))
        return [part.flatten(0, 1).contiguous() for part in rows.split([key, value], 1)]

    def join(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([part.unflatten(0, (heads, -1)) for part in tensors], 1).flatten(0, 1)]

    return Rule((theirs,), tuple(ours), split, join)


def _network_rules(network: FeedForwardSpec, theirs: str, ours: str) -> list[Rule]:
    experts = network.experts
    if experts is None:
        return renamed(_MAPS, theirs=theirs, ours=ours, parts=LINEAR)
    rules = [same(f"{theirs}gate.weight", f"{ours}router.weight")]
    if experts.scoring == "sigmoid":
        rules.append(same(f"{theirs}gate.e_score_correction_bias", f"{ours}choice_bias"))
    if experts.shared_width is not None:
        shared = {"theirs": f"{theirs}shared_experts.", "ours": f"{ours}shared."}
        rules += renamed(_MAPS, **shared, parts=LINEAR)
    for each in range(experts.num_experts):
        expert = {"theirs": f"{theirs}experts.{each}.", "ours": f"{ours}experts.{each}."}
        rules += renamed(_MAPS, **expert, parts=LINEAR)
    return rules


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    # Names of the only way to choose that their class has.
    fields.refuse_unless("topk_method", ["noaux_tc"], "noaux_tc")
    fields.refuse_unless("scoring_func", ["sigmoid"], "sigmoid")
    experts = ExpertsSpec(
        num_experts=fields.integer("n_routed_experts", 256),
        per_token=fields.integer("num_experts_per_tok", 8),
        renormalize=fields.flag("norm_topk_prob", True),
        scoring="sigmoid",
        num_groups=fields.integer("n_group", 8),
        groups_per_token=fields.integer("topk_group", 4),
        scale=fields.number("routed_scaling_factor", 2.5),
    )
    layout = "pairs" if fields.flag("rope_interleave", True) else "halves"
    return read_latent_decoder(fields, names, _SIZES, layout, experts)


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    rotary = spec.decoder.blocks[0].self_attention.rotary or RotarySpec()
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        **write_latent_decoder(spec),
        "norm_topk_prob": experts_of_last(spec).renormalize,
        "rope_interleave": rotary.layout == "pairs",
    }


# What balances the loads in training, layers of further tokens, and shares of a cluster.
LATENT_INERT = (
    *("output_router_logits", "aux_loss_alpha", "seq_aux", "ep_size"),
    *("num_nextn_predict_layers", "num_mtp_layers"),
)

ARCHITECTURE = decoder_architecture(
    "deepseek_v3",
    _read,
    _write,
    "DeepseekV3ForCausalLM",
    "DeepseekV3Model",
    tensors=latent_table,
    inert=LATENT_INERT,
)
