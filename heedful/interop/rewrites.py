"""Rewrites of a spec and its tensors into another spec that computes the same.

A rewrite changes where a constant of the model is kept (in a setting, in a table, in a weight, in
the order of the channels) so that another project can express it. The model computes the same, but
for the rounding of a product.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from heedful.models.model_spec import CausalLMSpec, CommonSpec, TranslatorSpec
from heedful.models.stack_spec import StackSpec
from heedful.nn.positions import SinusoidalPositions
from heedful.nn.spec import AttentionSpec

Tensors = Mapping[str, Tensor]
Convert = Callable[[Tensors], dict[str, Tensor]]
S = TypeVar("S", bound=CommonSpec)
Text = TypeVar("Text", TranslatorSpec, CausalLMSpec)


@dataclass(frozen=True)
class Rewritten(Generic[S]):
    """A model under another spec.

    Args:
        spec: the other one.
        convert: the model's tensors to those of the other spec.
    """

    spec: S
    convert: Convert


Rewrite = Callable[[S], Rewritten[S] | None]
"""A spec to another form of it; None where there is nothing to change."""

# The axis of each tensor that runs over the channels of the states between blocks.
_CHANNEL_AXES = (
    (re.compile(r"(.*_)?embedding\.weight|output_projection\.weight"), 1),
    (re.compile(r".*\.(query|key|value|up|gate)\.weight"), 1),
    (re.compile(r".*\.(output|down)\.(weight|bias)"), 0),
    (re.compile(r".*norm\.(weight|bias)"), 0),
)


def apply_rewrites(spec: S, rewrites: Iterable[Rewrite[S]]) -> Rewritten[S]:
    """Apply several rewrites, one after the other."""
    steps: list[Convert] = []
    for rewrite in rewrites:
        rewritten = rewrite(spec)
        if rewritten is not None:
            spec = rewritten.spec
            steps.append(rewritten.convert)

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        for step in steps:
            tensors = step(tensors)
        return dict(tensors)

    return Rewritten(spec, convert)


def sinusoids_in_halves(spec: TranslatorSpec) -> Rewritten[TranslatorSpec] | None:
    """Reorder a translator's channels so that all sines come before the cosines."""
    positions = spec.embedding.positions
    if positions.kind != "sinusoidal" or positions.layout == "halves":
        return None
    order = torch.cat([torch.arange(0, spec.width, 2), torch.arange(1, spec.width, 2)])

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        reordered = dict(tensors)
        for name, tensor in tensors.items():
            axis = next((axis for names, axis in _CHANNEL_AXES if names.fullmatch(name)), None)
            if axis is not None:
                reordered[name] = tensor.index_select(axis, order)
        return reordered

    halves = positions.model_copy(update={"layout": "halves"})
    embedding = spec.embedding.model_copy(update={"positions": halves})
    return Rewritten(spec.model_copy(update={"embedding": embedding}), convert)


def scaled_embeddings(spec: Text) -> Rewritten[Text] | None:
    """Multiply the factor on embeddings into their tables, which unties the output projection.

    The products are the very ones that the model computes, so nothing is rounded otherwise.
    """
    if spec.embedding.scale is not True:
        return None
    factor = math.sqrt(spec.width)
    tied = spec.ties().get("output_projection.weight")

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        scaled = {
            name: tensor * factor if name.endswith("embedding.weight") else tensor
            for name, tensor in tensors.items()
        }
        if tied is not None:
            scaled["output_projection.weight"] = tensors[tied]
        return scaled

    embedding = spec.embedding.model_copy(update={"scale": False})
    return Rewritten(spec.untied().model_copy(update={"embedding": embedding}), convert)


def tabled_positions(spec: CausalLMSpec) -> Rewritten[CausalLMSpec] | None:
    """Turn sinusoids into a table of as many positions as the language model was made for."""
    positions = spec.embedding.positions
    length = spec.max_length
    if length is None or positions.kind != "sinusoidal":
        return None

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        sinusoids = SinusoidalPositions(spec.width, positions.layout)(torch.arange(length)[None])[0]
        dtype = tensors["embedding.weight"].dtype
        return {**tensors, "input.positions.weight": sinusoids.to(dtype)}

    learned = positions.model_copy(
        update={"kind": "learned", "max_length": length, "layout": "pairs"}
    )
    embedding = spec.embedding.model_copy(update={"positions": learned})
    return Rewritten(spec.model_copy(update={"embedding": embedding}), convert)


def scaled_queries(spec: TranslatorSpec) -> Rewritten[TranslatorSpec] | None:
    """Multiply the factor on a translator's attention scores into the maps of its queries."""
    factors: dict[str, float] = {}
    stacks: dict[str, StackSpec] = {}
    for side, stack in spec.stacks().items():
        update: dict[str, AttentionSpec] = {}
        for name, attention in stack.block.attentions().items():
            width = attention.width_of_heads(spec.width)
            factors[f"{side}.{name}"] = attention.scale or width**-0.5
            update[name] = attention.model_copy(update={"scale": 1.0, "head_width": width})
        stacks[side] = stack.with_block(stack.block.replace(**update))
    if all(factor == 1.0 for factor in factors.values()):
        return None

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        scaled = dict(tensors)
        for name in tensors:
            match = re.fullmatch(r"(\w+)\.blocks\.\d+\.(\w+)\.query\.(weight|bias)", name)
            if match is not None:
                scaled[name] = tensors[name] * factors[f"{match[1]}.{match[2]}"]
        return scaled

    return Rewritten(spec.model_copy(update=stacks), convert)
