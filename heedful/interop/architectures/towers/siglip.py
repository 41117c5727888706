"""SigLIP (Zhai 2023): `SiglipModel`, whose images are read by a learned query.

Texts are padded to the longest that there is, and the vector of a text is that of the last token,
which is mostly padding.
"""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.architectures.towers.clip import (
    BUFFERS,
    IMAGES,
    TEXTS,
    compared,
    read_images,
    read_texts,
    tower_fields,
    tower_rules,
    write_images,
    write_texts,
)
from heedful.interop.config_fields import Fields
from heedful.interop.tensor_table import Table, concatenated, renamed, reshaped, same
from heedful.models.images.two_towers_spec import TwoTowersSpec

_USUAL = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}


def _read(fields: Fields, names: Names) -> TwoTowersSpec:
    of_images = tower_fields(fields, "vision_config")
    of_texts = tower_fields(fields, "text_config")
    images, texts = read_images(of_images, _USUAL), read_texts(of_texts, _USUAL)
    of_images.refuse_unless("vision_use_head", (True,), True)
    of_texts.refuse_unless("projection_size", (images["width"],), texts["width"])
    images |= {"pooling": "attention", "pooling_head": _head(images["encoder"]["block"])}
    plain = {
        "width": images["width"],
        "images": images,
        "texts": texts,
        "text_pooling": "last",
        "image_projection": False,
        "text_projection_bias": True,
        "score_bias": True,
        "bounded_scale": False,
        "padded_length": texts["max_length"],
    }
    return TwoTowersSpec.parse(plain, where=fields.where)


def _head(block: dict[str, Any]) -> dict[str, Any]:
    """Return the stack of the learned query, with the sizes of the encoder's blocks."""
    attention = {"kind": "attention", "over": "memory"}
    attention["num_heads"] = block["self_attention"]["num_heads"]
    # What the query finds takes its place: it is not added to it.
    reading = {"name": "cross_attention", "part": attention, "norm_placement": "none"}
    network = {"name": "feedforward", "part": {"kind": "feedforward", **block["feedforward"]}}
    network |= {"norm": block["norm"], "norm_placement": "before"}
    pattern = [{"sublayers": [reading | {"residual": False}, network]}]
    return {"num_layers": 1, "pattern": pattern}


def _write(spec: TwoTowersSpec) -> dict[str, Any]:
    width = {"projection_size": spec.width}
    return {
        "architectures": ["SiglipModel"],
        "text_config": {"model_type": "siglip_text_model", **write_texts(spec), **width},
        "vision_config": {"model_type": "siglip_vision_model", **write_images(spec)},
    }


def _table(spec: TwoTowersSpec, names: Names) -> Table:
    width, head, block = spec.width, f"{IMAGES}head.", "images.pooling_head.blocks.0."
    reading = [f"{block}cross_attention.{name}" for name in ("query", "key", "value")]
    rules = [
        *tower_rules(spec),
        same(f"{IMAGES}embeddings.patch_embedding.bias", "images.patches.projection.bias"),
        reshaped(f"{head}probe", "images.pooling_query", (1, 1, width), (width,)),
        *(
            concatenated(
                f"{head}attention.in_proj_{part}",
                [f"{name}.{part}" for name in reading],
                [width] * len(reading),
            )
            for part in ("weight", "bias")
        ),
        *renamed(
            {
                "attention.out_proj": "cross_attention.output",
                "layernorm": "feedforward_norm",
                "mlp.fc1": "feedforward.up",
                "mlp.fc2": "feedforward.down",
            },
            theirs=head,
            ours=block,
        ),
        *renamed({f"{TEXTS}head": "text_projection"}),
        same("logit_scale", "log_scale"),
        same("logit_bias", "score_bias"),
    ]
    return Table(tuple(rules), ignored=BUFFERS)


ARCHITECTURE = Architecture(
    model_type="siglip",
    kind="two_towers",
    read=_read,
    write=_write,
    tensors=_table,
    compared=compared,
    classes=("SiglipModel",),
    inert=("tie_word_embeddings",),
)
