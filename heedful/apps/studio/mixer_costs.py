"""The costs of a model's mixers by the length of a text, counted from its built modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heedful.models.cost import blocks_of, numel
from heedful.nn.spec import AttentionSpec
from heedful.nn.work import FLOAT32

if TYPE_CHECKING:
    from heedful.models.model_spec import ModelSpec
    from heedful.models.shape import TranslatorShape
    from heedful.nn.spec import PartSpec

LENGTHS = tuple(2**power for power in range(1, 15))
"""Tokens of the texts whose costs are drawn."""

MIXER_NAMES = {
    "attention": "Attention",
    "linear_attention": "Linear attention",
    "linformer": "Linformer",
    "average_attention": "Average attention",
    "ssru": "SSRU",
    "s4d": "S4D",
    "mamba": "Mamba",
    "rwkv": "RWKV",
    "convolution": "Gated convolution",
}
"""By the kind of their spec; recurrent layers are called by their cell."""

_FEATURE_NAMES = {"cosine": "cosFormer", "random": "Performer"}


def mixer_costs(spec: ModelSpec, shape: TranslatorShape, tokens: int) -> dict[str, Any]:
    """Return every mixer of a model with its costs, and attention's in place of others.

    Args:
        spec: of the model.
        shape: the options that it was made from.
        tokens: of the text that numbers are for, beside those by length.
    """
    mixers = [each for name in spec.stacks() for each in _of_stack(spec, name, tokens)]
    attends = {each["stack"] for each in mixers if each["kind"] == "attention"}
    others = {each["stack"] for each in mixers} - attends
    return {
        "mixers": mixers,
        "compared": [_attention(shape, name, tokens) for name in spec.stacks() if name in others],
    }


def name_of(part: PartSpec) -> str:
    """Return the name of a mixer for people."""
    if part.kind == "recurrent":
        return part.cell.upper()
    if part.kind == "recurrent_decoder":  # all layers in one
        layers = f" of {part.num_layers} layers" if part.num_layers > 1 else ""
        return f"{part.cell.upper()}{layers}"
    if part.kind == "linear_attention":
        return _FEATURE_NAMES.get(part.features.kind, MIXER_NAMES[part.kind])
    return MIXER_NAMES[part.kind]


def _of_stack(spec: ModelSpec, stack: str, tokens: int) -> list[dict[str, Any]]:
    """Return each mixer of a stack once, with the number of its layers."""
    from heedful.inspect.silent_tokens import mixer_of

    found: dict[str, dict[str, Any]] = {}
    pattern = spec.stacks()[stack].pattern
    for (block, layers), block_spec in zip(blocks_of(spec, stack), pattern, strict=True):
        sublayer = mixer_of(block_spec)
        if sublayer is None:
            continue
        part, key = sublayer.part, sublayer.part.model_dump_json()
        if key not in found:
            found[key] = {
                "stack": stack,
                "kind": part.kind,
                "name": name_of(part),
                "about": part.headline(),
                "layers": 0,
                **_by_length(getattr(block, sublayer.name), part, stack, tokens),
            }
        found[key]["layers"] += layers
    return [*found.values()]


def _by_length(module: Any, part: PartSpec, stack: str, here: int) -> dict[str, Any]:
    """Return what one layer of a mixer has and does: numbers, operations, bytes of its state.

    Operations are of one more token in a decoder, and of a token of a whole text in an encoder.
    """
    longest = getattr(part, "longest_text", None)
    reads = hasattr(module, "read")  # a recurrent decoder, whose costs follow from the source
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
    """Return attention in the place of a stack's mixers, to compare with."""
    from heedful.models.build import on_meta
    from heedful.models.mixers import attention_spec
    from heedful.nn.parts import build_part

    part = attention_spec(shape)
    if shape.recurrent or shape.convolution:  # whose shape has no heads of its own
        part = AttentionSpec(num_heads=1)
    with on_meta():
        module = build_part(shape.width, part)
    return {"stack": stack, "name": "Attention", **_by_length(module, part, stack, tokens)}
