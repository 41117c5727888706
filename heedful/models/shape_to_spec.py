"""From the options of a run's settings to complete specs, and where a model contradicts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from heedful.errors import ConfigError
from heedful.models.model_spec import (
    CausalLMSpec,
    EncoderSpec,
    HeadSpec,
    ModelSpec,
    TranslatorSpec,
    VisionSpec,
)
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.spec import (
    LAYER_BIASES,
    AllOfSpec,
    AttentionSpec,
    CausalSpec,
    EmbeddingSpec,
    EverythingSpec,
    ExpertsSpec,
    FeedForwardSpec,
    MaskSpec,
    NormSpec,
    PartSpec,
    PixelSpec,
    PositionSpec,
    RotarySpec,
    SegmentSpec,
    T5BiasSpec,
    WindowSpec,
)

if TYPE_CHECKING:
    from heedful.models.shape import TranslatorShape


def translator_spec(
    shape: TranslatorShape, source_vocabulary: int, target_vocabulary: int
) -> TranslatorSpec:
    """Return the spec of a translator.

    Args:
        shape: the options.
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
        encoder=StackSpec.of(
            num_layers=shape.encoder_layers,
            block=_block(shape, decoder=False),
            final_norm=final_norm,
            shared_position_bias=_shared_bias(shape, bidirectional=True),
        ),
        decoder=StackSpec.of(
            num_layers=shape.decoder_layers,
            block=_block(shape, decoder=True),
            final_norm=final_norm,
            shared_position_bias=_shared_bias(shape, bidirectional=False),
        ),
        max_length=shape.max_length,
    )


def causal_lm_spec(shape: TranslatorShape, vocabulary: int, max_length: int) -> CausalLMSpec:
    """Return a causal language model of `shape.decoder_layers` blocks that sees its own text only.

    Args:
        shape: the options; those of an encoder are not used.
        vocabulary: number of pieces.
        max_length: tokens seen at once, as many positions as are learned.
    """
    whole = shape.model_copy(update={"max_length": max_length}).expand(vocabulary, vocabulary)
    block = whole.decoder.block
    attention = block.self_attention
    own_text = AllOfSpec(parts=(attention.mask, SegmentSpec()))
    attention = attention.model_copy(update={"mask": own_text})
    block = block.replace(self_attention=attention, cross_attention=None)
    return CausalLMSpec(
        width=whole.width,
        vocabulary=vocabulary,
        embedding=whole.embedding,
        decoder=whole.decoder.with_block(block),
        tied=shape.share_embeddings != "none",
        max_length=max_length,
    )


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
        encoder=shape.expand(1, 1).encoder,  # the vocabulary is of no concern to the encoder
        pooling=pooling,
        labels=labels,
        dropout=shape.dropout,
        pixels=pixels,
    )


DROPOUTS = ("dropout", "attention_dropout", "feedforward_dropout")
"""Options that may differ from those a model was trained with."""


def contradictions(shape: TranslatorShape, spec: ModelSpec) -> list[str]:
    """Return the options that were set and that a model contradicts, a few words each.

    Dropout may be set anew. Options of a stack that the model lacks say nothing about it.

    Args:
        shape: the options; those left at their defaults were not set.
        spec: of the model.
    """
    differences: list[str] = []
    for option, value in _values(spec):
        wanted = getattr(shape, option)
        if option not in shape.model_fields_set or wanted is None or wanted == value:
            continue
        if option == "share_embeddings" and _is_same_sharing(wanted, value, spec):
            continue
        text = f"model.{option} is {_plain(wanted)}, and the model's {_plain(value)}"
        if text not in differences:
            differences.append(text)
    return differences


def with_overrides(
    embedding: EmbeddingSpec,
    stack: StackSpec,
    shape: TranslatorShape,
    trained_length: int | None = None,
) -> tuple[EmbeddingSpec, StackSpec]:
    """Return an embedding and a stack with the options of dropout and rotary scaling that were set.

    Args:
        embedding: of a model.
        stack: of the same model.
        shape: the options; those left at their defaults were not set.
        trained_length: tokens of the texts that rotary scaling starts from, where neither the
            options nor the model say so.

    Raises:
        ConfigError: when there are no rotary positions to stretch.
    """
    if scaling := rotary_options(shape):
        stack = stack.model_copy(
            update={
                "pattern": tuple(
                    _block_with_rotary(block, scaling, trained_length) for block in stack.pattern
                )
            }
        )
    rates = {name: getattr(shape, name) for name in DROPOUTS if name in shape.model_fields_set}
    if "dropout" in rates:
        embedding = embedding.model_copy(update={"dropout": rates["dropout"]})
        if stack.final_dropout:
            stack = stack.model_copy(update={"final_dropout": rates["dropout"]})
    pattern = tuple(_block_with_dropout(block, rates) for block in stack.pattern)
    return embedding, stack.model_copy(update={"pattern": pattern})


def _block_with_rotary(
    block: BlockSpec, scaling: Mapping[str, Any], trained_length: int | None
) -> BlockSpec:
    attention = block.self_attention
    if attention.rotary is None:
        raise ConfigError(
            "The model has no rotary positions to stretch",
            where="model.rotary_scaling",
            remedy="Leave it out",
        )
    length = {"original_length": trained_length}
    rotary = RotarySpec.parse({**length, **attention.rotary.plain(), **scaling})
    return block.replace(self_attention=attention.model_copy(update={"rotary": rotary}))


def _block_with_dropout(block: BlockSpec, rates: Mapping[str, float]) -> BlockSpec:
    parts: dict[str, PartSpec] = {}
    if "attention_dropout" in rates:
        change = {"dropout": rates["attention_dropout"]}
        parts |= {name: each.model_copy(update=change) for name, each in block.attentions().items()}
    if "feedforward_dropout" in rates:
        change = {"dropout": rates["feedforward_dropout"]}
        parts["feedforward"] = block.feedforward.model_copy(update=change)
    settings = {"dropout": rates["dropout"]} if "dropout" in rates else {}
    return block.replace(**parts, **settings)


def _values(spec: ModelSpec) -> Iterator[tuple[str, Any]]:
    """Yield each option and the value the model has, once for every place it decides about."""
    yield "width", spec.width
    if spec.sharing is not None:
        yield "share_embeddings", spec.sharing
    if spec.kind == "translator":
        yield "max_length", spec.max_length
    for name, stack in spec.stacks().items():
        yield f"{name}_layers", stack.num_layers
        yield from _of_stack(stack, spec.width)
        if spec.kind != "vision":  # the positions of patches are always learned
            yield "positions", _positions(spec.embedding, stack)


def _block(shape: TranslatorShape, *, decoder: bool) -> BlockSpec:
    return BlockSpec.of(
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
        head_width=shape.head_width,
        bias=shape.bias,
        dropout=shape.attention_dropout,
    )


def _self_attention(shape: TranslatorShape, *, causal: bool) -> AttentionSpec:
    mask: MaskSpec = CausalSpec() if causal else EverythingSpec()
    if shape.window is not None:
        near = WindowSpec(size=shape.window)
        mask = AllOfSpec(parts=(mask, near)) if causal else near
    bias = LAYER_BIASES.get(shape.positions)
    return _attention(shape).model_copy(
        update={
            "mask": mask,
            "rotary": _rotary(shape),
            "position_bias": bias() if bias else None,
        }
    )


def _rotary(shape: TranslatorShape) -> RotarySpec | None:
    if shape.positions != "rotary":
        return None
    scaling = rotary_options(shape)
    if not scaling:
        return RotarySpec()
    return RotarySpec.parse({"original_length": shape.max_length} | scaling)


def rotary_options(shape: TranslatorShape) -> dict[str, Any]:
    """Return the options of rotary scaling that were set, as fields of `RotarySpec`."""
    names = {name: f"rotary_{name}" for name in ("scaling", "factor", "original_length")}
    is_set = {name: getattr(shape, option) for name, option in names.items()}
    defaults = {"scaling": "none", "factor": 1.0, "original_length": None}
    return {name: value for name, value in is_set.items() if value != defaults[name]}


def _shared_bias(shape: TranslatorShape, *, bidirectional: bool) -> T5BiasSpec | None:
    return T5BiasSpec(bidirectional=bidirectional) if shape.positions == "t5" else None


def _of_stack(stack: StackSpec, width: int) -> Iterator[tuple[str, Any]]:
    block = stack.block
    for attention in (block.self_attention, block.cross_attention):
        if attention is not None:
            yield "num_heads", attention.num_heads
            yield "head_width", attention.head_width or width // attention.num_heads
            yield "num_kv_heads", attention.num_kv_heads or attention.num_heads
            yield "bias", attention.bias
    yield "bias", block.feedforward.bias
    yield "feedforward", block.feedforward.width
    yield "activation", block.feedforward.activation
    yield "norm", block.norm.kind
    yield "norm_placement", block.norm_placement
    yield "window", _window(block.self_attention.mask)
    experts = block.feedforward.experts
    yield "num_experts", experts.num_experts if experts else None
    if experts:
        yield "experts_per_token", experts.per_token


def _positions(embedding: EmbeddingSpec, stack: StackSpec) -> str:
    attention = stack.block.self_attention
    if embedding.positions.kind != "none":
        return embedding.positions.kind
    if attention.rotary is not None:
        return "rotary"
    bias = stack.shared_position_bias or attention.position_bias
    return bias.kind if bias is not None else "none"


def _window(mask: MaskSpec) -> int | None:
    if mask.kind == "window":
        return mask.size
    sizes = (_window(part) for part in getattr(mask, "parts", ()))
    return next((size for size in sizes if size is not None), None)


def _is_same_sharing(option: str, value: str, spec: ModelSpec) -> bool:
    """Return whether two ways to share tables are one, as where no source has its own table."""
    return spec.reads != "pairs" and (option == "none") == (value == "none")


def _plain(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
