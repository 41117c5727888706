"""Mixtral (Jiang 2024): Mistral with eight networks, of which each token uses two."""

from __future__ import annotations

from collections.abc import Mapping
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
from heedful.interop.tensor_table import LINEAR, Table, prefix_of, renamed, same
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.spec import ExpertsSpec

# Defaults of transformers' MixtralConfig, those of the 8x7B model.
_SIZES = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
_MAPS = {"w1": "gate", "w3": "up", "w2": "down"}


def with_experts(
    spec: CausalLMSpec, fields: Fields, experts: ExpertsSpec, width: int | None = None
) -> CausalLMSpec:
    """Return a decoder whose networks are mixtures of experts.

    Args:
        spec: spec of a decoder with one network in each block.
        fields: fields of config.json.
        experts: number of networks, and how many of them each token uses.
        width: inner width of each; that of the one network if None.
    """
    # Noise of the router and the weight of its loss belong to training.
    balance = fields.number("router_aux_loss_coef", 0.001)
    changes: dict[str, Any] = {"experts": experts.model_copy(update={"balance_weight": balance})}
    if width is not None:
        changes["width"] = width
    pattern = tuple(
        block.replace(feedforward=block.feedforward.model_copy(update=changes))
        for block in spec.decoder.pattern
    )
    return spec.model_copy(update={"decoder": spec.decoder.model_copy(update={"pattern": pattern})})


def experts_of(spec: CausalLMSpec) -> ExpertsSpec:
    """Return the experts of a decoder; one that each token uses if it has a single network."""
    plain = ExpertsSpec(num_experts=1, per_token=1, renormalize=False)
    return spec.decoder.pattern[0].feedforward.experts or plain


def experts_table(spec: CausalLMSpec, names: Names, place: str, maps: Mapping[str, str]) -> Table:
    """Return the tensor table of a decoder with the structure of LLaMA and experts.

    Args:
        spec: spec of the model.
        names: names of their tensors, with or without the prefix "model.".
        place: name of the mixture in a layer.
        maps: our names of an expert's maps by their names.
    """
    prefix, rules = prefix_of(names, "model."), []
    for number in range(spec.decoder.num_layers):
        layer = f"{prefix}layers.{number}.{place}."
        own = f"decoder.blocks.{number}.feedforward."
        rules.append(same(f"{layer}gate.weight", f"{own}router.weight"))
        for each in range(experts_of(spec).num_experts):
            expert = {"theirs": f"{layer}experts.{each}.", "ours": f"{own}experts.{each}."}
            rules += renamed(maps, **expert, parts=LINEAR)
    return decoder_table(spec, names).changed(r"\.feedforward\.", rules)


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    spec = read_decoder(
        fields, _SIZES, bias=False, windows=[fields.optional_integer("sliding_window")]
    )
    experts = ExpertsSpec(
        num_experts=fields.integer("num_local_experts", 8),
        per_token=fields.integer("num_experts_per_tok", 2),
    )
    return with_experts(spec, fields, experts)


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    experts = experts_of(spec)
    return {
        "architectures": ["MixtralForCausalLM"],
        **write_decoder(spec),
        "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.per_token,
        "router_aux_loss_coef": experts.balance_weight,
        "sliding_window": window_of(spec.decoder.pattern[0]),
    }


ARCHITECTURE = decoder_architecture(
    "mixtral",
    _read,
    _write,
    "MixtralForCausalLM",
    "MixtralModel",
    tensors=lambda spec, names: experts_table(spec, names, "block_sparse_moe", _MAPS),
    inert=("output_router_logits", "router_jitter_noise"),
)
