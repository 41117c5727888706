"""CLIP (Radford 2021): `CLIPModel`, a ViT and a causal encoder of texts with vectors in one space.

The vector of a text is that of its end token, which is its last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from heedful.interop.tensor_table import LINEAR, Rule, Table, renamed, reshaped, same
from heedful.models.images.two_towers_spec import TwoTowersSpec
from heedful.models.stack_spec import StackSpec

TEXTS = "text_model."
IMAGES = "vision_model."
"""Prefixes of the tensors of either tower."""

BUFFERS = (r"(text|vision)_model\.embeddings\.position_ids",)
"""Tensors without trained values, which files of older versions hold."""

_LAYER = {
    "self_attn.q_proj": "self_attention.query",
    "self_attn.k_proj": "self_attention.key",
    "self_attn.v_proj": "self_attention.value",
    "self_attn.out_proj": "self_attention.output",
    "mlp.fc1": "feedforward.up",
    "mlp.fc2": "feedforward.down",
    "layer_norm1": "self_attention_norm",
    "layer_norm2": "feedforward_norm",
}
_USUAL = {"num_hidden_layers": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_USUAL_TEXTS = {
    **_USUAL,
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
}
_USUAL_IMAGES = {
    **_USUAL,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "patch_size": 32,
}


def tower_fields(fields: Fields, name: str) -> Fields:
    """Return the table of a tower, `text_config` or `vision_config`; empty where it is missing."""
    # Files of the first versions have a second table, whose values and defaults win there.
    own = fields.table(f"{name}_dict")
    if own is not None:
        fields.ignore(name)
        return own
    return fields.table(name) or Fields({}, f"{fields.where}, {name}")


def read_texts(fields: Fields, usual: Mapping[str, Any], **attention: Any) -> dict[str, Any]:
    """Return the tower of texts as plain data.

    Args:
        fields: table of the tower.
        usual: values of the fields that a file leaves out.
        **attention: settings of its attention beside those of the file.
    """
    length = fields.integer("max_position_embeddings", usual["max_position_embeddings"])
    return {
        "width": fields.integer("hidden_size", usual["hidden_size"]),
        "vocabulary": fields.integer("vocab_size", usual["vocab_size"]),
        "embedding": {"scale": False, "positions": {"kind": "learned", "max_length": length}},
        "encoder": _read_stack(fields, usual, attention),
        "max_length": length,
    }


def read_images(fields: Fields, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tower of images as plain data; see `read_texts`."""
    return {
        "width": fields.integer("hidden_size", usual["hidden_size"]),
        "image_size": fields.integer("image_size", 224),
        "patch_size": fields.integer("patch_size", usual["patch_size"]),
        "channels": fields.integer("num_channels", 3),
        "encoder": _read_stack(fields, usual, {}),
    }


def _read_stack(
    fields: Fields, usual: Mapping[str, Any], attention: Mapping[str, Any]
) -> dict[str, Any]:
    norm = {"epsilon": fields.number("layer_norm_eps", usual["layer_norm_eps"])}
    heads = fields.integer("num_attention_heads", usual["num_attention_heads"])
    return {
        "num_layers": fields.integer("num_hidden_layers", usual["num_hidden_layers"]),
        # Theirs norms the one state that is read; each state is normed by itself.
        "final_norm": norm,
        "block": {
            "norm": norm,
            "norm_placement": "pre",
            "self_attention": {
                "num_heads": heads,
                "dropout": fields.number("attention_dropout", 0.0),
                **attention,
            },
            "feedforward": {
                "width": fields.integer("intermediate_size", usual["intermediate_size"]),
                "activation": fields.choice("hidden_act", ACTIVATIONS, usual["hidden_act"]),
            },
        },
    }


def write_texts(spec: TwoTowersSpec) -> dict[str, Any]:
    """Return the table `text_config` of a model, without `model_type`."""
    texts = spec.texts
    return {
        **_write_stack(texts.encoder, texts.width),
        "vocab_size": texts.vocabulary,
        # Positions that are no table have no number; reading back shows that they are none.
        "max_position_embeddings": texts.embedding.positions.max_length or texts.max_length or 1,
    }


def write_images(spec: TwoTowersSpec) -> dict[str, Any]:
    """Return the table `vision_config` of a model, without `model_type`."""
    images = spec.images
    return {
        **_write_stack(images.encoder, images.width),
        "image_size": images.image_size,
        "patch_size": images.patch_size,
        "num_channels": images.channels,
    }


def _write_stack(stack: StackSpec, width: int) -> dict[str, Any]:
    block = stack.block
    return {
        "hidden_size": width,
        "num_hidden_layers": stack.num_layers,
        "num_attention_heads": block.self_attention.num_heads,
        "intermediate_size": block.feedforward.width,
        "hidden_act": ACTIVATION_NAMES.get(block.feedforward.activation),
        "attention_dropout": block.self_attention.dropout,
        "layer_norm_eps": block.norm.epsilon,
    }


def tower_rules(spec: TwoTowersSpec) -> list[Rule]:
    """Return the rules of what the towers of all models have: embeddings, layers and last norms."""
    images = spec.images
    width, side, channels = images.width, images.patch_size, images.channels
    kernel, flat = (width, channels, side, side), (width, channels * side * side)
    convolution = f"{IMAGES}embeddings.patch_embedding.weight"
    rules = [
        # A convolution with stride = kernel is a linear map of flattened patches.
        reshaped(convolution, "images.patches.projection.weight", kernel, flat),
        same(f"{TEXTS}embeddings.token_embedding.weight", "texts.embedding.weight"),
        *renamed({f"{TEXTS}final_layer_norm": "texts.encoder.final_norm"}),
        *renamed({f"{IMAGES}post_layernorm": "images.encoder.final_norm"}),
    ]
    positions = {TEXTS: "texts.input.positions.weight", IMAGES: "images.positions.weight"}
    for prefix, ours in positions.items():
        rules.append(same(f"{prefix}embeddings.position_embedding.weight", ours))
    for prefix, name in ((TEXTS, "texts"), (IMAGES, "images")):
        for number in range(spec.stacks()[name].num_layers):
            layer = f"{prefix}encoder.layers.{number}."
            rules += renamed(_LAYER, theirs=layer, ours=f"{name}.encoder.blocks.{number}.")
    return rules


def compared(spec: TwoTowersSpec) -> TwoTowersSpec:
    """Return a spec without pixels, as another file describes these."""
    return spec.model_copy(update={"images": spec.images.model_copy(update={"pixels": None})})


def _read(fields: Fields, names: Names) -> TwoTowersSpec:
    images = read_images(tower_fields(fields, "vision_config"), _USUAL_IMAGES)
    causal = {"mask": {"kind": "causal"}}
    texts = read_texts(tower_fields(fields, "text_config"), _USUAL_TEXTS, **causal)
    images |= {"patch_bias": False, "input_norm": images["encoder"]["final_norm"]}
    plain = {
        "width": fields.integer("projection_dim", 512),
        "images": images,
        "texts": texts,
        "text_pooling": "last",
        # Theirs bounds it in training alone.
        "bounded_scale": False,
    }
    return TwoTowersSpec.parse(plain, where=fields.where)


def _write(spec: TwoTowersSpec) -> dict[str, Any]:
    width = {"projection_dim": spec.width}
    return {
        "architectures": ["CLIPModel"],
        **width,
        "text_config": {"model_type": "clip_text_model", **write_texts(spec), **width},
        "vision_config": {"model_type": "clip_vision_model", **write_images(spec), **width},
    }


def _table(spec: TwoTowersSpec, names: Names) -> Table:
    rules = [
        *tower_rules(spec),
        same(f"{IMAGES}embeddings.class_embedding", "images.class_token"),
        # Spelled so in their code and in every file.
        *renamed({f"{IMAGES}pre_layrnorm": "images.input_norm"}),
        *renamed({"visual_projection": "image_projection"}, parts=LINEAR),
        *renamed({"text_projection": "text_projection"}, parts=LINEAR),
        reshaped("logit_scale", "log_scale", (), (1,)),
    ]
    return Table(tuple(rules), ignored=BUFFERS)


ARCHITECTURE = Architecture(
    model_type="clip",
    kind="two_towers",
    read=_read,
    write=_write,
    tensors=_table,
    compared=compared,
    classes=("CLIPModel",),
    # First values, widths of other classes, and dropout that no layer has.
    inert=("logit_scale_init_value", "projection_dim", "dropout", "tie_word_embeddings"),
)
