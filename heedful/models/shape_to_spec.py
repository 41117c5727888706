"""Complete specs of all kinds of models from the options of a run's settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from heedful.config import explained
from heedful.errors import ConfigError
from heedful.models.encoder_spec import EncoderSpec, HeadSpec
from heedful.models.images.vision_spec import DenoiserSpec, VisionSpec
from heedful.models.mixers import (
    channel_mix,
    layer_mixers,
    refuse_idle_options,
    refuse_memory,
    with_memory,
)
from heedful.models.model_spec import CausalLMSpec, TranslatorSpec
from heedful.models.recurrent_stacks import decoder_stack, encoder_stack
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import AllOf, SameSegment
from heedful.nn.pair_mixer_spec import TriangleAttentionSpec, TriangleMultiplicationSpec
from heedful.nn.spec import (
    AttentionSpec,
    EmbeddingSpec,
    ExpertsSpec,
    FeedForwardSpec,
    NormSpec,
    PartSpec,
    PositionSpec,
)

if TYPE_CHECKING:
    from heedful.models.shape import EvoformerShape, TranslatorShape

_FRAME = 2
"""Tokens around a text: one before it and one after it."""

_explained = explained("model", remedy="Change one of these settings")


@_explained
def translator_spec(
    shape: TranslatorShape,
    source_vocabulary: int,
    target_vocabulary: int,
    row_size: int | None = None,
) -> TranslatorSpec:
    """Return the spec of a translator.

    Args:
        shape: options of the architecture.
        source_vocabulary: source vocabulary size.
        target_vocabulary: target vocabulary size.
        row_size: tokens that the encoder reads at a position; one if None.
    """
    refuse_memory(shape, "A translator reads each sentence as a whole")
    encoder, decoder = _encoder(shape), _decoder(shape, reads_memory=True)
    refuse_idle_options(shape, (encoder, decoder))
    return TranslatorSpec(
        width=shape.width,
        source_vocabulary=source_vocabulary,
        target_vocabulary=target_vocabulary,
        share_embeddings=shape.share_embeddings,
        embedding=_embedding(shape, shape.max_length, row_size=row_size),
        encoder=encoder,
        decoder=decoder,
        max_length=shape.max_length,
    )


@_explained
def causal_lm_spec(
    shape: TranslatorShape,
    vocabulary: int,
    max_length: int,
    axes: tuple[tuple[int, ...], ...] | None = None,
) -> CausalLMSpec:
    """Return the spec of a causal language model of `shape.decoder_layers` blocks.

    Its attention does not see other texts of a packed row.

    Args:
        shape: options of the architecture; an encoder's are not used.
        vocabulary: vocabulary size.
        max_length: most tokens of a sequence; also the number of learned positions.
        axes: axes of the fields of token sequences, for positions of this kind.
    """
    # The length of the task replaces the shape's: linformer and cosine features depend on it.
    shape = with_memory(shape.model_copy(update={"max_length": max_length}))
    decoder = _decoder(shape, reads_memory=False).with_attentions(
        # Windows of training pack several texts in a row (`data/`), which must not mix.
        lambda attention: attention.model_copy(
            update={"mask": AllOf(parts=(attention.mask, SameSegment()))}
        )
    )
    refuse_idle_options(shape, (decoder,))
    return CausalLMSpec(
        width=shape.width,
        vocabulary=vocabulary,
        embedding=_embedding(shape, max_length, axes),
        decoder=decoder,
        tied=shape.share_embeddings != "none",  # one side: `all` and `target` mean the same
        max_length=max_length,
        memory=shape.memory,
    )


@_explained
def encoder_spec(
    shape: TranslatorShape,
    vocabulary: int,
    max_length: int,
    heads: tuple[HeadSpec, ...],
    row_size: int | None = None,
) -> EncoderSpec:
    """Return the spec of an encoder of `shape.encoder_layers` blocks, without a pooler.

    Args:
        shape: options of the architecture; a decoder's are not used.
        vocabulary: vocabulary size.
        max_length: most tokens of a sequence; also the number of learned positions.
        heads: prediction heads.
        row_size: tokens that are read at a position; one if None.
    """
    refuse_memory(shape, "An encoder reads each text as a whole")
    shape = shape.model_copy(update={"max_length": max_length})
    encoder = _encoder(shape)
    refuse_idle_options(shape, (encoder,))
    return EncoderSpec(
        width=shape.width,
        vocabulary=vocabulary,
        embedding=_embedding(shape, max_length, row_size=row_size),
        encoder=encoder,
        heads=tuple(head.after(encoder) for head in heads),
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
    pixels: Any,
) -> VisionSpec:
    """Return the spec of an image encoder of `shape.encoder_layers` blocks with a classifier.

    Args:
        shape: options of the architecture; a decoder's are not used.
        image_size: height and width in pixels.
        channels: number of color channels.
        patch_size: side of a patch in pixels, a divisor of `image_size`.
        pooling: source of the image's vector, the first state or the mean.
        labels: names of the classes.
        pixels: normalisation of pixels, a `PixelSpec`.

    Raises:
        ConfigError: when patches do not fill the image, or positions are not learned.
    """
    refuse_memory(shape, "An image is read as a whole")
    # Only a table can be interpolated for another size of images (Dosovitskiy 2021, 3.2).
    if shape.positions != "learned":
        raise ConfigError(
            f"The positions of an image's patches are learned, not {shape.positions}",
            where="model.positions",
            remedy="Leave it out",
        )
    _check_patch_size(image_size, patch_size)
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


@_explained
def denoiser_spec(
    shape: TranslatorShape,
    vocabulary: int,
    max_length: int,
    *,
    image_size: int,
    channels: int,
    patch_size: int,
    words: tuple[str, ...],
) -> DenoiserSpec:
    """Return the spec of a denoiser with an encoder of captions and a decoder of patches.

    Args:
        shape: options of the architecture.
        vocabulary: vocabulary size of the captions.
        max_length: most tokens of a caption.
        image_size: height and width in pixels.
        channels: number of colour channels.
        patch_size: side of a patch in pixels, a divisor of `image_size`.
        words: words of the captions, or none for any.

    Raises:
        ConfigError: when patches do not fill the image, or layers are recurrent.
    """
    refuse_memory(shape, "An image is read as a whole")
    for option in ("recurrent", "convolution"):
        if getattr(shape, option) is not None:
            raise ConfigError(
                "A denoiser is made of attention blocks",
                where=f"model.{option}",
                remedy="Leave it out",
            )
    _check_patch_size(image_size, patch_size)
    shape = shape.model_copy(update={"max_length": max_length})
    encoder = _encoder(shape)
    # Patches see each other on both sides, so their mixers are those of an encoder.
    mixers = layer_mixers(shape, shape.mixer, num_layers=shape.decoder_layers, causal=False)
    cross = AttentionSpec.with_heads_of_shape(shape)
    decoder = _stack(shape, shape.decoder_layers, mixers, _feedforward(shape), cross, causal=False)
    refuse_idle_options(shape, (encoder, decoder))
    return DenoiserSpec(
        width=shape.width,
        vocabulary=vocabulary,
        embedding=_embedding(shape, max_length),
        encoder=encoder,
        decoder=decoder,
        image_size=image_size,
        channels=channels,
        patch_size=patch_size,
        max_length=max_length,
        words=words,
    )


def _check_patch_size(image_size: int, patch_size: int) -> None:
    if image_size % patch_size:
        raise ConfigError(
            f"Patches of {patch_size} pixels do not fill a side of {image_size} pixels",
            where="images.patch_size",
            remedy=f"Choose a divisor of {image_size}, or another images.size",
        )


def _embedding(
    shape: TranslatorShape,
    max_length: int,
    axes: tuple[tuple[int, ...], ...] | None = None,
    row_size: int | None = None,
) -> EmbeddingSpec:
    # One more than `max_length`: an end or begin token comes on top of the text.
    positions = PositionSpec(kind="learned", max_length=max_length + 1)
    if shape.positions == "axes":
        if axes is None:
            raise ConfigError(
                "Axes are those of the fields of token sequences, all but the last of known size",
                where="model.positions = axes",
                remedy="Train with --task tokens, sizes in --tokens.fields and no encoder, or use "
                "learned",
            )
        positions = PositionSpec(kind="axes", axes=axes, max_length=sum(map(math.prod, axes)))
    elif shape.positions != "learned":
        # Rotations and terms of scores belong to attention.
        is_added = shape.positions == "sinusoidal"
        positions = PositionSpec(kind="sinusoidal" if is_added else "none")
    # The attention of convolutions does not scale its scores. If embeddings had variance 1, scores
    # would differ so much that a query saw a single token, and outputs would grow from layer to
    # layer.
    is_small = shape.convolution is not None
    return EmbeddingSpec(
        scale=not is_small,
        positions=positions,
        dropout=shape.dropout,
        row_size=row_size,
    )


def _encoder(shape: TranslatorShape) -> StackSpec:
    if (stack := encoder_stack(shape)) is not None:
        return stack
    if shape.evoformer is not None:
        return _evoformer(shape, shape.evoformer)
    layers = shape.encoder_layers
    mixers = layer_mixers(shape, shape.encoder_mixer, num_layers=layers, causal=False)
    return _stack(shape, layers, mixers, _feedforward(shape), causal=False)


def _evoformer(shape: TranslatorShape, evoformer: EvoformerShape) -> StackSpec:
    """Return blocks of the Evoformer's pair stack (Jumper 2021, algorithm 6, lines 6 to 10).

    Raises:
        ConfigError: when texts of that many pairs would be cut.
    """
    pairs = evoformer.side**2
    if shape.max_length < pairs + _FRAME:
        raise ConfigError(
            f"A chain of {evoformer.side} residues has {pairs} pairs, and {shape.max_length} "
            f"tokens hold {shape.max_length - _FRAME} words",
            where="data.max_length",
            remedy=f"Set it to {pairs + _FRAME} or more",
        )
    common: dict[str, Any] = {"side": evoformer.side, "bias": shape.bias}
    heads = common | {"num_heads": shape.num_heads, "head_width": shape.head_width}
    parts: dict[str, Any] = {
        "outgoing": TriangleMultiplicationSpec(edges="outgoing", **common),
        "incoming": TriangleMultiplicationSpec(edges="incoming", **common),
        "starting": TriangleAttentionSpec(node="starting", **heads),
        "ending": TriangleAttentionSpec(node="ending", **heads),
    }
    if (network := _feedforward(shape)) is not None:
        parts[network.kind] = network
    return StackSpec.of(
        num_layers=shape.encoder_layers,
        block=BlockSpec.of_parts(parts, **_around_parts(shape)),
        final_norm=_final_norm(shape),
    )


def _decoder(shape: TranslatorShape, *, reads_memory: bool) -> StackSpec:
    if (stack := decoder_stack(shape, memory=reads_memory)) is not None:
        return stack
    layers = shape.decoder_layers
    mixers = layer_mixers(shape, shape.mixer, num_layers=layers, causal=True)
    # This attention sees all keys: a window or mask of the shape is for self-attention.
    cross = AttentionSpec.with_heads_of_shape(shape) if reads_memory else None
    network = channel_mix(shape) if shape.network == "channel_mix" else _feedforward(shape)
    return _stack(shape, layers, mixers, network, cross, causal=True)


def _stack(
    shape: TranslatorShape,
    num_layers: int,
    mixers: Sequence[PartSpec],
    network: PartSpec | None,
    cross_attention: AttentionSpec | None = None,
    *,
    causal: bool,
) -> StackSpec:
    bias = AttentionSpec.shared_bias_of_shape(shape, causal)
    # One block for each mixer of the period, which `StackSpec` repeats.
    pattern = tuple(_block(shape, mixer, network, cross_attention) for mixer in mixers)
    has_scores = any("self_attention" in block.attentions() for block in pattern)
    # A stack without scores has nothing to add a bias to, and its spec would be refused.
    return StackSpec(
        num_layers=num_layers,
        pattern=pattern,
        final_norm=_final_norm(shape),
        shared_position_bias=bias if has_scores else None,
    )


def _block(
    shape: TranslatorShape,
    mixer: PartSpec,
    network: PartSpec | None,
    cross_attention: AttentionSpec | None,
) -> BlockSpec:
    return BlockSpec.of(
        self_attention=mixer,
        cross_attention=cross_attention,
        feedforward=network,
        **_around_parts(shape),
    )


def _around_parts(shape: TranslatorShape) -> dict[str, Any]:
    """Return what all sub-layers of a block have in common."""
    return {
        "norm_placement": shape.norm_placement,
        "norm": NormSpec(kind=shape.norm),
        "dropout": shape.dropout,
        "residual": shape.residual,
    }


def _final_norm(shape: TranslatorShape) -> NormSpec | None:
    # Pre-norm blocks leave the stream unnormed, so the last one is followed by a norm.
    return NormSpec(kind=shape.norm) if shape.norm_placement == "pre" else None


def _feedforward(shape: TranslatorShape) -> FeedForwardSpec | None:
    # A width of 0 leaves the sub-layer out: an option to study attention alone.
    if not shape.feedforward:
        return None
    return FeedForwardSpec(
        width=shape.feedforward,
        activation=shape.activation,
        bias=shape.bias,
        dropout=shape.feedforward_dropout,
        experts=_experts(shape),
    )


def _experts(shape: TranslatorShape) -> ExpertsSpec | None:
    if shape.num_experts is None:
        return None
    several = shape.experts_per_token > 1
    return ExpertsSpec(
        num_experts=shape.num_experts,
        per_token=shape.experts_per_token,
        renormalize=several,  # a single expert would get 1, and the router no gradient
    )
