"""ModernBERT (Warner 2024): rotary positions, windows in two of three layers, gated networks."""

from __future__ import annotations

from typing import Any

import torch

from heedful.errors import ModelError
from heedful.interop.architecture import Architecture, Names
from heedful.interop.architectures.decoders.llama import FULL, GATED, SLIDING, shortest_period
from heedful.interop.config_fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from heedful.interop.rewrites import scaled_embeddings
from heedful.interop.rotary_fields import rotary_of, write_scaling
from heedful.interop.tensor_table import (
    LINEAR,
    RepeatedTensor,
    Rule,
    Table,
    concatenated,
    prefix_of,
    renamed,
    same,
)
from heedful.models.encoder_spec import EncoderSpec, MaskedLMHeadSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Everything, Mask, Window
from heedful.nn.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
)

_BASES = {FULL: 160_000.0, SLIDING: 10_000.0}
_OLD_BASES = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}
_NETWORKS = {"gelu": "geglu", "silu": "swiglu", "relu": "reglu"}


def _read(fields: Fields, names: Names) -> EncoderSpec:
    for name in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"):
        fields.refuse_unless(name, [False], False)
    fields.refuse_unless("decoder_bias", [True], True)
    length = fields.integer("max_position_embeddings", 8192)
    norm = NormSpec(epsilon=fields.number("norm_eps", 1e-5), bias=False)
    rotary = {kind: _read_rotary(fields, kind, length) for kind in _BASES}
    # A window of 128 is 64 tokens on either side of a token, which it sees, too.
    window = Window(fields.integer("local_attention", 128) // 2 + 1)
    activation = fields.choice("hidden_activation", GATED, "gelu")

    def block(kind: str) -> BlockSpec:
        mask: Mask = Everything() if kind == FULL else window
        return BlockSpec.of(
            norm_placement="pre",
            norm=norm,
            self_attention=AttentionSpec(
                num_heads=fields.integer("num_attention_heads", 12),
                bias=False,
                dropout=fields.number("attention_dropout", 0.0),
                mask=mask,
                rotary=rotary[kind],
            ),
            feedforward=FeedForwardSpec(
                width=fields.integer("intermediate_size", 1152),
                activation=activation,
                bias=False,
                dropout=fields.number("mlp_dropout", 0.0),
            ),
        )

    first, *rest = [block(kind) for kind in _layer_types(fields)]
    # The norm of the embeddings is right before it.
    attention, network = first.sublayers
    attention = attention.model_copy(update={"norm_placement": "none"})
    first = first.model_copy(update={"sublayers": (attention, network)})
    return EncoderSpec(
        width=fields.integer("hidden_size", 768),
        vocabulary=fields.integer("vocab_size", 50368),
        embedding=EmbeddingSpec(
            scale=False,
            positions=PositionSpec(kind="none"),
            norm=norm,
            dropout=fields.number("embedding_dropout", 0.0),
        ),
        encoder=StackSpec(
            num_layers=1 + len(rest),
            pattern=tuple(shortest_period([first, *rest])),
            final_norm=norm,
        ),
        heads=_heads(fields, norm, names),
        max_length=length,
    )


def _heads(fields: Fields, norm: NormSpec, names: Names) -> tuple[MaskedLMHeadSpec, ...]:
    predicts = "ModernBertForMaskedLM" in fields.texts("architectures")
    if not predicts and "head.dense.weight" not in names:
        return ()
    return (
        MaskedLMHeadSpec(
            activation=fields.choice("classifier_activation", ACTIVATIONS, "gelu"),
            norm=norm,
            tied=fields.flag("tie_word_embeddings", True),
        ),
    )


def _layer_types(fields: Fields) -> tuple[str, ...]:
    count = fields.integer("num_hidden_layers", 22)
    every = fields.integer("global_attn_every_n_layers", 3)
    types = fields.texts("layer_types")
    types = types or tuple(SLIDING if number % every else FULL for number in range(count))
    if len(types) != count or not {SLIDING, FULL}.issuperset(types):
        raise fields.wrong("layer_types", f"{SLIDING} or {FULL} of each layer is needed")
    return types


def _read_rotary(fields: Fields, kind: str, length: int) -> RotarySpec:
    """Return the rotation of the layers of a kind."""
    base = fields.number(_OLD_BASES[kind], _BASES[kind])
    tables = fields.table("rope_parameters")
    rope = None if tables is None else tables.table(kind)
    return RotarySpec(base=base) if rope is None else rotary_of(rope, base, length)


def _write(spec: EncoderSpec) -> dict[str, Any]:
    blocks = spec.encoder.blocks
    attention, network = blocks[0].self_attention, blocks[0].feedforward
    head: Any = spec.head("masked_lm")  # other heads are refused, by what is nearest
    masks: list[Any] = [block.self_attention.mask for block in blocks]
    size = next((mask.size for mask in masks if mask.kind == "window"), 65)
    kinds = [SLIDING if mask.kind == "window" else FULL for mask in masks]
    names = {ours: theirs for theirs, ours in _NETWORKS.items()}
    rotaries = {
        kind: block.self_attention.rotary or RotarySpec()
        for kind, block in zip(kinds, blocks, strict=True)
    }
    return {
        "architectures": ["ModernBertForMaskedLM" if head else "ModernBertModel"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "intermediate_size": network.width,
        "num_hidden_layers": spec.encoder.num_layers,
        "num_attention_heads": attention.num_heads,
        "hidden_activation": names.get(network.activation),
        "max_position_embeddings": spec.max_length or 8192,
        "norm_eps": blocks[0].norm.epsilon,
        "layer_types": kinds,
        "local_attention": 2 * (size - 1),
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": each.base, **write_scaling(each)}
            for kind, each in rotaries.items()
        },
        "attention_dropout": attention.dropout,
        "mlp_dropout": network.dropout,
        "embedding_dropout": spec.embedding.dropout,
        "classifier_activation": ACTIVATION_NAMES.get(head.activation) if head else "gelu",
        "tie_word_embeddings": head.tied if head else True,
    }


def _table(spec: EncoderSpec, names: Names) -> Table:
    prefix = prefix_of(names, "model.") if spec.heads else ""
    width, inner = spec.width, spec.encoder.blocks[0].feedforward.width
    embedding = f"{prefix}embeddings.tok_embeddings.weight"
    rules = [
        same(embedding, "embedding.weight"),
        same(f"{prefix}embeddings.norm.weight", "input.norm.weight"),
        same(f"{prefix}final_norm.weight", "encoder.final_norm.weight"),
    ]
    for number in range(spec.encoder.num_layers):
        layer, own = f"{prefix}layers.{number}.", f"encoder.blocks.{number}."
        modules = {
            **({"attn_norm": "self_attention_norm"} if number else {}),
            "mlp_norm": "feedforward_norm",
            "attn.Wo": "self_attention.output",
            "mlp.Wo": "feedforward.down",
        }
        rules += renamed(modules, theirs=layer, ours=own, parts=LINEAR)
        maps = [f"{own}self_attention.{name}.weight" for name in ("query", "key", "value")]
        rules.append(concatenated(f"{layer}attn.Wqkv.weight", maps, [width] * 3))
        halves = [f"{own}feedforward.{name}.weight" for name in ("gate", "up")]
        rules.append(concatenated(f"{layer}mlp.Wi.weight", halves, [inner, inner]))
    copies: list[RepeatedTensor] = []
    for head in spec.heads:
        ours = "heads.masked_lm."
        rules += renamed({"head.dense": "dense", "head.norm": "norm"}, ours=ours, parts=LINEAR)
        rules += [same("decoder.bias", f"{ours}bias"), _zeros(f"{ours}dense.bias", width)]
        if head.kind == "masked_lm" and head.tied:
            copies.append(RepeatedTensor("decoder.weight", embedding))
        else:
            rules.append(same("decoder.weight", f"{ours}projection.weight"))
    return Table(tuple(rules), tuple(copies))


def _zeros(ours: str, width: int) -> Rule:
    """Return the rule of a bias that their layer does not have."""

    def none(tensors: Any) -> list[Any]:
        if tensors[0].any():
            raise ModelError(
                f"{ours} is not zero, and there is no such bias there",
                where="the model to export",
                remedy="Export another head, or the encoder without one",
            )
        return []

    return Rule((), (ours,), lambda _: [torch.zeros(width)], none)


ARCHITECTURE = Architecture(
    model_type="modernbert",
    kind="encoder",
    read=_read,
    write=_write,
    tensors=_table,
    rewrites=(scaled_embeddings,),
    # Their heads that label have a norm of their own, which ours lack.
    missing=lambda spec: [
        f"it has no {head.kind} head" for head in spec.heads if head.kind != "masked_lm"
    ],
    classes=("ModernBertForMaskedLM", "ModernBertModel"),
    # Dropout and pooling of heads that label; ways to compute the loss.
    inert=(
        *("classifier_pooling", "sparse_prediction", "sparse_pred_ignore_index"),
        *("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad"),
        *("cls_token_id", "sep_token_id", "layer_norm_eps", "position_embedding_type"),
    ),
)
