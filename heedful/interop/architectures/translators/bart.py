"""BART (Lewis 2020), with the rules for stacks that its relatives' files share."""

from __future__ import annotations

import functools
from typing import Any, Literal

from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from heedful.interop.tensor_table import (
    RepeatedTensor,
    Rule,
    Table,
    output_projection,
    prefix_of,
    renamed,
    reshaped,
    same,
)
from heedful.models.model_spec import TranslatorSpec
from heedful.models.sounds.transcriber_spec import TranscriberSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Causal, Everything
from heedful.nn.spec import AttentionSpec, EmbeddingSpec, FeedForwardSpec, NormSpec, PositionSpec

# Fairseq counted positions from the row after the padding id 1, and transformers keeps the offset.
_UNUSED_ROWS = 2
# <s> and </s> around a source take two positions.
_FRAME = 2
_BIAS = "final_logits_bias"
# A file may say 0 as an integer or as a float; both mean that no layer is skipped in training.
_NO_LAYER_DROP = (0, 0.0)
_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
_LAYER = {
    **{f"self_attn.{theirs}": f"self_attention.{ours}" for theirs, ours in _ATTENTION.items()},
    # Of a sub-layer's residual sum here (post-norm), of its input in pre-norm relatives.
    "self_attn_layer_norm": "self_attention_norm",
    "fc1": "feedforward.up",
    "fc2": "feedforward.down",
    # Every layer has this norm; it is not that of the stack, in spite of its name.
    "final_layer_norm": "feedforward_norm",
}
_CROSS_ATTENTION = {
    **{f"encoder_attn.{theirs}": f"cross_attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "encoder_attn_layer_norm": "cross_attention_norm",
}


def _read(fields: Fields, names: Names, pre_norm: bool) -> TranslatorSpec:
    fields.refuse_unless("normalize_embedding", [True], True)
    fields.refuse_unless("static_position_embeddings", [False], False)
    positions = fields.integer("max_position_embeddings")
    return read_translator(
        fields,
        PositionSpec(kind="learned", max_length=positions, unused_rows=_UNUSED_ROWS),
        positions - _FRAME,
        pre_norm=pre_norm,
        # `layernorm_embedding`: a norm of tokens and positions before the first block.
        norm=NormSpec(),
        output_bias=has_bias(names),
    )


def read_translator(
    fields: Fields,
    positions: PositionSpec,
    max_length: int,
    *,
    pre_norm: bool,
    activation: str = "gelu",
    scale: bool = False,
    norm: NormSpec | None = None,
    output_bias: bool = False,
) -> TranslatorSpec:
    """Return the spec of a translator with one vocabulary, which BART and its relatives are.

    Args:
        fields: fields of config.json.
        positions: positions of both sides.
        max_length: longest text in tokens.
        pre_norm, activation: arguments of `read_stack`.
        scale: scale of the embeddings that a missing field means.
        norm: norm of the sum of token and position.
        output_bias: flag of a bias of the logits.
    """
    vocabulary = fields.integer("vocab_size")
    return TranslatorSpec(
        width=fields.integer("d_model"),
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        # Both stacks share one table here; the output projection shares it if it is tied.
        share_embeddings="all" if fields.flag("tie_word_embeddings", True) else "inputs",
        embedding=EmbeddingSpec(
            scale=fields.flag("scale_embedding", scale),
            positions=positions,
            norm=norm,
            dropout=fields.number("dropout", 0.1),
        ),
        encoder=read_stack(fields, "encoder", pre_norm, activation),
        decoder=read_stack(fields, "decoder", pre_norm, activation),
        output_bias=output_bias,
        max_length=max_length,
    )


def read_stack(
    fields: Fields,
    side: Literal["encoder", "decoder"],
    pre_norm: bool = False,
    activation: str = "gelu",
) -> StackSpec:
    """Return the spec of an encoder or a decoder; raise a `ModelError` for fields unknown here.

    Args:
        fields: fields of config.json.
        side: name of the stack.
        pre_norm: flag of norms before the sub-layers, and of one after the stack.
        activation: name of theirs that a missing field means.
    """
    fields.ignore(f"{side}_layerdrop")
    fields.check_aliases(
        hidden_size="d_model",
        num_hidden_layers="encoder_layers",
        num_attention_heads="encoder_attention_heads",
    )
    # Settings of the time when one class of transformers computed all of them.
    fields.refuse_unless("normalize_before", [pre_norm], pre_norm)
    fields.refuse_unless("add_final_layer_norm", [pre_norm], pre_norm)
    # The training of M2M-100 skipped layers at random; all are there when it is used.
    if not pre_norm:
        fields.refuse_unless(f"{side}_layerdrop", _NO_LAYER_DROP, 0.0)
    attention = AttentionSpec(
        num_heads=fields.integer(f"{side}_attention_heads"),
        dropout=fields.number("attention_dropout", 0.0),
    )
    mask = Causal() if side == "decoder" else Everything()
    return StackSpec.of(
        num_layers=fields.integer(f"{side}_layers"),
        block=BlockSpec.of(
            norm_placement="pre" if pre_norm else "post",
            self_attention=attention.model_copy(update={"mask": mask}),
            cross_attention=attention if side == "decoder" else None,
            feedforward=FeedForwardSpec(
                width=fields.integer(f"{side}_ffn_dim"),
                activation=fields.choice("activation_function", ACTIVATIONS, activation),
                dropout=fields.number("activation_dropout", 0.0),
            ),
            dropout=fields.number("dropout", 0.1),
        ),
        final_norm=NormSpec() if pre_norm else None,
    )


def has_bias(names: Names) -> bool:
    """Return True if files with these tensors have a bias of the logits."""
    # Files without it mean a bias of zeros; without names it is assumed to exist.
    return not names or _BIAS in names


def write_translator(
    spec: TranslatorSpec, name: str, max_positions: int | None = None
) -> dict[str, Any]:
    """Return the fields that `read_translator` reads.

    Args:
        spec: spec of the model.
        name: name of the class of transformers.
        max_positions: number of positions; that of the table if unset.
    """
    return {
        "architectures": [name],
        **write_stacks(spec),
        "vocab_size": spec.target_vocabulary,
        "max_position_embeddings": max_positions or spec.embedding.positions.max_length,
        "tie_word_embeddings": spec.share_embeddings == "all",
    }


def write_stacks(spec: TranslatorSpec | TranscriberSpec) -> dict[str, Any]:
    """Return the fields of both stacks, from which `read_stack` reads them."""
    block = spec.encoder.block
    config: dict[str, Any] = {
        "d_model": spec.width,
        "dropout": block.dropout,
        "attention_dropout": block.self_attention.dropout,
        "activation_dropout": block.feedforward.dropout,
        "activation_function": ACTIVATION_NAMES.get(block.feedforward.activation),
        "scale_embedding": spec.embedding.scale,
        "is_encoder_decoder": True,
    }
    for side, stack in spec.stacks().items():
        config[f"{side}_layers"] = stack.num_layers
        config[f"{side}_attention_heads"] = stack.block.self_attention.num_heads
        config[f"{side}_ffn_dim"] = stack.block.feedforward.width
        config[f"{side}_layerdrop"] = 0.0
    return config


def _table(spec: TranslatorSpec, names: Names) -> Table:
    rules, copies = stack_rules(spec, names)
    prefix = prefix_of(names, "model.")
    for side, ours in (("encoder", "source_input"), ("decoder", "target_input")):
        rules.append(same(f"{prefix}{side}.embed_positions.weight", f"{ours}.positions.weight"))
        rules += renamed(
            {"layernorm_embedding": "norm"}, theirs=f"{prefix}{side}.", ours=f"{ours}."
        )
    return Table(tuple(rules), tuple(copies), ignored=(r"(model\.)?(encoder|decoder)\.version",))


def stack_rules(spec: TranslatorSpec, names: Names) -> tuple[list[Rule], list[RepeatedTensor]]:
    """Return the rules and copies of both stacks, the embedding tables and the logits' bias.

    Args:
        spec: spec of the model.
        names: names of the files' tensors, without "model." for a model without head.
    """
    prefix = prefix_of(names, "model.")
    share = spec.share_embeddings
    # With an untied projection transformers unties the embedding tables too and expects each one.
    written = share == "inputs"
    source, target = f"{prefix}encoder.embed_tokens.weight", f"{prefix}decoder.embed_tokens.weight"
    if share in ("all", "inputs"):
        table = f"{prefix}shared.weight"
        rules = [same(table, "target_embedding.weight")]
        copies = [RepeatedTensor(source, table, written), RepeatedTensor(target, table, written)]
    else:
        table = target
        rules = [same(source, "source_embedding.weight"), same(target, "target_embedding.weight")]
        copies = []
    head, tied = output_projection("lm_head.weight", table if share in ("all", "target") else None)
    rules, copies = rules + head, copies + tied
    if spec.output_bias:
        size = spec.target_vocabulary
        # Theirs is a buffer of shape [1, V].
        rules.append(reshaped(_BIAS, "output_bias", (1, size), (size,)))
    rules += layer_rules(spec, prefix)
    return rules, copies


def layer_rules(spec: TranslatorSpec | TranscriberSpec, prefix: str) -> list[Rule]:
    """Return the rules of the layers of both stacks, and of the norms after them.

    Args:
        spec: spec of the model.
        prefix: beginning of the names of their tensors.
    """
    rules: list[Rule] = []
    for side, stack in spec.stacks().items():
        modules = _LAYER if side == "encoder" else _LAYER | _CROSS_ATTENTION
        for number in range(stack.num_layers):
            theirs, ours = f"{prefix}{side}.layers.{number}.", f"{side}.blocks.{number}."
            rules += renamed(modules, theirs=theirs, ours=ours)
        if stack.final_norm is not None:
            rules += renamed(
                {"layer_norm": "final_norm"}, theirs=f"{prefix}{side}.", ours=f"{side}."
            )
    return rules


INERT = (
    # Of the first files: whether logits have a bias follows from the tensors, the number of unused
    # rows from the class, and the rest describes how distilled students were made.
    *("add_bias_logits", "extra_pos_embeddings", "do_blenderbot_90_layernorm"),
    *("student_encoder_layers", "student_decoder_layers", "replacing_rate", "save_step"),
)
"""Settings without effect of BART and its relatives."""


def bart_architecture(
    model_type: str, name: str, *, pre_norm: bool
) -> Architecture[TranslatorSpec]:
    """Return the architecture of a translator with BART's tensors and positions.

    Args:
        model_type: name of the architecture in config.json.
        name: beginning of the names of its classes.
        pre_norm: flag of norms before the sub-layers, and of one after each stack.
    """
    classes = (f"{name}ForConditionalGeneration", f"{name}Model")
    return Architecture(
        model_type=model_type,
        kind="translator",
        read=functools.partial(_read, pre_norm=pre_norm),
        write=functools.partial(write_translator, name=classes[0]),
        tensors=_table,
        classes=classes,
        inert=INERT,
    )


ARCHITECTURE = bart_architecture("bart", "Bart", pre_norm=False)
