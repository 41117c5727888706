"""Options of a run against the spec of a trained model: contradictions, and allowed changes."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from heedful.config import Config
from heedful.errors import ConfigError
from heedful.models.model_spec import ModelSpec
from heedful.models.recurrent_stacks import recurrent_options
from heedful.models.stack_spec import BlockSpec, StackSpec, sees_no_later
from heedful.nn.attention.masks import AllOf, Everything, Mask, SameSegment
from heedful.nn.mask_text import parse_mask, write_mask
from heedful.nn.spec import AttentionSpec, EmbeddingSpec, RotarySpec

if TYPE_CHECKING:
    from heedful.models.shape import TranslatorShape


def contradictions(shape: TranslatorShape, spec: ModelSpec) -> list[str]:
    """Return a few words for each option that was set and differs from the model.

    Dropout may differ. Options of a stack that the model lacks are ignored.

    Args:
        shape: options of the run; those at their defaults were not set.
        spec: spec of the model.
    """
    differences: list[str] = []
    for option, value in _values(spec):
        wanted = getattr(shape, option)
        if option == "mask" and wanted is not None:
            mask = parse_mask(wanted, where="model.mask")
            # The normal form leaves causality out, which is an option of encoders alone.
            encoder: Any = getattr(spec, "encoder", None)
            if spec.kind == "encoder" and sees_no_later(mask) and not encoder.is_causal:
                differences.append("model.mask is causal, and the model's tokens see later ones")
            # Masks are compared in a normal form, as a mask can be written in several ways.
            wanted = dict(_seen(mask))["mask"]
        # None asks for the default, which is the value of a trained model.
        if option not in shape.model_fields_set or wanted is None or wanted == value:
            continue
        if option in ("recurrent", "evoformer"):
            differences += _within(option, wanted, value)
            continue
        if option == "share_embeddings" and _is_same_sharing(wanted, value, spec):
            continue
        text = f"model.{option} is {_plain(wanted)}, and the model's {_plain(value)}"
        # Equal layers give the same text: say it once.
        if text not in differences:
            differences.append(text)
    return differences


def _within(section: str, wanted: Config, values: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a few words for each option of a section that was set and differs from the model.

    Args:
        section: name of the section.
        wanted: options of the section.
        values: known values of the model; None for a model without such layers.
    """
    if values is None:
        yield f"model.{section} is set, and the model has no such layers"
        return
    for option in wanted.model_fields_set & values.keys():
        if (value := getattr(wanted, option)) != values[option]:
            text = f"model.{section}.{option} is {_plain(value)}"
            yield f"{text}, and the model's {_plain(values[option])}"


DROPOUTS = ("dropout", "attention_dropout", "feedforward_dropout")
"""Options that may differ from those of training: no tensor depends on them."""


def with_overrides(
    embedding: EmbeddingSpec,
    stack: StackSpec,
    shape: TranslatorShape,
    trained_length: int | None = None,
) -> tuple[EmbeddingSpec, StackSpec]:
    """Return an embedding and a stack with the dropout and rotary scaling of the options.

    Args:
        embedding: embedding spec of a model.
        stack: stack spec of the same model.
        shape: options of the run; those at their defaults were not set.
        trained_length: original length of rotary scaling in tokens, where neither the options nor
            the model have one.

    Raises:
        ConfigError: when there are no rotary positions to stretch.
    """
    if scaling := RotarySpec.scaling_of_shape(shape):
        stack = _with_rotary(stack, scaling, trained_length)
    rates = {name: getattr(shape, name) for name in DROPOUTS if name in shape.model_fields_set}
    if "dropout" in rates:
        embedding = embedding.model_copy(update={"dropout": rates["dropout"]})
        if stack.final_dropout:  # 0: this architecture has none there
            stack = stack.model_copy(update={"final_dropout": rates["dropout"]})
    pattern = tuple(_block_with_dropout(block, rates) for block in stack.pattern)
    return embedding, stack.model_copy(update={"pattern": pattern})


def stacks_with_overrides(spec: Any, shape: TranslatorShape) -> dict[str, StackSpec]:
    """Return the stacks of a model without an embedding by name, as `with_overrides` does.

    Args:
        spec: spec of the model.
        shape: options of the run.
    """
    none = EmbeddingSpec()
    return {name: with_overrides(none, stack, shape)[1] for name, stack in spec.stacks().items()}


def _with_rotary(
    stack: StackSpec, scaling: Mapping[str, Any], trained_length: int | None
) -> StackSpec:
    """Return a stack with changed rotary positions; blocks without any stay the same."""
    length = {"original_length": trained_length}
    pattern, changed = [], 0
    for block in stack.pattern:
        for name, attention in block.attentions().items():
            if attention.rotary is not None:
                # Later entries win: the options over the model, and both over the trained length.
                rotary = RotarySpec.parse({**length, **attention.rotary.plain(), **scaling})
                block = block.replace(**{name: attention.model_copy(update={"rotary": rotary})})
                changed += 1
        pattern.append(block)
    # A model with other positions would silently ignore the option.
    if not changed:
        raise ConfigError(
            "The model has no rotary positions to stretch",
            where="model.rotary_scaling",
            remedy="Leave it out",
        )
    return stack.model_copy(update={"pattern": tuple(pattern)})


def _block_with_dropout(block: BlockSpec, rates: Mapping[str, float]) -> BlockSpec:
    parts = {
        each.name: each.part.model_copy(update={"dropout": rates[option]})
        for each in block.sublayers
        if (option := each.part.dropout_option) is not None and option in rates
    }
    if "dropout" not in rates or any(part.kind == "convolution" for part in parts.values()):
        return block.replace(**parts)  # a convolution drops what it reads
    return block.replace(**parts, dropout=rates["dropout"])


def _values(spec: Any) -> Iterator[tuple[str, Any]]:
    """Yield each option with its value in the model, once for every part that it affects."""
    yield "width", spec.width
    if spec.sharing is not None:
        yield "share_embeddings", spec.sharing
    if spec.kind == "translator":
        yield "max_length", spec.max_length
    if spec.kind == "causal_lm":
        yield "memory", spec.memory
    stacks = spec.stacks()
    recurrent = recurrent_options(stacks.get("encoder"), stacks.get("decoder"))
    yield "recurrent", recurrent or None  # None: `_within` then reports the section
    pairs = [stack.exact_text for stack in stacks.values() if stack.exact_text is not None]
    yield "evoformer", {"side": math.isqrt(pairs[0])} if pairs else None
    for name, stack in stacks.items():
        yield f"{name}_layers", stack.num_layers
        if all(each.part.section is None for each in stack.sublayers()):
            yield from _mixers(name, stack)
            yield from _of_stack(stack, spec.width)
        if spec.reads != "images":  # the positions of patches are always learned
            yield "positions", _positions(spec.embedding, stack)


def _of_stack(stack: StackSpec, width: int) -> Iterator[tuple[str, Any]]:
    for block in stack.pattern:
        for attention in block.attentions().values():
            yield "num_heads", attention.num_heads
            yield "head_width", attention.width_of_heads(width)
            yield "num_kv_heads", attention.num_kv_heads or attention.num_heads
            yield "bias", attention.bias
            yield "attention_scale", attention.scale_of_scores(width)
            # Cross-attention sees the whole source, whatever the mask of the decoder.
            if attention.over == "input":
                yield from _seen(attention.mask)
                yield "global_tokens", attention.global_tokens
                yield "relative_values", attention.relative_values
            bias = attention.position_bias
            if bias is not None and bias.kind == "relative_keys":
                yield "relative_distance", bias.max_distance
        # A spec has a norm even if no norm is applied.
        if block.norm_placement != "none":
            yield "norm", block.norm.kind
        yield "norm_placement", block.norm_placement
        yield "residual", block.residual
        yield from _network(block)


def _network(block: BlockSpec) -> Iterator[tuple[str, Any]]:
    networks: dict[str, Any] = {
        p.kind: p for p in (s.part for s in block.sublayers) if p.is_network
    }
    if (mix := networks.get("channel_mix")) is not None:
        yield "network", mix.kind
        yield "feedforward", mix.width
        return
    network = networks.get("feedforward")
    if network is None:
        yield "feedforward", 0
        return
    yield "bias", network.bias
    yield "feedforward", network.width
    yield "activation", network.activation
    experts = network.experts
    yield "num_experts", experts.num_experts if experts else None
    if experts:
        yield "experts_per_token", experts.per_token


def _mixers(name: str, stack: StackSpec) -> Iterator[tuple[str, Any]]:
    """Yield the mixer of a stack, and how often attention takes its place."""
    kinds = [part.kind for part in stack.mixers()]
    # Where attention alternates with another mixer, the option `mixer` names the other one.
    others = [kind for kind in kinds if kind != "attention"]
    yield "encoder_mixer" if name == "encoder" else "mixer", (others or kinds)[0]
    if others:
        yield "attention_every", len(kinds) if len(others) < len(kinds) else None
    for part in stack.mixers():
        if part.kind == "linear_attention":
            yield "features", part.features.kind


def _positions(embedding: EmbeddingSpec, stack: StackSpec) -> str:
    if embedding.positions.kind != "none":
        return embedding.positions.kind
    attentions = list(stack.attentions())
    if any(each.rotary is not None for each in attentions):
        return "rotary"
    biases = [stack.shared_position_bias, *(each.position_bias for each in attentions)]
    return next((bias.kind for bias in biases if bias is not None), "none")


def _seen(mask: Mask) -> Iterator[tuple[str, Any]]:
    # The rules that follow from the task, causality and segments, are left out.
    rules = (rule for rule in mask.conjuncts if not rule.follows_task)
    own: Mask = functools.reduce(operator.and_, rules, Everything())
    yield "window", own.span if own.kind == "window" else None
    yield "mask", None if own.kind == "everything" else write_mask(own)


def _is_same_sharing(option: str, value: str, spec: ModelSpec) -> bool:
    """Return whether two values of `share_embeddings` mean the same for a model of one text."""
    return spec.reads != "pairs" and (option == "none") == (value == "none")


def _plain(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def separating_texts(attention: AttentionSpec) -> AttentionSpec:
    """Return an attention that also hides other texts of the same row."""
    mask = attention.mask
    if mask.heeds_segments:
        return attention
    return attention.model_copy(update={"mask": AllOf(parts=(*mask.conjuncts, SameSegment()))})
