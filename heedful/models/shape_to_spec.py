"""From the options of a run's settings to complete specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from heedful.config import explained
from heedful.errors import ConfigError
from heedful.models.mixers import (
    attention_spec,
    layer_mixers,
    refuse_idle_options,
    refuse_memory,
    with_memory,
)
from heedful.models.model_spec import (
    CausalLMSpec,
    EncoderSpec,
    HeadSpec,
    TranslatorSpec,
    VisionSpec,
)
from heedful.models.recurrent_stacks import decoder_stack, encoder_stack
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.mask_spec import AllOfSpec, SegmentSpec
from heedful.nn.mixer_spec import ChannelMixSpec
from heedful.nn.spec import (
    AttentionSpec,
    EmbeddingSpec,
    ExpertsSpec,
    FeedForwardSpec,
    NormSpec,
    PartSpec,
    PixelSpec,
    PositionSpec,
    T5BiasSpec,
)

if TYPE_CHECKING:
    from heedful.models.shape import TranslatorShape

_explained = explained("model", remedy="Change one of these settings")


@_explained
def translator_spec(
    shape: TranslatorShape, source_vocabulary: int, target_vocabulary: int
) -> TranslatorSpec:
    """Return the spec of a translator.

    Args:
        shape: the options.
        source_vocabulary: number of pieces.
        target_vocabulary: number of pieces.
    """
    refuse_memory(shape, "A translator reads each sentence as a whole")
    encoder, decoder = _encoder(shape), _decoder(shape, reads_memory=True)
    refuse_idle_options(shape, (encoder, decoder))
    return TranslatorSpec(
        width=shape.width,
        source_vocabulary=source_vocabulary,
        target_vocabulary=target_vocabulary,
        share_embeddings=shape.share_embeddings,
        embedding=_embedding(shape, shape.max_length),
        encoder=encoder,
        decoder=decoder,
        max_length=shape.max_length,
    )


@_explained
def causal_lm_spec(shape: TranslatorShape, vocabulary: int, max_length: int) -> CausalLMSpec:
    """Return a causal language model of `shape.decoder_layers` blocks that sees its own text only.

    Args:
        shape: the options; those of an encoder are not used.
        vocabulary: number of pieces.
        max_length: tokens seen at once, as many positions as are learned.
    """
    shape = with_memory(shape.model_copy(update={"max_length": max_length}))
    decoder = _decoder(shape, reads_memory=False).with_attentions(
        lambda attention: attention.model_copy(
            update={"mask": AllOfSpec(parts=(attention.mask, SegmentSpec()))}
        )
    )
    refuse_idle_options(shape, (decoder,))
    return CausalLMSpec(
        width=shape.width,
        vocabulary=vocabulary,
        embedding=_embedding(shape, max_length),
        decoder=decoder,
        tied=shape.share_embeddings != "none",
        max_length=max_length,
        memory=shape.memory,
    )


@_explained
def encoder_spec(
    shape: TranslatorShape, vocabulary: int, max_length: int, heads: tuple[HeadSpec, ...]
) -> EncoderSpec:
    """Return an encoder of texts of `shape.encoder_layers` blocks, without a pooler.

    Args:
        shape: the options; those of a decoder are not used.
        vocabulary: number of pieces.
        max_length: tokens of the longest text, as many positions as are learned.
        heads: what is predicted.
    """
    refuse_memory(shape, "An encoder reads each text as a whole")
    shape = shape.model_copy(update={"max_length": max_length})
    encoder = _encoder(shape)
    refuse_idle_options(shape, (encoder,))
    return EncoderSpec(
        width=shape.width,
        vocabulary=vocabulary,
        embedding=_embedding(shape, max_length),
        encoder=encoder,
        heads=heads,
        max_length=max_length,
    )


@_explained
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
    """Return an encoder of images of `shape.encoder_layers` blocks with a classifier.

    Args:
        shape: the options; those of a decoder are not used.
        image_size: height and width in pixels.
        channels: of a pixel.
        patch_size: side of a patch in pixels, which divides the image's.
        pooling: what stands for an image.
        labels: of the classes.
        pixels: how they become numbers.

    Raises:
        ConfigError: when patches do not fill the image, or positions are not learned.
    """
    refuse_memory(shape, "An image is read as a whole")
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
        encoder=_encoder(shape),
        pooling=pooling,
        labels=labels,
        dropout=shape.dropout,
        pixels=pixels,
    )


def _embedding(shape: TranslatorShape, max_length: int) -> EmbeddingSpec:
    kind: Literal["sinusoidal", "learned", "none"] = "none"
    if shape.positions == "sinusoidal" or shape.positions == "learned":
        kind = shape.positions
    rows = max_length + 1 if kind == "learned" else None
    # Scores of convolutions' attention are not scaled: of states of variance 1 they would be so far
    # apart that a query saw one token alone, and outputs would grow from layer to layer.
    is_small = shape.convolution is not None
    return EmbeddingSpec(
        scale=not is_small,
        positions=PositionSpec(kind=kind, max_length=rows),
        dropout=shape.dropout,
    )


def _encoder(shape: TranslatorShape) -> StackSpec:
    if (stack := encoder_stack(shape)) is not None:
        return stack
    layers = shape.encoder_layers
    mixers = layer_mixers(shape, shape.encoder_mixer, num_layers=layers, causal=False)
    return _stack(shape, layers, mixers, _feedforward(shape), T5BiasSpec(bidirectional=True))


def _decoder(shape: TranslatorShape, *, reads_memory: bool) -> StackSpec:
    if (stack := decoder_stack(shape, memory=reads_memory)) is not None:
        return stack
    layers = shape.decoder_layers
    mixers = layer_mixers(shape, shape.mixer, num_layers=layers, causal=True)
    cross = attention_spec(shape) if reads_memory else None
    network = _channel_mix(shape) if shape.network == "channel_mix" else _feedforward(shape)
    return _stack(shape, layers, mixers, network, T5BiasSpec(bidirectional=False), cross)


def _stack(
    shape: TranslatorShape,
    num_layers: int,
    mixers: Sequence[PartSpec],
    network: FeedForwardSpec | ChannelMixSpec | None,
    bias: T5BiasSpec,
    cross_attention: AttentionSpec | None = None,
) -> StackSpec:
    has_scores = any(mixer.kind == "attention" for mixer in mixers)  # T5's bias is added to them
    return StackSpec(
        num_layers=num_layers,
        pattern=tuple(_block(shape, mixer, network, cross_attention) for mixer in mixers),
        final_norm=NormSpec(kind=shape.norm) if shape.norm_placement == "pre" else None,
        shared_position_bias=bias if shape.positions == "t5" and has_scores else None,
    )


def _block(
    shape: TranslatorShape,
    mixer: PartSpec,
    network: FeedForwardSpec | ChannelMixSpec | None,
    cross_attention: AttentionSpec | None,
) -> BlockSpec:
    return BlockSpec.of(
        norm_placement=shape.norm_placement,
        norm=NormSpec(kind=shape.norm),
        self_attention=mixer,
        cross_attention=cross_attention,
        feedforward=network,
        dropout=shape.dropout,
        residual=shape.residual,
    )


def _feedforward(shape: TranslatorShape) -> FeedForwardSpec | None:
    if not shape.feedforward:
        return None
    return FeedForwardSpec(
        width=shape.feedforward,
        activation=shape.activation,
        bias=shape.bias,
        dropout=shape.feedforward_dropout,
        experts=_experts(shape),
    )


def _channel_mix(shape: TranslatorShape) -> ChannelMixSpec | None:
    if not shape.feedforward:
        return None
    if shape.num_experts is not None:
        raise ConfigError(
            "Experts are networks of each token alone, which channel_mix is not",
            where="model.num_experts",
            remedy="Leave it out, or set model.network to feedforward",
        )
    return ChannelMixSpec(width=shape.feedforward)


def _experts(shape: TranslatorShape) -> ExpertsSpec | None:
    if shape.num_experts is None:
        return None
    several = shape.experts_per_token > 1
    return ExpertsSpec(
        num_experts=shape.num_experts,
        per_token=shape.experts_per_token,
        renormalize=several,  # the weight of a single one would always be 1
    )
