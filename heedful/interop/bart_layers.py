"""What BART's and Marian's files have in common: settings and tensor names of post-norm stacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Literal

from heedful.interop.fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from heedful.interop.table import Copy, Rule, Table, reshaped, same
from heedful.models.spec import BlockSpec, StackSpec, TranslatorSpec
from heedful.nn.spec import AttentionSpec, CausalSpec, EverythingSpec, FeedForwardSpec

BIAS = "final_logits_bias"

Side = Literal["encoder", "decoder"]
Share = Literal["all", "inputs", "target", "none"]

_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
_NO_LAYER_DROP = (0, 0.0)


def read_stack(fields: Fields, side: Side) -> StackSpec:
    """The settings of an encoder or a decoder.

    Raises:
        ModelError: when one is missing, wrong or not to be had.
    """
    fields.refuse_unless("normalize_before", [False], False)
    fields.refuse_unless("add_final_layer_norm", [False], False)
    fields.refuse_unless(f"{side}_layerdrop", _NO_LAYER_DROP, 0.0)
    attention = AttentionSpec(
        num_heads=fields.integer(f"{side}_attention_heads"),
        dropout=fields.number("attention_dropout", 0.0),
    )
    mask = CausalSpec() if side == "decoder" else EverythingSpec()
    return StackSpec(
        num_layers=fields.integer(f"{side}_layers"),
        block=BlockSpec(
            self_attention=attention.model_copy(update={"mask": mask}),
            cross_attention=attention if side == "decoder" else None,
            feedforward=FeedForwardSpec(
                width=fields.integer(f"{side}_ffn_dim"),
                activation=fields.choice("activation_function", ACTIVATIONS, "gelu"),
                dropout=fields.number("activation_dropout", 0.0),
            ),
            dropout=fields.number("dropout", 0.1),
        ),
    )


def write_stacks(spec: TranslatorSpec) -> dict[str, Any]:
    """The settings `read_stack` reads, of both stacks."""
    block = spec.encoder.block
    activation = block.feedforward.activation
    config: dict[str, Any] = {
        "d_model": spec.width,
        "dropout": block.dropout,
        "attention_dropout": block.self_attention.dropout,
        "activation_dropout": block.feedforward.dropout,
        # Our own name where theirs has none: reading refuses it.
        "activation_function": ACTIVATION_NAMES.get(activation, activation),
        "scale_embedding": spec.embedding.scale,
        "is_encoder_decoder": True,
    }
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        config[f"{side}_layers"] = stack.num_layers
        config[f"{side}_attention_heads"] = stack.block.self_attention.num_heads
        config[f"{side}_ffn_dim"] = stack.block.feedforward.width
        config[f"{side}_layerdrop"] = 0.0
    return config


def layer_rules(spec: TranslatorSpec, prefix: str) -> Iterator[Rule]:
    """The rules of all blocks; `prefix` is "model." or nothing."""
    stacks: tuple[tuple[Side, int], ...] = (
        ("encoder", spec.encoder.num_layers),
        ("decoder", spec.decoder.num_layers),
    )
    for side, num_layers in stacks:
        for i in range(num_layers):
            for theirs, ours in _layer_names(side):
                for kind in ("weight", "bias"):
                    yield same(
                        f"{prefix}{side}.layers.{i}.{theirs}.{kind}",
                        f"{side}.blocks.{i}.{ours}.{kind}",
                    )


def vocabulary_rules(share: Share, prefix: str) -> tuple[list[Rule], list[Copy]]:
    """The rules of the embedding tables and the output projection, and their copies."""
    # A projection that is not tied makes transformers untie the tables too: each must be there.
    written = share == "inputs"
    source, target = f"{prefix}encoder.embed_tokens.weight", f"{prefix}decoder.embed_tokens.weight"
    if share in ("all", "inputs"):
        table = f"{prefix}shared.weight"
        rules = [same(table, "target_embedding.weight")]
        copies = [Copy(source, table, written), Copy(target, table, written)]
    else:
        table = target
        rules = [same(source, "source_embedding.weight"), same(target, "target_embedding.weight")]
        copies = []
    if share in ("all", "target"):
        copies.append(Copy("lm_head.weight", table))
    else:
        rules.append(same("lm_head.weight", "output_projection.weight"))
    return rules, copies


def bias_rules(spec: TranslatorSpec) -> list[Rule]:
    """`final_logits_bias` [1, V], a buffer of theirs, and our parameter [V], where there is one."""
    if not spec.output_bias:
        return []
    size = spec.target_vocabulary
    return [reshaped(BIAS, "output_bias", (1, size), (size,))]


def has_bias(names: Collection[str]) -> bool:
    """Whether logits have a bias in files with these names; files may leave out one of zeros."""
    return not names or BIAS in names


def their_names(table: Table) -> list[str]:
    """The names of all tensors a table writes."""
    return [name for rule in table.rules for name in rule.theirs]


def prefix_of(names: Collection[str]) -> str:
    """What stands before the model's names: "model." in files of a model with its head."""
    return "" if names and not any(name.startswith("model.") for name in names) else "model."


def _layer_names(side: Side) -> list[tuple[str, str]]:
    names = [(f"self_attn.{t}", f"self_attention.{o}") for t, o in _ATTENTION.items()]
    names.append(("self_attn_layer_norm", "self_attention_norm"))
    if side == "decoder":
        names += [(f"encoder_attn.{t}", f"cross_attention.{o}") for t, o in _ATTENTION.items()]
        names.append(("encoder_attn_layer_norm", "cross_attention_norm"))
    names += [("fc1", "feedforward.up"), ("fc2", "feedforward.down")]
    names.append(("final_layer_norm", "feedforward_norm"))
    return names
