"""T5 (Raffel 2020), versions 1.0 and 1.1."""

from __future__ import annotations

import functools
from typing import Any

from heedful.config import GATED, Activation
from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import Fields
from heedful.interop.rewrites import scaled_embeddings, scaled_queries
from heedful.interop.tensor_table import (
    LINEAR,
    RepeatedTensor,
    Table,
    output_projection,
    renamed,
    same,
)
from heedful.models.model_spec import TranslatorSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Causal, Everything
from heedful.nn.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    T5BiasSpec,
)

_HEAD = "lm_head.weight"
_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    # Transformers replaces it by the tanh approximation, which T5 1.1 was trained with.
    "gated-gelu": "geglu_tanh",
    "gated-gelu_new": "geglu_tanh",
    "gated-silu": "swiglu",
    "gated-relu": "reglu",
}
# The order is reversed, so that the first of two names, that of published files, is written.
_NAMES = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "output"}
# `n_positions` of the published models, </s> included; relative positions set no bound themselves.
_TRAINED_LENGTH = 512


def _read(fields: Fields, names: Names, activation: str, scaled: bool) -> TranslatorSpec:
    fields.check_aliases(
        hidden_size="d_model",
        num_hidden_layers="num_layers",
        num_attention_heads="num_heads",
        head_dim="d_kv",
    )
    width, vocabulary = fields.integer("d_model"), fields.integer("vocab_size")
    layers = fields.integer("num_layers")
    # Only a tied output projection needs scaled states, so older files have one field for both.
    # Newer files set `tie_word_embeddings` in every model and have a field for the scale.
    tied = fields.flag("tie_word_embeddings", True)
    scaled = scaled and fields.flag("scale_decoder_outputs", tied)
    # Published models of version 1.1 have an output projection of their own; config.json does not
    # say so.
    own_head = not scaled and (not names or _HEAD in names)
    return TranslatorSpec(
        width=width,
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        share_embeddings="inputs" if own_head else "all",
        embedding=EmbeddingSpec(
            scale=False,
            # Positions come in as a bias of the scores.
            positions=PositionSpec(kind="none"),
            dropout=fields.number("dropout_rate", 0.1),
        ),
        encoder=_read_stack(fields, layers, activation, decoder=False),
        decoder=_read_stack(
            fields, fields.integer("num_decoder_layers", layers), activation, decoder=True
        ),
        # Mesh TensorFlow's rescaling of logits from a tied table.
        output_scale=width**-0.5 if scaled else None,
        max_length=fields.integer("n_positions", _TRAINED_LENGTH) - 1,
    )


def _read_stack(fields: Fields, num_layers: int, activation: str, *, decoder: bool) -> StackSpec:
    dropout = fields.number("dropout_rate", 0.1)
    norm = NormSpec(kind="rms", epsilon=fields.number("layer_norm_epsilon", 1e-6))
    attention = AttentionSpec(
        num_heads=fields.integer("num_heads"),
        # The head width is not D / H in all models: the 11B model has 128 heads of 128 with D =
        # 1024.
        head_width=fields.integer("d_kv"),
        bias=False,
        # No 1/sqrt(E) on the scores: T5 has it in the initialisation of the query projection.
        scale=1.0,
        dropout=dropout,
    )
    mask = Causal() if decoder else Everything()
    return StackSpec.of(
        num_layers=num_layers,
        block=BlockSpec.of(
            norm_placement="pre",
            norm=norm,
            self_attention=attention.model_copy(update={"mask": mask}),
            cross_attention=attention if decoder else None,
            feedforward=FeedForwardSpec(
                width=fields.integer("d_ff"),
                activation=fields.choice("feed_forward_proj", _ACTIVATIONS, activation),
                bias=False,
                dropout=dropout,
            ),
            dropout=dropout,
        ),
        final_norm=norm,
        # T5 applies dropout after the final norm, too.
        final_dropout=dropout,
        # Stored in the first layer and used by all of them.
        shared_position_bias=T5BiasSpec(
            num_buckets=fields.integer("relative_attention_num_buckets", 32),
            max_distance=fields.integer("relative_attention_max_distance", 128),
            # A decoder uses all buckets for the past.
            bidirectional=not decoder,
        ),
    )


def _write(spec: TranslatorSpec, scaled: bool, name: str) -> dict[str, Any]:
    """Return a config.json with the special ids of the published vocabulary."""
    block = spec.encoder.block
    config: dict[str, Any] = {
        "architectures": [name],
        "is_encoder_decoder": True,
        "vocab_size": spec.target_vocabulary,
        "d_model": spec.width,
        "d_kv": block.self_attention.head_width,
        "d_ff": block.feedforward.width,
        "num_layers": spec.encoder.num_layers,
        "num_decoder_layers": spec.decoder.num_layers,
        "num_heads": block.self_attention.num_heads,
        "dropout_rate": block.dropout,
        "layer_norm_epsilon": block.norm.epsilon,
        "feed_forward_proj": _NAMES.get(block.feedforward.activation),
        "n_positions": spec.max_length + 1,
        "tie_word_embeddings": spec.output_scale is not None,
        **({"scale_decoder_outputs": spec.output_scale is not None} if scaled else {}),
        "pad_token_id": 0,
        "eos_token_id": 1,
        # There is no BOS token; the decoder starts from <pad>.
        "decoder_start_token_id": 0,
    }
    bias = spec.encoder.shared_position_bias
    if bias is not None and bias.kind == "t5":
        config["relative_attention_num_buckets"] = bias.num_buckets
        config["relative_attention_max_distance"] = bias.max_distance
    return config


def _table(spec: TranslatorSpec, names: Names) -> Table:
    rules = [same("shared.weight", "target_embedding.weight")]
    copies = [
        RepeatedTensor(f"{side}.embed_tokens.weight", "shared.weight") for side in spec.stacks()
    ]
    shares = spec.share_embeddings == "all"
    head, tied = output_projection(_HEAD, "shared.weight" if shares else None)
    for side, stack in spec.stacks().items():
        relative = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rules.append(same(relative, f"{side}.position_bias.weight"))
        rules.append(same(f"{side}.final_layer_norm.weight", f"{side}.final_norm.weight"))
        modules = _block_modules(stack.block)
        for number in range(stack.num_layers):
            theirs, ours = f"{side}.block.{number}.layer.", f"{side}.blocks.{number}."
            rules += renamed(modules, theirs=theirs, ours=ours, parts=LINEAR)
    # The first published files hold a bias of cross-attention that the model never uses.
    unused = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    return Table((*rules, *head), (*copies, *tied), ignored=(unused,))


def _block_modules(block: BlockSpec) -> dict[str, str]:
    """Return our names of a block's modules by their names, which number the sub-layers."""
    sublayers = {"SelfAttention": "self_attention"}
    if block.cross_attention is not None:
        sublayers["EncDecAttention"] = "cross_attention"
    modules = {}
    for number, (theirs, ours) in enumerate(sublayers.items()):
        for their_map, our_map in _ATTENTION.items():
            modules[f"{number}.{theirs}.{their_map}"] = f"{ours}.{our_map}"
        modules[f"{number}.layer_norm"] = f"{ours}_norm"
    feedforward = {"wi": "up", "wo": "down"}
    if block.feedforward.activation in GATED:
        # wi_0 goes through the activation, wi_1 is multiplied with it (Shazeer 2020).
        feedforward = {"wi_0": "gate", "wi_1": "up", "wo": "down"}
    last = len(sublayers)
    for their_map, our_map in feedforward.items():
        modules[f"{last}.DenseReluDense.{their_map}"] = f"feedforward.{our_map}"
    return {**modules, f"{last}.layer_norm": "feedforward_norm"}


def t5_architecture(
    model_type: str, activation: str, scaled: bool, *classes: str
) -> Architecture[TranslatorSpec]:
    """Return the architecture of a translator with T5's tensors.

    Args:
        model_type: name of the architecture in config.json.
        activation: name of theirs that a missing `feed_forward_proj` means.
        scaled: flag of a class that scales states before a tied output projection.
        classes: classes of transformers, that which is written first.
    """
    return Architecture(
        model_type=model_type,
        kind="translator",
        read=functools.partial(_read, activation=activation, scaled=scaled),
        write=functools.partial(_write, scaled=scaled, name=classes[0]),
        tensors=_table,
        rewrites=(scaled_embeddings, scaled_queries),
        classes=classes,
        # Both follow from `feed_forward_proj`.
        inert=("dense_act_fn", "is_gated_act"),
    )


ARCHITECTURE = t5_architecture(
    "t5", "relu", True, "T5ForConditionalGeneration", "T5WithLMHeadModel", "T5Model"
)
