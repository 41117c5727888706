"""I-JEPA (Assran 2023): ViT without a class token; its classifier reads the mean of all states."""

from __future__ import annotations

from heedful.interop.architectures.image_encoders.vit import VitNames

ARCHITECTURE = VitNames(
    model_type="ijepa",
    encoder="IJepaModel",
    classifier="IJepaForImageClassification",
    prefix="ijepa.",
    pooling="mean",
).architecture()
