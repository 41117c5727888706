"""GPT-2 (Radford 2019), as `transformers` stores it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from heedful.interop.fields import ACTIVATION_NAMES, ACTIVATIONS, Fields, sizes_checked
from heedful.interop.fitting import misfits
from heedful.interop.forms import tabled_positions, unscaled
from heedful.interop.table import Copy, Rule, Table, joined, same, transposed
from heedful.models.family import CausalLMSpec, ModelSpec
from heedful.models.spec import BlockSpec, StackSpec
from heedful.nn.spec import (
    AttentionSpec,
    CausalSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
)

MODEL_TYPES = ("gpt2",)
FORMS = (unscaled, tabled_positions)

_PREFIX = "transformer."


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
    fields.refuse_unless("scale_attn_by_inverse_layer_idx", [False], False)
    fields.refuse_unless("add_cross_attention", [False], False)
    # reorder_and_upcast_attn is about rounding in half precision: scores are float32 here anyway.
    fields.flag("reorder_and_upcast_attn", False)
    width = fields.integer("n_embd", 768)
    dropout = fields.number("resid_pdrop", 0.1)
    norm = NormSpec(epsilon=fields.number("layer_norm_epsilon", 1e-5))
    positions = fields.integer("n_positions", 1024)
    block = BlockSpec(
        norm_placement="pre",
        norm=norm,
        self_attention=AttentionSpec(
            num_heads=fields.integer("n_head", 12),
            scale=None if fields.flag("scale_attn_weights", True) else 1.0,
            dropout=fields.number("attn_pdrop", 0.1),
            mask=CausalSpec(),
        ),
        feedforward=FeedForwardSpec(
            width=fields.optional_integer("n_inner") or 4 * width,
            activation=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
        ),
        dropout=dropout,
    )
    return CausalLMSpec(
        width=width,
        vocabulary=fields.integer("vocab_size", 50257),
        embedding=EmbeddingSpec(
            scale=False,
            positions=PositionSpec(kind="learned", max_length=positions),
            dropout=fields.number("embd_pdrop", 0.1),
        ),
        decoder=StackSpec(num_layers=fields.integer("n_layer", 12), block=block, final_norm=norm),
        tied=fields.flag("tie_word_embeddings", True),
        max_length=positions,
    )


def write_config(spec: CausalLMSpec) -> dict[str, Any]:
    """A config.json for a spec that `fits`."""
    block = spec.decoder.block
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": spec.vocabulary,
        "n_positions": spec.embedding.positions.max_length,
        "n_embd": spec.width,
        "n_layer": spec.decoder.num_layers,
        "n_head": block.self_attention.num_heads,
        "n_inner": block.feedforward.width,
        "activation_function": ACTIVATION_NAMES.get(block.feedforward.activation),
        "layer_norm_epsilon": block.norm.epsilon,
        "scale_attn_weights": block.self_attention.scale is None,
        "resid_pdrop": block.dropout,
        "embd_pdrop": spec.embedding.dropout,
        "attn_pdrop": block.self_attention.dropout,
        "tie_word_embeddings": spec.tied,
    }


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
        names: of their tensors, which may lack the prefix "transformer.".
    """
    bare = bool(names) and not any(name.startswith(_PREFIX) for name in names)
    prefix = "" if bare else _PREFIX
    rules = [
        same(f"{prefix}wte.weight", "embedding.weight"),
        same(f"{prefix}wpe.weight", "input.positions.weight"),
        *_norm(f"{prefix}ln_f", "decoder.final_norm"),
    ]
    for layer in range(spec.decoder.num_layers):
        rules += _block_rules(f"{prefix}h.{layer}", f"decoder.blocks.{layer}", spec.width)
    copies: tuple[Copy, ...] = ()
    if spec.tied:
        copies = (Copy("lm_head.weight", f"{prefix}wte.weight"),)
    else:
        rules.append(same("lm_head.weight", "output_projection.weight"))
    return Table(tuple(rules), copies, ignored=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",))


def _block_rules(theirs: str, ours: str, width: int) -> list[Rule]:
    maps = [f"{ours}.self_attention.{name}" for name in ("query", "key", "value")]
    sizes = [width] * 3
    return [
        *_norm(f"{theirs}.ln_1", f"{ours}.self_attention_norm"),
        joined(
            f"{theirs}.attn.c_attn.weight", [f"{m}.weight" for m in maps], sizes, transpose=True
        ),
        joined(f"{theirs}.attn.c_attn.bias", [f"{m}.bias" for m in maps], sizes),
        *_linear(f"{theirs}.attn.c_proj", f"{ours}.self_attention.output"),
        *_norm(f"{theirs}.ln_2", f"{ours}.feedforward_norm"),
        *_linear(f"{theirs}.mlp.c_fc", f"{ours}.feedforward.up"),
        *_linear(f"{theirs}.mlp.c_proj", f"{ours}.feedforward.down"),
    ]


def _norm(theirs: str, ours: str) -> list[Rule]:
    return [same(f"{theirs}.{kind}", f"{ours}.{kind}") for kind in ("weight", "bias")]


def _linear(theirs: str, ours: str) -> list[Rule]:
    """A Conv1D of width 1 stores its weight [in, out]."""
    return [
        transposed(f"{theirs}.weight", f"{ours}.weight"),
        same(f"{theirs}.bias", f"{ours}.bias"),
    ]
