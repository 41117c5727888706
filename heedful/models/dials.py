"""From a complete spec back to the dials a person turns: where the two contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from heedful.models.family import CausalLMSpec, EncoderSpec, MaskedLMHeadSpec, ModelSpec
from heedful.models.shape import TranslatorShape
from heedful.models.spec import StackSpec, TranslatorSpec
from heedful.nn.spec import AllOfSpec, AnyOfSpec, EmbeddingSpec, MaskSpec, WindowSpec

DROPOUTS = ("dropout", "attention_dropout", "feedforward_dropout")
"""Dials that are no part of what a model has learned."""


def contradictions(shape: TranslatorShape, spec: ModelSpec) -> list[str]:
    """Dials that were given and that a model does not have, a few words each.

    Dropout may be set anew. Dials of a stack that the model lacks say nothing about it.

    Args:
        shape: the dials; those left at their defaults were not given.
        spec: of the model.
    """
    found: list[str] = []
    for dial, value in _values(spec):
        given = getattr(shape, dial)
        if dial == "share_embeddings":
            same = given == value or _says_tied(given, value, spec)
        else:
            same = given == value
        if dial in shape.model_fields_set and given is not None and not same:
            text = f"model.{dial} is {_shown(given)}, and the model's {_shown(value)}"
            if text not in found:
                found.append(text)
    return found


def with_dropout(
    embedding: EmbeddingSpec, stack: StackSpec, shape: TranslatorShape
) -> tuple[EmbeddingSpec, StackSpec]:
    """An embedding and a stack with the dropout dials that were given.

    Args:
        embedding: of a model.
        stack: of the same model.
        shape: the dials; those left at their defaults were not given.
    """
    given = {name: getattr(shape, name) for name in DROPOUTS if name in shape.model_fields_set}
    block = stack.block
    if "attention_dropout" in given:
        change = {"dropout": given["attention_dropout"]}
        attentions = {"self_attention": block.self_attention.model_copy(update=change)}
        if block.cross_attention is not None:
            attentions["cross_attention"] = block.cross_attention.model_copy(update=change)
        block = block.model_copy(update=attentions)
    if "feedforward_dropout" in given:
        change = {"dropout": given["feedforward_dropout"]}
        inner = block.feedforward.model_copy(update=change)
        block = block.model_copy(update={"feedforward": inner})
    if "dropout" in given:
        change = {"dropout": given["dropout"]}
        embedding = embedding.model_copy(update=change)
        block = block.model_copy(update=change)
        if stack.final_dropout:
            stack = stack.model_copy(update={"final_dropout": given["dropout"]})
    return embedding, stack.model_copy(update={"block": block})


def _values(spec: ModelSpec) -> Iterator[tuple[str, Any]]:
    """Each dial and what it would be, once for every place that it decides about."""
    yield "width", spec.width
    if isinstance(spec, TranslatorSpec):
        yield "share_embeddings", spec.share_embeddings
        yield "max_length", spec.max_length
        stacks = {"encoder_layers": spec.encoder, "decoder_layers": spec.decoder}
    elif isinstance(spec, CausalLMSpec):
        yield "share_embeddings", "all" if spec.tied else "none"
        stacks = {"decoder_layers": spec.decoder}
    else:
        stacks = {"encoder_layers": spec.encoder}
    if isinstance(spec, EncoderSpec):
        for head in spec.heads:
            if isinstance(head, MaskedLMHeadSpec):
                yield "share_embeddings", "all" if head.tied else "none"
    for layers, stack in stacks.items():
        yield layers, stack.num_layers
        yield from _of_stack(stack)
        if isinstance(spec, TranslatorSpec | CausalLMSpec | EncoderSpec):
            yield "positions", _positions(spec.embedding, stack)


def _of_stack(stack: StackSpec) -> Iterator[tuple[str, Any]]:
    block = stack.block
    for attention in (block.self_attention, block.cross_attention):
        if attention is not None:
            yield "num_heads", attention.num_heads
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
    if isinstance(mask, AllOfSpec | AnyOfSpec):
        return next((size for part in mask.parts if (size := _window(part)) is not None), None)
    return mask.size if isinstance(mask, WindowSpec) else None


def _says_tied(given: str, value: str, spec: ModelSpec) -> bool:
    """Whether two ways to share tables are one, as where there is no source's table."""
    return not isinstance(spec, TranslatorSpec) and (given == "none") == (value == "none")


def _shown(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
