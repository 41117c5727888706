"""LLaMA (Touvron 2023; 3.1: Grattafiori 2024), as `transformers` stores it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from heedful.interop.fields import Fields, sizes_checked
from heedful.interop.fitting import misfits
from heedful.interop.forms import unscaled
from heedful.interop.table import Copy, Rule, Table, same
from heedful.models.family import CausalLMSpec, ModelSpec
from heedful.models.spec import BlockSpec, StackSpec
from heedful.nn.kinds import Activation
from heedful.nn.spec import (
    AttentionSpec,
    CausalSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
)

MODEL_TYPES = ("llama",)
FORMS = (unscaled,)

_PREFIX = "model."
_GATED: Mapping[str, Activation] = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
}
_GATED_NAMES: Mapping[Activation, str] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_pytorch_tanh",
    "reglu": "relu",
}
_SCALINGS = ("default", "linear", "llama3", "yarn")
_BASE = 10_000.0


def read_config(
    config: Mapping[str, Any], *, where: str, names: Collection[str] = ()
) -> CausalLMSpec:
    """The spec that a config.json describes.

    Args:
        config: its content.
        where: the file.
        names: the tensors' names, which tell nothing more here.

    Raises:
        ModelError: when a value is wrong or describes what cannot be represented.
    """
    with sizes_checked(where):
        return _read(Fields(config, where))


def _read(fields: Fields) -> CausalLMSpec:
    width = fields.integer("hidden_size", 4096)
    max_length = fields.integer("max_position_embeddings", 2048)
    norm = NormSpec(kind="rms", epsilon=fields.number("rms_norm_eps", 1e-6))
    block = BlockSpec(
        norm_placement="pre",
        norm=norm,
        self_attention=AttentionSpec(
            num_heads=fields.integer("num_attention_heads", 32),
            num_kv_heads=fields.optional_integer("num_key_value_heads"),
            head_width=fields.optional_integer("head_dim"),
            bias=fields.flag("attention_bias", False),
            dropout=fields.number("attention_dropout", 0.0),
            mask=CausalSpec(),
            rotary=_read_rotary(fields, max_length),
        ),
        feedforward=FeedForwardSpec(
            width=fields.integer("intermediate_size", 11008),
            activation=fields.choice("hidden_act", _GATED, "silu"),
            bias=fields.flag("mlp_bias", False),
        ),
    )
    return CausalLMSpec(
        width=width,
        vocabulary=fields.integer("vocab_size", 32000),
        embedding=EmbeddingSpec(scale=False, positions=PositionSpec(kind="none")),
        decoder=StackSpec(
            num_layers=fields.integer("num_hidden_layers", 32), block=block, final_norm=norm
        ),
        tied=fields.flag("tie_word_embeddings", False),
        max_length=max_length,
    )


def _read_rotary(fields: Fields, max_length: int) -> RotarySpec:
    """`rope_parameters` of new files; `rope_theta` and `rope_scaling` of older ones."""
    fields.refuse_unless("partial_rotary_factor", [1, 1.0], 1.0)
    base = fields.number("rope_theta", _BASE)
    rope = fields.table("rope_scaling") or fields.table("rope_parameters")
    if rope is None:
        return RotarySpec(base=base)
    rope.refuse_unless("partial_rotary_factor", [1, 1.0], 1.0)
    base = rope.number("rope_theta", base)
    key = "rope_type" if rope.has("rope_type") else "type"
    scaling = rope.choice(key, {name: name for name in _SCALINGS}, "default")
    if scaling == "default":
        return RotarySpec(base=base)
    if scaling == "linear":
        return RotarySpec(base=base, scaling="linear", factor=rope.number("factor"))
    length = rope.integer("original_max_position_embeddings", max_length)
    if scaling == "llama3":
        return RotarySpec(
            base=base,
            scaling="by_wavelength",
            factor=rope.number("factor"),
            original_length=length,
            beta_fast=rope.number("high_freq_factor"),
            beta_slow=rope.number("low_freq_factor"),
        )
    rope.refuse_unless("truncate", [True], True)
    factor = rope.number("factor", max_length / length)
    return RotarySpec(
        base=base,
        scaling="yarn",
        factor=factor,
        original_length=length,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        temperature=_read_temperature(rope, factor),
    )


def _read_temperature(rope: Fields, factor: float) -> float | None:
    """YaRN's factor on queries and keys; None for the one of the paper."""
    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    above, below = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if above and below:
        growth = 0.1 * math.log(factor)
        return (above * growth + 1.0) / (below * growth + 1.0)
    return None


def write_config(spec: CausalLMSpec) -> dict[str, Any]:
    """A config.json for a spec that `fits`; readers older than `rope_parameters` know it too."""
    block = spec.decoder.block
    attention = block.self_attention
    rotary = attention.rotary or RotarySpec()
    scaling = _write_scaling(rotary)
    # Models without a longest length can be asked for any; the file must name one.
    length = spec.max_length or max(2048, 2 * (rotary.original_length or 0))
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "intermediate_size": block.feedforward.width,
        "num_hidden_layers": spec.decoder.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "head_dim": attention.head_width or spec.width // attention.num_heads,
        "hidden_act": _GATED_NAMES.get(block.feedforward.activation, block.feedforward.activation),
        "max_position_embeddings": length,
        "rms_norm_eps": block.norm.epsilon,
        "attention_bias": attention.bias,
        "attention_dropout": attention.dropout,
        "mlp_bias": block.feedforward.bias,
        "rope_theta": rotary.base,
        **({"rope_scaling": scaling} if scaling else {}),
        "tie_word_embeddings": spec.tied,
    }


def _write_scaling(rotary: RotarySpec) -> dict[str, Any]:
    if rotary.scaling == "none":
        return {}
    if rotary.scaling == "linear":
        return {"rope_type": "linear", "factor": rotary.factor}
    if rotary.scaling == "by_wavelength":
        return {
            "rope_type": "llama3",
            "factor": rotary.factor,
            "original_max_position_embeddings": rotary.original_length,
            "high_freq_factor": rotary.beta_fast,
            "low_freq_factor": rotary.beta_slow,
        }
    written: dict[str, Any] = {
        "rope_type": rotary.scaling,
        "factor": rotary.factor,
        "original_max_position_embeddings": rotary.original_length,
        "beta_fast": rotary.beta_fast,
        "beta_slow": rotary.beta_slow,
    }
    if rotary.temperature is not None:
        written["attention_factor"] = rotary.temperature
    return written


def differences(spec: ModelSpec) -> list[str] | None:
    """What of a spec `write_config` cannot say; None for another kind of model."""
    if not isinstance(spec, CausalLMSpec):
        return None
    return misfits(spec, lambda: read_config(write_config(spec), where="config.json"))


def fits(spec: ModelSpec) -> bool:
    """Whether `write_config` says all there is to say about a model."""
    return differences(spec) == []


def table(spec: CausalLMSpec, names: Collection[str] = ()) -> Table:
    """What becomes what.

    Args:
        spec: of the model.
        names: of their tensors, which may lack the prefix "model.".
    """
    bare = bool(names) and not any(name.startswith(_PREFIX) for name in names)
    prefix = "" if bare else _PREFIX
    rules = [
        same(f"{prefix}embed_tokens.weight", "embedding.weight"),
        same(f"{prefix}norm.weight", "decoder.final_norm.weight"),
    ]
    for layer in range(spec.decoder.num_layers):
        rules += _block_rules(spec.decoder.block, f"{prefix}layers.{layer}", layer)
    copies: tuple[Copy, ...] = ()
    if spec.tied:
        copies = (Copy("lm_head.weight", f"{prefix}embed_tokens.weight"),)
    else:
        rules.append(same("lm_head.weight", "output_projection.weight"))
    return Table(
        tuple(rules),
        copies,
        ignored=(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
    )


def _block_rules(block: BlockSpec, theirs: str, layer: int) -> list[Rule]:
    ours = f"decoder.blocks.{layer}"
    rules = [
        same(f"{theirs}.input_layernorm.weight", f"{ours}.self_attention_norm.weight"),
        same(f"{theirs}.post_attention_layernorm.weight", f"{ours}.feedforward_norm.weight"),
    ]
    attention = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
    for their_name, name in attention.items():
        rules += _linear(
            f"{theirs}.self_attn.{their_name}",
            f"{ours}.self_attention.{name}",
            block.self_attention.bias,
        )
    for name in ("gate", "up", "down"):
        rules += _linear(
            f"{theirs}.mlp.{name}_proj", f"{ours}.feedforward.{name}", block.feedforward.bias
        )
    return rules


def _linear(theirs: str, ours: str, bias: bool) -> list[Rule]:
    kinds = ("weight", "bias") if bias else ("weight",)
    return [same(f"{theirs}.{kind}", f"{ours}.{kind}") for kind in kinds]
