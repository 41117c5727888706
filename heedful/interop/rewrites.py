"""Rewrites of a spec and its tensors into another spec that computes the same function.

A rewrite moves a constant of the model from a setting into a weight or a table, or permutes its
channels, so that another project can express it. Outputs are equal up to the rounding of a
multiplication.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from heedful.models.encoder_spec import EncoderSpec
from heedful.models.model_spec import CausalLMSpec, CommonSpec, TranslatorSpec
from heedful.models.stack_spec import StackSpec
from heedful.nn.positions import SinusoidalPositions
from heedful.nn.spec import AttentionSpec

Tensors = Mapping[str, Tensor]
Convert = Callable[[Tensors], dict[str, Tensor]]
S = TypeVar("S", bound=CommonSpec)
Text = TypeVar("Text", TranslatorSpec, CausalLMSpec, EncoderSpec)
OneText = TypeVar("OneText", CausalLMSpec, EncoderSpec)


@dataclass(frozen=True)
class Rewritten(Generic[S]):
    """A model under another spec.

    Args:
        spec: spec after the rewrite.
        convert: function from the model's tensors to those of that spec.
    """

    spec: S
    convert: Convert


Rewrite = Callable[[S], Rewritten[S] | None]
"""A function from a spec to its rewritten model, or None where nothing needs to change."""

# The axis of each tensor that runs over the channels of the residual stream. Matrices are stored
# [out, in], so maps that read the stream have it on axis 1, maps that write to it on axis 0.
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
    """Permute a translator's channels so that all sines come before the cosines, as in Marian."""
    positions = spec.embedding.positions
    if positions.kind != "sinusoidal" or positions.layout == "halves":
        return None
    # Our channels alternate: sin, cos, sin, cos. A permutation of the stream changes no dot product
    # in it.
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
    """Fold the scale sqrt(D) of embeddings into their tables, which unties the output projection.

    The model multiplies the same numbers in its forward pass, so the rounding is the same.
    """
    if spec.embedding.scale is not True:
        return None
    factor = math.sqrt(spec.width)
    # Its name is that of a head in an encoder.
    tied = {
        name: table for name, table in spec.ties().items() if name.endswith("projection.weight")
    }

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        scaled = {
            name: tensor * factor if name.endswith("embedding.weight") else tensor
            for name, tensor in tensors.items()
        }
        # The output projection used the table without the factor, so it gets the old one.
        return scaled | {name: tensors[table] for name, table in tied.items()}

    embedding = spec.embedding.model_copy(update={"scale": False})
    return Rewritten(spec.untied().model_copy(update={"embedding": embedding}), convert)


def tabled_positions(spec: OneText) -> Rewritten[OneText] | None:
    """Replace sinusoids by a table of positions, up to the model's longest sequence."""
    positions = spec.embedding.positions
    # Of an encoder, as many as learned positions would be: a text has one token more around it.
    length = spec.max_length and spec.max_length + (not spec.generates)
    # If the length is unlimited, no table is long enough.
    if length is None or positions.kind != "sinusoidal":
        return None

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        sinusoids = SinusoidalPositions(spec.width, positions.layout)(torch.arange(length)[None])[0]
        dtype = tensors["embedding.weight"].dtype
        return {**tensors, "input.positions.weight": sinusoids.to(dtype)}

    learned = positions.model_copy(
        # The layout goes back to its default: it means nothing for a learned table, but would count
        # as a difference.
        update={"kind": "learned", "max_length": length, "layout": "pairs"}
    )
    embedding = spec.embedding.model_copy(update={"positions": learned})
    return Rewritten(spec.model_copy(update={"embedding": embedding}), convert)


def one_segment(spec: EncoderSpec) -> Rewritten[EncoderSpec] | None:
    """Give an encoder without segments a table of one, which adds zeros."""
    if spec.embedding.num_segments is not None:
        return None

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        zeros = torch.zeros_like(tensors["embedding.weight"][:1])
        return {**tensors, "input.segments.weight": zeros}

    embedding = spec.embedding.model_copy(update={"num_segments": 1})
    return Rewritten(spec.model_copy(update={"embedding": embedding}), convert)


def padding_row(spec: EncoderSpec) -> Rewritten[EncoderSpec] | None:
    """Put a row that is never used before learned positions, that of the padding id 0."""
    positions = spec.embedding.positions
    if positions.kind != "learned" or positions.unused_rows:
        return None

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        table = tensors["input.positions.weight"]
        return {
            **tensors,
            "input.positions.weight": torch.cat([torch.zeros_like(table[:1]), table]),
        }

    moved = positions.model_copy(update={"unused_rows": 1})
    embedding = spec.embedding.model_copy(update={"positions": moved})
    return Rewritten(spec.model_copy(update={"embedding": embedding}), convert)


def scaled_queries(spec: TranslatorSpec) -> Rewritten[TranslatorSpec] | None:
    """Fold the scale of a translator's attention scores into its query projections, as T5 does."""
    factors: dict[str, float] = {}
    stacks: dict[str, StackSpec] = {}
    for side, stack in spec.stacks().items():
        update: dict[str, AttentionSpec] = {}
        for name, attention in stack.block.attentions().items():
            width = attention.width_of_heads(spec.width)
            # (s q) . k = s (q . k): a factor on query weights and biases is one on the scores.
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
