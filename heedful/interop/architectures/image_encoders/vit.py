"""ViT (Dosovitskiy 2021): `ViTModel`, with or without pooler, and `ViTForImageClassification`.

A mask token, which only models of masked patches use, is refused as an unknown tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import ACTIVATION_NAMES, ACTIVATIONS, Fields, write_labels
from heedful.interop.tensor_table import (
    AFFINE,
    LINEAR,
    Rule,
    Table,
    prefix_of,
    renamed,
    reshaped,
    same,
)
from heedful.models.images.vision_spec import VisionSpec

_LAYER = {
    "attention.output.dense": "self_attention.output",
    "intermediate.dense": "feedforward.up",
    "output.dense": "feedforward.down",
    "layernorm_before": "self_attention_norm",
    "layernorm_after": "feedforward_norm",
}


@dataclass(frozen=True)
class VitNames:
    """Names in which ViT and its relatives differ.

    Args:
        model_type: name of the architecture in config.json.
        encoder, classifier: classes of transformers.
        prefix: prefix of the encoder's tensors in the classifier, which holds it as an attribute.
        pooling: state that the classifier reads: that of a class token, or the mean.
        teacher: class of transformers with two classifiers; None where there is no distillation
            token.
        layer: our names of a layer's modules by their names.
        layer_scale: flag of factors on the channels of a part's output (Touvron 2021), which are
            multiplied into its weights; and of an inner width as a multiple of the model's.
        inert: settings without effect.
    """

    model_type: str
    encoder: str
    classifier: str
    prefix: str
    pooling: Literal["first", "mean"]
    teacher: str | None = None
    layer: Mapping[str, str] = field(default_factory=lambda: _LAYER)
    layer_scale: bool = False
    inert: tuple[str, ...] = ()

    def architecture(self) -> Architecture[VisionSpec]:
        """Return the architecture with these names."""
        return Architecture(
            model_type=self.model_type,
            kind="vision",
            read=functools.partial(_read, names_of=self),
            write=functools.partial(_write, names_of=self),
            tensors=functools.partial(_table, names_of=self),
            compared=_compared,
            missing=_missing,
            classes=tuple(each for each in self._classes() if each),
            inert=("tie_word_embeddings", *self.inert),
        )

    def _classes(self) -> tuple[str | None, ...]:
        return self.encoder, self.classifier, self.teacher


_QUERY_KEY_VALUE = {
    f"attention.attention.{name}": f"self_attention.{name}" for name in ("query", "key", "value")
}
"""Projections without bias under `qkv_bias = false`."""


def _read(fields: Fields, names: Names, names_of: VitNames) -> VisionSpec:
    (cls,) = fields.texts("architectures") or ("",)
    classifies = bool(cls) and cls in (names_of.classifier, names_of.teacher)
    # `add_pooling_layer` is an argument of the class and not in config.json, so names decide.
    pooler = any(n.endswith("pooler.dense.weight") for n in names) if names else not classifies
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
        # The flag concerns queries, keys and values; the output projection keeps its bias.
        attention |= {"bias": False, "output_bias": True}
    plain = {
        "width": width,
        "image_size": _side(fields, "image_size", 224),
        "patch_size": _side(fields, "patch_size", 16),
        "channels": fields.integer("num_channels", 3),
        "encoder": {
            "num_layers": fields.integer("num_hidden_layers", 12),
            "block": {
                "norm_placement": "pre",
                "norm": norm,
                "self_attention": attention,
                "feedforward": {
                    "width": _inner_width(fields, width, names_of),
                    "activation": fields.choice("hidden_act", ACTIVATIONS, "gelu"),
                },
                "dropout": dropout,
            },
            "final_norm": norm,
        },
        "pooling": names_of.pooling,
        "distillation": names_of.teacher and ("classifier" if cls == names_of.teacher else "token"),
        "pooler": pooler,
        "labels": fields.labels() if classifies else (),
        "dropout": dropout,
    }
    return VisionSpec.parse(plain, where=fields.where)


def _inner_width(fields: Fields, width: int, names_of: VitNames) -> int:
    if not names_of.layer_scale:
        return fields.integer("intermediate_size", 3072)
    fields.refuse_unless("use_swiglu_ffn", [False], False)
    return width * fields.integer("mlp_ratio", 4)


def _side(fields: Fields, key: str, default: int) -> int:
    """Return the side of a square from a field with one number, or with height and width."""
    sides = fields.get(key)
    if not isinstance(sides, list):
        return fields.integer(key, default)
    # `type`, since in Python true and false are integers, too.
    if len(sides) != 2 or any(type(side) is not int for side in sides):
        raise fields.wrong(key, "a whole number is needed, or two")
    if sides[0] != sides[1]:
        raise fields.wrong(key, "Heedful reads models of square images and patches only")
    return int(sides[0])


def _write(spec: VisionSpec, names_of: VitNames) -> dict[str, Any]:
    block, names = spec.encoder.block, spec.class_names
    classifier = names_of.teacher if spec.distillation == "classifier" else names_of.classifier
    config: dict[str, Any] = {
        "architectures": [classifier if names else names_of.encoder],
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
    if names_of.layer_scale:
        for name in ("intermediate_size", "pooler_act", "pooler_output_size"):
            del config[name]
        # A remainder shows when it is read back. No mask token comes with the tensors.
        ratio = block.feedforward.width // spec.width
        config |= {"mlp_ratio": ratio, "use_swiglu_ffn": False, "use_mask_token": False}
    return config | write_labels(names) if names else config


def _missing(spec: VisionSpec) -> list[str]:
    # Their classifier reads the class token's state, ours with a pooler the pooled state.
    both = spec.pooler and spec.class_names
    return ["their classifier has no pooler before it"] if both else []


def _compared(spec: VisionSpec) -> VisionSpec:
    """Return a spec with names of classes and without pixels, as another file describes these."""
    return spec.model_copy(update={"labels": spec.class_names, "num_classes": None, "pixels": None})


def _table(spec: VisionSpec, names: Names, names_of: VitNames) -> Table:
    prefix = names_of.prefix if spec.class_names else ""
    if names:
        prefix = prefix_of(names, names_of.prefix)
    width, side, channels = spec.width, spec.patch_size, spec.channels
    embeddings, states = f"{prefix}embeddings.", (spec.num_states, width)
    convolution = f"{embeddings}patch_embeddings.projection"
    # A convolution with stride = kernel is a linear map of flattened patches: same elements in the
    # same order.
    kernel, flat = (width, channels, side, side), (width, channels * side * side)
    rules = [
        reshaped(f"{embeddings}position_embeddings", "positions.weight", (1, *states), states),
        reshaped(f"{convolution}.weight", "patches.projection.weight", kernel, flat),
        same(f"{convolution}.bias", "patches.projection.bias"),
    ]
    if spec.pooling == "first":
        tokens = {"cls_token": "class_token"}
        if names_of.teacher:
            tokens["distillation_token"] = "distillation_token"
        for theirs, ours in tokens.items():
            rules.append(reshaped(f"{embeddings}{theirs}", ours, (1, 1, width), (width,)))
    for number in range(spec.encoder.num_layers):
        theirs, ours = f"{prefix}encoder.layer.{number}.", f"encoder.blocks.{number}."
        parts = AFFINE if spec.encoder.block.self_attention.bias else LINEAR
        rules += renamed(_QUERY_KEY_VALUE, theirs=theirs, ours=ours, parts=parts)
        rules += renamed(names_of.layer, theirs=theirs, ours=ours)
        if names_of.layer_scale:
            rules += _scaled(theirs, ours)
    rules += renamed({"layernorm": "encoder.final_norm"}, theirs=prefix)
    if spec.pooler:
        rules += renamed({"pooler.dense": "pooler.dense"}, theirs=prefix)
    if spec.class_names:
        two = spec.distillation == "classifier"
        rules += renamed({"cls_classifier" if two else "classifier": "classifier.output"})
        if two:
            rules += renamed({"distillation_classifier": "distillation_classifier.output"})
    return Table(tuple(rules), ignored=(r".*embeddings\.mask_token",) * names_of.layer_scale)


_SCALED = {
    "attention.output.dense": ("layer_scale1.lambda1", "self_attention.output"),
    "mlp.fc2": ("layer_scale2.lambda1", "feedforward.down"),
}


def _scaled(theirs: str, ours: str) -> list[Rule]:
    """Return the rules of maps whose outputs are multiplied by a factor for each channel."""

    def multiplied(tensors: Sequence[Tensor]) -> list[Tensor]:
        weight, bias, factor = tensors
        return [weight * factor[:, None], bias * factor]

    def with_ones(tensors: Sequence[Tensor]) -> list[Tensor]:
        weight, bias = tensors
        return [weight, bias, torch.ones_like(bias)]

    return [
        Rule(
            (f"{theirs}{module}.weight", f"{theirs}{module}.bias", f"{theirs}{factor}"),
            (f"{ours}{own}.weight", f"{ours}{own}.bias"),
            multiplied,
            with_ones,
        )
        for module, (factor, own) in _SCALED.items()
    ]


ARCHITECTURE = VitNames(
    model_type="vit",
    encoder="ViTModel",
    classifier="ViTForImageClassification",
    prefix="vit.",
    pooling="first",
).architecture()
