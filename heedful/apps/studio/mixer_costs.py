"""The costs of a model's mixers by sequence length, counted from its built modules."""

from __future__ import annotations

from typing import Any, get_args

from heedful.config import MixerName
from heedful.errors import ConfigError
from heedful.inspect.silent_tokens import mixer_of
from heedful.models.build import on_meta
from heedful.models.cost import blocks_of, numel
from heedful.models.model_spec import ModelSpec
from heedful.models.shape import TranslatorShape
from heedful.nn.mixer import build_part
from heedful.nn.mixer_spec import CommonPartSpec
from heedful.nn.spec import PARTS, AttentionSpec, PartSpec
from heedful.nn.work import FLOAT32
from heedful.registry import registered

LENGTHS = tuple(2**power for power in range(1, 15))
"""Sequence lengths in tokens for which costs are drawn."""


def mixer_costs(spec: ModelSpec, shape: TranslatorShape, tokens: int) -> dict[str, Any]:
    """Return every mixer of a model with its costs, and the costs of attention in its place.

    Args:
        spec: specification of the model.
        shape: options that the specification was made from.
        tokens: sequence length of the listed costs, in addition to the costs by length.
    """
    mixers = [each for name in spec.stacks() for each in _of_stack(spec, name, tokens)]
    attends = {each["stack"] for each in mixers if each["kind"] == "attention"}
    others = {each["stack"] for each in mixers} - attends
    return {
        "mixers": mixers,
        "compared": [_attention(shape, name, tokens) for name in spec.stacks() if name in others],
    }


def mixer_names() -> list[dict[str, Any]]:
    """Return the mixers that a shape can name: name, label, and whether a decoder can have it."""
    own = [(name, PARTS[name]) for name in get_args(MixerName)]
    return [
        {"name": name, "label": spec.label, "writes": _writes(spec)}
        for name, spec in [*own, *registered("mixer")]
    ]


def _writes(spec: type[CommonPartSpec]) -> bool:
    try:
        return not spec.of_shape(TranslatorShape(), causal=True).sees_later
    except ConfigError:
        return False


def _of_stack(spec: ModelSpec, stack: str, tokens: int) -> list[dict[str, Any]]:
    """Return each mixer of a stack once, with the number of its layers."""
    found: dict[str, dict[str, Any]] = {}
    pattern = spec.stacks()[stack].pattern
    for (block, layers), block_spec in zip(blocks_of(spec, stack), pattern, strict=True):
        sublayer = mixer_of(block_spec)
        if sublayer is None:
            continue
        part, key = sublayer.part, sublayer.part.model_dump_json()
        if key not in found:
            module = getattr(block, sublayer.name)
            found[key] = {
                "stack": stack,
                "kind": part.kind,
                "name": part.title,
                "about": part.headline(),
                "layers": 0,
                "inner_layers": [numel(each) for each in module.layers]
                if part.reads_memory
                else [],
                **_by_length(module, part, stack, tokens),
            }
        found[key]["layers"] += layers
    return [*found.values()]


def _by_length(module: Any, part: PartSpec, stack: str, here: int) -> dict[str, Any]:
    """Return the parameters, the operations and the state bytes of one layer of a mixer.

    Operations are those of one further token in a decoder, and of one token of a sequence in an
    encoder.
    """
    longest = part.longest_text
    reads = part.reads_memory  # a recurrent decoder's costs depend on the source
    keeps = stack == "decoder"

    def operations(tokens: int) -> float:
        if keeps:
            return float(module.work(1, here if reads else tokens).total)
        return float(module.work(tokens, tokens).total / tokens)

    def state(tokens: int) -> int:
        return int(module.beam_bytes if reads else module.state_bytes(tokens, FLOAT32))

    lengths = [each for each in LENGTHS if longest is None or each <= longest]
    return {
        "parameters": numel(module),
        "operations_here": operations(here),
        "state_here": state(here) if keeps else None,
        "operations": [[each, operations(each)] for each in lengths],
        "state": [[each, state(each)] for each in lengths] if keeps else [],
    }


def _attention(shape: TranslatorShape, stack: str, tokens: int) -> dict[str, Any]:
    """Return attention in place of a stack's mixers, for comparison."""
    part = AttentionSpec.with_heads_of_shape(shape)
    if shape.recurrent or shape.convolution:  # a shape with this mixer has no heads
        part = AttentionSpec(num_heads=1)
    with on_meta():
        module = build_part(shape.width, part)
    return {"stack": stack, "name": "Attention", **_by_length(module, part, stack, tokens)}
