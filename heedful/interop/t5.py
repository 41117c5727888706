"""T5 (Raffel 2020), 1.0 and 1.1, as transformers stores it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from heedful.interop.bart_layers import their_names
from heedful.interop.fields import Fields, sizes_checked
from heedful.interop.fitting import misfits
from heedful.interop.forms import scores_unscaled, unscaled
from heedful.interop.table import Copy, Rule, Table, same
from heedful.models.family import ModelSpec
from heedful.models.spec import BlockSpec, StackSpec, TranslatorSpec
from heedful.nn.kinds import Activation
from heedful.nn.spec import (
    AttentionSpec,
    CausalSpec,
    EmbeddingSpec,
    EverythingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    T5BiasSpec,
)

MODEL_TYPES = ("t5",)
FORMS = (unscaled, scores_unscaled)

_HEAD = "lm_head.weight"
_SIDES = ("encoder", "decoder")

_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-gelu": "geglu_tanh",  # by this name they mean the approximation
    "gated-gelu_new": "geglu_tanh",
    "gated-silu": "swiglu",
    "gated-relu": "reglu",
}
_NAMES = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "output"}
_TRAINED_LENGTH = 512  # "n_positions" of the published models, with the end token


def read_config(
    config: Mapping[str, Any], *, where: str, names: Collection[str] = ()
) -> TranslatorSpec:
    """The spec that a config.json describes.

    Args:
        config: its content.
        where: the file, for error messages.
        names: the tensors' names. A configuration does not tell whether a model of version 1.1 has
            the head of its own that the published ones have; without names it has.

    Raises:
        ModelError: naming a setting that is missing, wrong or without a counterpart here.
    """
    fields = Fields(config, where)
    width, vocabulary = fields.integer("d_model"), fields.integer("vocab_size")
    layers = fields.integer("num_layers")
    # States are scaled for a head that is the embedding, so older files said both as one; newer
    # ones say "tied" of every model.
    scaled = fields.flag("scale_decoder_outputs", fields.flag("tie_word_embeddings", True))
    own_head = not scaled and (not names or _HEAD in names)
    with sizes_checked(where):
        return TranslatorSpec(
            width=width,
            source_vocabulary=vocabulary,
            target_vocabulary=vocabulary,
            share_embeddings="inputs" if own_head else "all",
            embedding=EmbeddingSpec(
                scale=False,
                positions=PositionSpec(kind="none"),
                dropout=fields.number("dropout_rate", 0.1),
            ),
            encoder=_read_stack(fields, layers, decoder=False),
            decoder=_read_stack(fields, fields.integer("num_decoder_layers", layers), decoder=True),
            output_scale=width**-0.5 if scaled else None,
            max_length=fields.integer("n_positions", _TRAINED_LENGTH) - 1,
        )


def _read_stack(fields: Fields, num_layers: int, *, decoder: bool) -> StackSpec:
    dropout = fields.number("dropout_rate", 0.1)
    norm = NormSpec(kind="rms", epsilon=fields.number("layer_norm_epsilon", 1e-6))
    attention = AttentionSpec(
        num_heads=fields.integer("num_heads"),
        head_width=fields.integer("d_kv"),
        bias=False,
        scale=1.0,
        dropout=dropout,
    )
    mask = CausalSpec() if decoder else EverythingSpec()
    return StackSpec(
        num_layers=num_layers,
        block=BlockSpec(
            norm_placement="pre",
            norm=norm,
            self_attention=attention.model_copy(update={"mask": mask}),
            cross_attention=attention if decoder else None,
            feedforward=FeedForwardSpec(
                width=fields.integer("d_ff"),
                activation=fields.choice("feed_forward_proj", _ACTIVATIONS, "relu"),
                bias=False,
                dropout=dropout,
            ),
            dropout=dropout,
        ),
        final_norm=norm,
        final_dropout=dropout,
        shared_position_bias=T5BiasSpec(
            num_buckets=fields.integer("relative_attention_num_buckets", 32),
            max_distance=fields.integer("relative_attention_max_distance", 128),
            bidirectional=not decoder,
        ),
    )


def write_config(spec: TranslatorSpec) -> dict[str, Any]:
    """The config.json of a model that `fits`, with the special ids of the published models."""
    block = spec.encoder.block
    bias = spec.encoder.shared_position_bias
    config: dict[str, Any] = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
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
        # Our own name where theirs has none: reading refuses it.
        "feed_forward_proj": _NAMES.get(block.feedforward.activation, block.feedforward.activation),
        "n_positions": spec.max_length + 1,
        "tie_word_embeddings": spec.output_scale is not None,
        "scale_decoder_outputs": spec.output_scale is not None,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }
    if isinstance(bias, T5BiasSpec):
        config["relative_attention_num_buckets"] = bias.num_buckets
        config["relative_attention_max_distance"] = bias.max_distance
    return config


def differences(spec: ModelSpec) -> list[str] | None:
    """What of a spec `write_config` cannot say; None for another kind of model."""
    if not isinstance(spec, TranslatorSpec):
        return None
    names = their_names(table(spec))
    return misfits(spec, lambda: read_config(write_config(spec), where="", names=names))


def fits(spec: ModelSpec) -> bool:
    """Whether `write_config` can say all of a spec."""
    return differences(spec) == []


def table(spec: TranslatorSpec, names: Collection[str] = ()) -> Table:
    """The tensors, of files with these names; of an export if there are none."""
    rules = [same("shared.weight", "target_embedding.weight")]
    copies = [Copy(f"{side}.embed_tokens.weight", "shared.weight") for side in _SIDES]
    if spec.share_embeddings == "all":
        copies.append(Copy(_HEAD, "shared.weight"))
    else:
        rules.append(same(_HEAD, "output_projection.weight"))
    for side in _SIDES:
        rules += _stack_rules(spec, side)
    # The first files hold a bias of cross-attention, which is not part of the model.
    unused = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    return Table(tuple(rules), tuple(copies), ignored=(unused,))


def _stack_rules(spec: TranslatorSpec, side: str) -> Iterator[Rule]:
    stack = spec.encoder if side == "encoder" else spec.decoder
    relative = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    yield same(relative, f"{side}.position_bias.weight")
    yield same(f"{side}.final_layer_norm.weight", f"{side}.final_norm.weight")
    for i in range(stack.num_layers):
        for theirs, ours in _layer_names(stack.block):
            yield same(
                f"{side}.block.{i}.layer.{theirs}.weight", f"{side}.blocks.{i}.{ours}.weight"
            )


def _layer_names(block: BlockSpec) -> Iterator[tuple[str, str]]:
    parts = [("SelfAttention", "self_attention")]
    if block.cross_attention is not None:
        parts.append(("EncDecAttention", "cross_attention"))
    for number, (theirs, ours) in enumerate(parts):
        for their_map, our_map in _ATTENTION.items():
            yield f"{number}.{theirs}.{their_map}", f"{ours}.{our_map}"
        yield f"{number}.layer_norm", f"{ours}_norm"
    last = f"{len(parts)}.DenseReluDense"
    if block.feedforward.activation in ("geglu_tanh", "swiglu", "reglu"):
        yield f"{last}.wi_0", "feedforward.gate"
        yield f"{last}.wi_1", "feedforward.up"
    else:
        yield f"{last}.wi", "feedforward.up"
    yield f"{last}.wo", "feedforward.down"
    yield f"{len(parts)}.layer_norm", "feedforward_norm"
