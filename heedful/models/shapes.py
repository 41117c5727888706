"""From the dials of a run's settings to the complete specs of models."""

from __future__ import annotations

from typing import Literal

from heedful.errors import ConfigError
from heedful.models.family import CausalLMSpec, EncoderSpec, HeadSpec, VisionSpec
from heedful.models.shape import TranslatorShape
from heedful.models.spec import BlockSpec, StackSpec, TranslatorSpec
from heedful.nn.spec import (
    AlibiSpec,
    AllOfSpec,
    AttentionSpec,
    BiasSpec,
    CausalSpec,
    EmbeddingSpec,
    EverythingSpec,
    ExpertsSpec,
    FeedForwardSpec,
    MaskSpec,
    NormSpec,
    PixelSpec,
    PositionSpec,
    RelativeKeysSpec,
    RotarySpec,
    SegmentSpec,
    T5BiasSpec,
    WindowSpec,
)


def translator_spec(
    shape: TranslatorShape, source_vocabulary: int, target_vocabulary: int
) -> TranslatorSpec:
    """An encoder and a decoder.

    Args:
        shape: the dials.
        source_vocabulary: number of pieces.
        target_vocabulary: number of pieces.
    """
    final_norm = NormSpec(kind=shape.norm) if shape.norm_placement == "pre" else None
    embedding_positions: Literal["sinusoidal", "learned", "none"] = "none"
    if shape.positions == "sinusoidal" or shape.positions == "learned":
        embedding_positions = shape.positions
    return TranslatorSpec(
        width=shape.width,
        source_vocabulary=source_vocabulary,
        target_vocabulary=target_vocabulary,
        share_embeddings=shape.share_embeddings,
        embedding=EmbeddingSpec(
            positions=PositionSpec(
                kind=embedding_positions,
                max_length=shape.max_length + 1 if embedding_positions == "learned" else None,
            ),
            dropout=shape.dropout,
        ),
        encoder=StackSpec(
            num_layers=shape.encoder_layers,
            block=_block(shape, decoder=False),
            final_norm=final_norm,
            shared_position_bias=_shared_bias(shape, bidirectional=True),
        ),
        decoder=StackSpec(
            num_layers=shape.decoder_layers,
            block=_block(shape, decoder=True),
            final_norm=final_norm,
            shared_position_bias=_shared_bias(shape, bidirectional=False),
        ),
        max_length=shape.max_length,
    )


def causal_lm_spec(shape: TranslatorShape, vocabulary: int, max_length: int) -> CausalLMSpec:
    """A decoder of `shape.decoder_layers` blocks that sees its own text only.

    Args:
        shape: the dials; those of an encoder are not used.
        vocabulary: number of pieces.
        max_length: tokens seen at once, as many positions as are learned.
    """
    whole = shape.model_copy(update={"max_length": max_length}).expand(vocabulary, vocabulary)
    block = whole.decoder.block
    attention = block.self_attention
    own_text = AllOfSpec(parts=(attention.mask, SegmentSpec()))
    block = block.model_copy(
        update={
            "cross_attention": None,
            "self_attention": attention.model_copy(update={"mask": own_text}),
        }
    )
    return CausalLMSpec(
        width=whole.width,
        vocabulary=vocabulary,
        embedding=whole.embedding,
        decoder=whole.decoder.model_copy(update={"block": block}),
        tied=shape.share_embeddings != "none",
        max_length=max_length,
    )


def encoder_spec(
    shape: TranslatorShape, vocabulary: int, max_length: int, heads: tuple[HeadSpec, ...]
) -> EncoderSpec:
    """An encoder of `shape.encoder_layers` blocks, without a pooler.

    Args:
        shape: the dials; those of a decoder are not used.
        vocabulary: number of pieces.
        max_length: tokens of the longest text, as many positions as are learned.
        heads: what is predicted.
    """
    whole = shape.model_copy(update={"max_length": max_length}).expand(vocabulary, vocabulary)
    return EncoderSpec(
        width=whole.width,
        vocabulary=vocabulary,
        embedding=whole.embedding,
        encoder=whole.encoder,
        heads=heads,
        max_length=max_length,
    )


def vision_spec(
    shape: TranslatorShape,
    *,
    image_size: int,
    channels: int,
    patch_size: int,
    pooling: Literal["first", "mean"],
    labels: tuple[str, ...],
    pixels: PixelSpec,
) -> VisionSpec:
    """An encoder of images of `shape.encoder_layers` blocks with a classifier.

    Args:
        shape: the dials; those of a decoder are not used.
        image_size: height and width in pixels.
        channels: of a pixel.
        patch_size: side of a patch in pixels, which divides the image's.
        pooling: what stands for an image.
        labels: of the classes.
        pixels: how they become numbers.

    Raises:
        ConfigError: when patches do not fill the image, or positions are not learned.
    """
    if shape.positions != "learned":
        raise ConfigError(
            f"The positions of an image's patches are learned, not {shape.positions}",
            where="model.positions",
            remedy="Leave it out",
        )
    if image_size % patch_size:
        raise ConfigError(
            f"Patches of {patch_size} pixels do not fill a side of {image_size} pixels",
            where="images.patch_size",
            remedy=f"Choose a divisor of {image_size}, or another images.size",
        )
    return VisionSpec(
        width=shape.width,
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        encoder=shape.expand(1, 1).encoder,  # the vocabulary is no matter of the encoder's
        pooling=pooling,
        labels=labels,
        dropout=shape.dropout,
        pixels=pixels,
    )


def _block(shape: TranslatorShape, *, decoder: bool) -> BlockSpec:
    return BlockSpec(
        norm_placement=shape.norm_placement,
        norm=NormSpec(kind=shape.norm),
        self_attention=_self_attention(shape, causal=decoder),
        cross_attention=_attention(shape) if decoder else None,
        feedforward=FeedForwardSpec(
            width=shape.feedforward,
            activation=shape.activation,
            bias=shape.bias,
            dropout=shape.feedforward_dropout,
            experts=_experts(shape),
        ),
        dropout=shape.dropout,
    )


def _experts(shape: TranslatorShape) -> ExpertsSpec | None:
    if shape.num_experts is None:
        return None
    several = shape.experts_per_token > 1
    return ExpertsSpec(
        num_experts=shape.num_experts,
        per_token=shape.experts_per_token,
        renormalize=several,  # the weight of a single one would always be 1
    )


def _attention(shape: TranslatorShape) -> AttentionSpec:
    return AttentionSpec(
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        bias=shape.bias,
        dropout=shape.attention_dropout,
    )


def _self_attention(shape: TranslatorShape, *, causal: bool) -> AttentionSpec:
    mask: MaskSpec = CausalSpec() if causal else EverythingSpec()
    if shape.window is not None:
        near = WindowSpec(size=shape.window)
        mask = AllOfSpec(parts=(mask, near)) if causal else near
    per_layer: BiasSpec | None = None
    if shape.positions == "alibi":
        per_layer = AlibiSpec()
    elif shape.positions == "relative_keys":
        per_layer = RelativeKeysSpec()
    return _attention(shape).model_copy(
        update={
            "mask": mask,
            "rotary": RotarySpec() if shape.positions == "rotary" else None,
            "position_bias": per_layer,
        }
    )


def _shared_bias(shape: TranslatorShape, *, bidirectional: bool) -> T5BiasSpec | None:
    return T5BiasSpec(bidirectional=bidirectional) if shape.positions == "t5" else None
