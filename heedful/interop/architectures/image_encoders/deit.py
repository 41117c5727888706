"""DeiT (Touvron 2021): ViT with a second token that learned the labels of a teacher."""

from __future__ import annotations

from heedful.interop.architectures.image_encoders.vit import VitNames

ARCHITECTURE = VitNames(
    model_type="deit",
    encoder="DeiTModel",
    classifier="DeiTForImageClassification",
    teacher="DeiTForImageClassificationWithTeacher",
    prefix="deit.",
    pooling="first",
    # Of the decoder of masked patches, another class.
    inert=("encoder_stride",),
).architecture()
