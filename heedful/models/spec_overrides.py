"""A trained model's spec beside the options of a run: contradictions, and what may be set anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from heedful.config import Config
from heedful.errors import ConfigError
from heedful.models.mixers import rotary_options
from heedful.models.model_spec import ModelSpec
from heedful.models.recurrent_stacks import recurrent_options
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.mask_spec import AllOfSpec, MaskSpec, SegmentSpec, own_rules
from heedful.nn.mask_text import parse_mask, write_mask
from heedful.nn.spec import AttentionSpec, EmbeddingSpec, PartSpec, RotarySpec

if TYPE_CHECKING:
    from heedful.models.shape import TranslatorShape


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
        if option == "mask" and wanted is not None:
            wanted = dict(_seen(parse_mask(wanted, where="model.mask")))["mask"]
        if option not in shape.model_fields_set or wanted is None or wanted == value:
            continue
        if option == "recurrent":
            differences += _within(option, wanted, value)
            continue
        if option == "share_embeddings" and _is_same_sharing(wanted, value, spec):
            continue
        text = f"model.{option} is {_plain(wanted)}, and the model's {_plain(value)}"
        if text not in differences:
            differences.append(text)
    return differences


def _within(section: str, wanted: Config, values: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the options of a section that were set and that a model contradicts.

    Args:
        section: its name.
        wanted: the section.
        values: of the model, as far as it tells; None for one of other layers.
    """
    if values is None:
        yield f"model.{section} is set, and the model has no such layers"
        return
    for option in wanted.model_fields_set & values.keys():
        if (value := getattr(wanted, option)) != values[option]:
            text = f"model.{section}.{option} is {_plain(value)}"
            yield f"{text}, and the model's {_plain(values[option])}"


DROPOUTS = ("dropout", "attention_dropout", "feedforward_dropout")
"""Options that may differ from those a model was trained with."""


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
        stack = _with_rotary(stack, scaling, trained_length)
    rates = {name: getattr(shape, name) for name in DROPOUTS if name in shape.model_fields_set}
    if "dropout" in rates:
        embedding = embedding.model_copy(update={"dropout": rates["dropout"]})
        if stack.final_dropout:
            stack = stack.model_copy(update={"final_dropout": rates["dropout"]})
    pattern = tuple(_block_with_dropout(block, rates) for block in stack.pattern)
    return embedding, stack.model_copy(update={"pattern": pattern})


def _with_rotary(
    stack: StackSpec, scaling: Mapping[str, Any], trained_length: int | None
) -> StackSpec:
    """Change the rotary positions of a stack; blocks without any stay as they are."""
    length = {"original_length": trained_length}
    pattern, changed = [], 0
    for block in stack.pattern:
        for name, attention in block.attentions().items():
            if attention.rotary is not None:
                rotary = RotarySpec.parse({**length, **attention.rotary.plain(), **scaling})
                block = block.replace(**{name: attention.model_copy(update={"rotary": rotary})})
                changed += 1
        pattern.append(block)
    if not changed:
        raise ConfigError(
            "The model has no rotary positions to stretch",
            where="model.rotary_scaling",
            remedy="Leave it out",
        )
    return stack.model_copy(update={"pattern": tuple(pattern)})


_WITH_DROPOUT = ("recurrent_decoder", "convolution")
"""Kinds of parts that have the model's dropout inside."""


def _block_with_dropout(block: BlockSpec, rates: Mapping[str, float]) -> BlockSpec:
    parts: dict[str, PartSpec] = {}
    if "attention_dropout" in rates:
        change = {"dropout": rates["attention_dropout"]}
        parts |= {name: each.model_copy(update=change) for name, each in block.attentions().items()}
    if "feedforward_dropout" in rates and block.part("channel_mix") is None:
        change = {"dropout": rates["feedforward_dropout"]}
        networks = {s.name: s.part for s in block.sublayers if s.part.kind == "feedforward"}
        parts |= {name: each.model_copy(update=change) for name, each in networks.items()}
    if "dropout" not in rates:
        return block.replace(**parts)
    change = {"dropout": rates["dropout"]}
    own = {each.name: each.part for each in block.sublayers if each.part.kind in _WITH_DROPOUT}
    parts |= {name: part.model_copy(update=change) for name, part in own.items()}
    if any(part.kind == "convolution" for part in own.values()):  # it drops what it reads
        return block.replace(**parts)
    return block.replace(**parts, **change)


_IN_BLOCKS_OF_THEIR_OWN = {"recurrent", "recurrent_decoder", "convolution"}
"""Kinds of parts whose stacks have none of the options of the Transformer's blocks."""


def _values(spec: ModelSpec) -> Iterator[tuple[str, Any]]:
    """Yield each option and the value the model has, once for every place it decides about."""
    yield "width", spec.width
    if spec.sharing is not None:
        yield "share_embeddings", spec.sharing
    if spec.kind == "translator":
        yield "max_length", spec.max_length
    if spec.kind == "causal_lm":
        yield "memory", spec.memory
    stacks = spec.stacks()
    recurrent = recurrent_options(stacks.get("encoder"), stacks.get("decoder"))
    yield "recurrent", recurrent or None
    for name, stack in stacks.items():
        yield f"{name}_layers", stack.num_layers
        if not _IN_BLOCKS_OF_THEIR_OWN & _kinds(stack):
            yield from _mixers(name, stack)
            yield from _of_stack(stack, spec.width)
        if spec.kind != "vision":  # the positions of patches are always learned
            yield "positions", _positions(spec.embedding, stack)


def _of_stack(stack: StackSpec, width: int) -> Iterator[tuple[str, Any]]:
    for block in stack.pattern:
        for attention in block.attentions().values():
            yield "num_heads", attention.num_heads
            yield "head_width", attention.width_of_heads(width)
            yield "num_kv_heads", attention.num_kv_heads or attention.num_heads
            yield "bias", attention.bias
            yield "attention_scale", attention.scale_of_scores(width)
            if attention.over == "input":
                yield from _seen(attention.mask)
                yield "global_tokens", attention.global_tokens
                yield "relative_values", attention.relative_values
        if block.norm_placement != "none":
            yield "norm", block.norm.kind
        yield "norm_placement", block.norm_placement
        yield "residual", block.residual
        yield from _network(block)


def _network(block: BlockSpec) -> Iterator[tuple[str, Any]]:
    mix = block.part("channel_mix")
    if mix is not None and mix.kind == "channel_mix":
        yield "network", mix.kind
        yield "feedforward", mix.width
        return
    if block.part("feedforward") is None:
        yield "feedforward", 0
        return
    network = block.feedforward
    yield "bias", network.bias
    yield "feedforward", network.width
    yield "activation", network.activation
    experts = network.experts
    yield "num_experts", experts.num_experts if experts else None
    if experts:
        yield "experts_per_token", experts.per_token


def _kinds(stack: StackSpec) -> set[str]:
    return {sublayer.part.kind for block in stack.pattern for sublayer in block.sublayers}


def _mixers(name: str, stack: StackSpec) -> Iterator[tuple[str, Any]]:
    """Yield the mixer of a stack, and how often attention takes its place."""
    kinds = [part.kind for block in stack.pattern for part in block.mixers()]
    others = [kind for kind in kinds if kind != "attention"]
    yield "encoder_mixer" if name == "encoder" else "mixer", (others or kinds)[0]
    if others:
        yield "attention_every", len(kinds) if len(others) < len(kinds) else None
    for block in stack.pattern:
        for part in block.mixers():
            if part.kind == "linear_attention":
                yield "features", part.features.kind


def _positions(embedding: EmbeddingSpec, stack: StackSpec) -> str:
    if embedding.positions.kind != "none":
        return embedding.positions.kind
    attentions = [each for block in stack.pattern for each in block.attentions().values()]
    if any(each.rotary is not None for each in attentions):
        return "rotary"
    biases = [stack.shared_position_bias, *(each.position_bias for each in attentions)]
    return next((bias.kind for bias in biases if bias is not None), "none")


def _seen(mask: MaskSpec) -> Iterator[tuple[str, Any]]:
    own = own_rules(mask)
    yield "window", own.size if own.kind == "window" else None
    yield "mask", None if own.kind == "everything" else write_mask(own)


def _is_same_sharing(option: str, value: str, spec: ModelSpec) -> bool:
    """Return whether two ways to share tables are one, as where no source has its own table."""
    return spec.reads != "pairs" and (option == "none") == (value == "none")


def _plain(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def separating_texts(attention: AttentionSpec) -> AttentionSpec:
    """Return an attention that hides other texts of the same row as well."""
    mask = attention.mask
    if mask.heeds_segments:
        return attention
    parts = mask.parts if mask.kind == "all_of" else (mask,)
    return attention.model_copy(update={"mask": AllOfSpec(parts=(*parts, SegmentSpec()))})
