"""ViT of Hugging Face: `ViTModel`, with its pooler or without, and `ViTForImageClassification`.

A mask token, which only models of masked patches use, is refused as a tensor that has no place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from heedful.interop.fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from heedful.interop.fitting import misfits
from heedful.interop.table import Rule, Table, reshaped, same
from heedful.models.family import ModelSpec, VisionSpec

MODEL_TYPES = ("vit",)
FORMS = ()

_ENCODER = "ViTModel"
_CLASSIFIER = "ViTForImageClassification"
_PREFIX = "vit."
_LAYER = {
    "attention.attention.query": "self_attention.query",
    "attention.attention.key": "self_attention.key",
    "attention.attention.value": "self_attention.value",
    "attention.output.dense": "self_attention.output",
    "intermediate.dense": "feedforward.up",
    "output.dense": "feedforward.down",
    "layernorm_before": "self_attention_norm",
    "layernorm_after": "feedforward_norm",
}
"""Their names of a layer's parts to ours."""
_WITHOUT_BIAS = ("self_attention.query", "self_attention.key", "self_attention.value")
"""Where `qkv_bias = false` takes the bias away."""


def read_config(
    config: Mapping[str, Any], *, where: str, names: Collection[str] = ()
) -> VisionSpec:
    """The spec that a config.json describes.

    Args:
        config: its content.
        where: the file, for error messages.
        names: the tensors' names. A configuration does not say whether there is a pooler; without
            names there is one where there is no classifier.

    Raises:
        ModelError: when something in it is missing, wrong or has no counterpart here.
        ConfigError: when a size or probability is out of its range.
    """
    fields = Fields(config, where)
    classifies = _classifies(fields)
    width = fields.integer("hidden_size", 768)
    fields.refuse_unless("pooler_act", ("tanh",), "tanh")
    fields.refuse_unless("pooler_output_size", (width,), width)
    norm = {"epsilon": fields.number("layer_norm_eps", 1e-12)}
    dropout = fields.number("hidden_dropout_prob", 0.0)
    attention = {
        "num_heads": fields.integer("num_attention_heads", 12),
        "dropout": fields.number("attention_probs_dropout_prob", 0.0),
    }
    if not fields.flag("qkv_bias", True):
        attention |= {"bias": False, "output_bias": True}
    plain = {
        "width": width,
        "image_size": _side(config, fields, "image_size", 224),
        "patch_size": _side(config, fields, "patch_size", 16),
        "channels": fields.integer("num_channels", 3),
        "encoder": {
            "num_layers": fields.integer("num_hidden_layers", 12),
            "block": {
                "norm_placement": "pre",
                "norm": norm,
                "self_attention": attention,
                "feedforward": {
                    "width": fields.integer("intermediate_size", 3072),
                    "activation": fields.choice("hidden_act", ACTIVATIONS, "gelu"),
                },
                "dropout": dropout,
            },
            "final_norm": norm,
        },
        "pooler": any(n.endswith("pooler.dense.weight") for n in names)
        if names
        else not classifies,
        "labels": fields.labels() if classifies else (),
        "dropout": dropout,
    }
    return VisionSpec.parse(plain, where=where)


def write_config(spec: VisionSpec) -> dict[str, Any]:
    """The config.json of a spec that `fits`; of another spec, one that says less."""
    block, names = spec.encoder.block, spec.class_names
    config: dict[str, Any] = {
        "architectures": [_CLASSIFIER if names else _ENCODER],
        "model_type": "vit",
        "hidden_size": spec.width,
        "image_size": spec.image_size,
        "patch_size": spec.patch_size,
        "num_channels": spec.channels,
        "num_hidden_layers": spec.encoder.num_layers,
        "num_attention_heads": block.self_attention.num_heads,
        "intermediate_size": block.feedforward.width,
        "hidden_act": ACTIVATION_NAMES.get(block.feedforward.activation),
        "hidden_dropout_prob": spec.dropout,
        "attention_probs_dropout_prob": block.self_attention.dropout,
        "layer_norm_eps": block.norm.epsilon,
        "qkv_bias": block.self_attention.bias,
        "pooler_act": "tanh",
        "pooler_output_size": spec.width,
    }
    if names:
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    return config


def differences(spec: ModelSpec) -> list[str] | None:
    """What of a spec `write_config` cannot say; None for another kind of model."""
    if not isinstance(spec, VisionSpec):
        return None
    if spec.pooler and spec.class_names:
        return ["their classifier has no pooler before it"]
    # What is done with pixels stands in a file of its own.
    named = spec.model_copy(
        update={"labels": spec.class_names, "num_classes": None, "pixels": None}
    )
    tensors = [name for rule in table(spec).rules for name in rule.theirs]
    return misfits(named, lambda: read_config(write_config(spec), where="", names=tensors))


def fits(spec: ModelSpec) -> bool:
    """Whether a written config.json says all of a spec: read again, it gives the same spec."""
    return differences(spec) == []


def table(spec: VisionSpec, names: Collection[str] = ()) -> Table:
    """All tensors of a model.

    Args:
        spec: of the model.
        names: their names, which tell the prefix; () for an export.
    """
    prefix = _PREFIX if spec.class_names else ""
    if names:
        prefix = _PREFIX if any(name.startswith(_PREFIX) for name in names) else ""
    rules = _embedding_rules(f"{prefix}embeddings.", spec)
    for layer in range(spec.encoder.num_layers):
        theirs, ours = f"{prefix}encoder.layer.{layer}.", f"encoder.blocks.{layer}."
        for their_part, part in _LAYER.items():
            bias = spec.encoder.block.self_attention.bias or part not in _WITHOUT_BIAS
            rules += _linear(f"{theirs}{their_part}", f"{ours}{part}", bias=bias)
    rules += _linear(f"{prefix}layernorm", "encoder.final_norm")
    if spec.pooler:
        rules += _linear(f"{prefix}pooler.dense", "pooler.dense")
    if spec.class_names:
        rules += _linear("classifier", "classifier.output")
    return Table(tuple(rules))


def _classifies(fields: Fields) -> bool:
    """Whether the class that wrote the files has a classifier."""
    written = fields.texts("architectures")
    if len(written) > 1 or not {_ENCODER, _CLASSIFIER}.issuperset(written):
        raise fields.wrong("architectures", f"Heedful reads {_ENCODER} or {_CLASSIFIER}")
    return _CLASSIFIER in written


def _side(config: Mapping[str, Any], fields: Fields, key: str, default: int) -> int:
    """The side of a square that is given as a number or as height and width."""
    value = config.get(key)
    if not isinstance(value, list | tuple):
        return fields.integer(key, default)
    if len(value) != 2 or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise fields.wrong(key, "a whole number is needed, or two")
    if value[0] != value[1]:
        raise fields.wrong(key, "Heedful reads models of square images and patches only")
    return int(value[0])


def _embedding_rules(theirs: str, spec: VisionSpec) -> list[Rule]:
    width, side, channels = spec.width, spec.patch_size, spec.channels
    states = spec.num_states
    convolution = f"{theirs}patch_embeddings.projection"
    return [
        reshaped(f"{theirs}cls_token", "class_token", (1, 1, width), (width,)),
        reshaped(
            f"{theirs}position_embeddings",
            "positions.weight",
            (1, states, width),
            (states, width),
        ),
        reshaped(
            f"{convolution}.weight",
            "patches.projection.weight",
            (width, channels, side, side),
            (width, channels * side * side),
        ),
        same(f"{convolution}.bias", "patches.projection.bias"),
    ]


def _linear(theirs: str, ours: str, *, bias: bool = True) -> list[Rule]:
    parts = ("weight", "bias") if bias else ("weight",)
    return [same(f"{theirs}.{part}", f"{ours}.{part}") for part in parts]
