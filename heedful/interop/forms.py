"""The same function under another spec: how a model is put so that another project can say it.

A form changes where a constant of the model is kept (in a setting, in a table, in a weight, in the
order of the channels), and never what is computed but for the rounding of a product.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.models.family import CausalLMSpec, ModelSpec
from heedful.models.spec import StackSpec, TranslatorSpec
from heedful.nn.positions import SinusoidalPositions
from heedful.nn.spec import AttentionSpec

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Form:
    """A model under another spec.

    Args:
        spec: the other one.
        convert: the model's tensors to those of the other spec.
    """

    spec: ModelSpec
    convert: Callable[[Tensors], dict[str, Tensor]]


Rewrite = Callable[[ModelSpec], Form | None]
"""A spec to another form of it; None where there is nothing to change."""

# Which axis of a tensor runs over the channels of the states that blocks hand on.
_CHANNELS = (
    (re.compile(r"(.*_)?embedding\.weight|output_projection\.weight"), 1),
    (re.compile(r".*\.(query|key|value|up|gate)\.weight"), 1),
    (re.compile(r".*\.(output|down)\.(weight|bias)"), 0),
    (re.compile(r".*norm\.(weight|bias)"), 0),
)


def in_turn(spec: ModelSpec, rewrites: Iterable[Rewrite]) -> Form:
    """The form that several rewrites give, one after the other."""
    steps: list[Callable[[Tensors], dict[str, Tensor]]] = []
    for rewrite in rewrites:
        form = rewrite(spec)
        if form is not None:
            spec = form.spec
            steps.append(form.convert)

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        for step in steps:
            tensors = step(tensors)
        return dict(tensors)

    return Form(spec, convert)


def sinusoids_in_halves(spec: ModelSpec) -> Form | None:
    """The channels of a translator in another order, so that all sines come before the cosines."""
    if not isinstance(spec, TranslatorSpec):
        return None
    positions = spec.embedding.positions
    if positions.kind != "sinusoidal" or positions.layout == "halves":
        return None
    order = torch.cat([torch.arange(0, spec.width, 2), torch.arange(1, spec.width, 2)])

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        reordered = dict(tensors)
        for name, tensor in tensors.items():
            axis = next((axis for names, axis in _CHANNELS if names.fullmatch(name)), None)
            if axis is not None:
                reordered[name] = tensor.index_select(axis, order)
        return reordered

    halves = positions.model_copy(update={"layout": "halves"})
    embedding = spec.embedding.model_copy(update={"positions": halves})
    return Form(spec.model_copy(update={"embedding": embedding}), convert)


def unscaled(spec: ModelSpec) -> Form | None:
    """The factor on embeddings multiplied into their tables; an output that was tied is so no more.

    The products are the very ones that the model computes, so nothing is rounded otherwise.
    """
    if not isinstance(spec, TranslatorSpec | CausalLMSpec) or not spec.embedding.scale:
        return None
    factor = math.sqrt(spec.width)
    if isinstance(spec, CausalLMSpec):
        tied = "embedding.weight" if spec.tied else None
        untied: dict[str, object] = {"tied": False}
    else:
        share = spec.share_embeddings
        tied = "target_embedding.weight" if share in ("all", "target") else None
        untied = {"share_embeddings": {"all": "inputs", "target": "none"}.get(share, share)}

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        scaled = {
            name: tensor * factor if name.endswith("embedding.weight") else tensor
            for name, tensor in tensors.items()
        }
        if tied is not None:
            scaled["output_projection.weight"] = tensors[tied]
        return scaled

    embedding = spec.embedding.model_copy(update={"scale": False})
    return Form(spec.model_copy(update={"embedding": embedding, **untied}), convert)


def tabled_positions(spec: ModelSpec) -> Form | None:
    """Sinusoids as a table of as many positions as the language model was made for."""
    if not isinstance(spec, CausalLMSpec) or spec.max_length is None:
        return None
    positions = spec.embedding.positions
    if positions.kind != "sinusoidal":
        return None
    length = spec.max_length

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        waves = SinusoidalPositions(spec.width, positions.layout)(torch.arange(length)[None])[0]
        dtype = tensors["embedding.weight"].dtype
        return {**tensors, "input.positions.weight": waves.to(dtype)}

    learned = positions.model_copy(
        update={"kind": "learned", "max_length": length, "layout": "pairs"}
    )
    embedding = spec.embedding.model_copy(update={"positions": learned})
    return Form(spec.model_copy(update={"embedding": embedding}), convert)


def scores_unscaled(spec: ModelSpec) -> Form | None:
    """The factor on a translator's attention scores multiplied into the maps of its queries."""
    if not isinstance(spec, TranslatorSpec):
        return None
    factors: dict[str, float] = {}
    stacks: dict[str, StackSpec] = {}
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        update: dict[str, AttentionSpec] = {}
        for name in ("self_attention", "cross_attention"):
            attention: AttentionSpec | None = getattr(stack.block, name)
            if attention is None:
                continue
            width = attention.head_width or spec.width // attention.num_heads
            factors[f"{side}.{name}"] = attention.scale or width**-0.5
            update[name] = attention.model_copy(update={"scale": 1.0, "head_width": width})
        stacks[side] = stack.model_copy(update={"block": stack.block.model_copy(update=update)})
    if all(factor == 1.0 for factor in factors.values()):
        return None

    def convert(tensors: Tensors) -> dict[str, Tensor]:
        scaled = dict(tensors)
        for name in tensors:
            match = re.fullmatch(r"(\w+)\.blocks\.\d+\.(\w+)\.query\.(weight|bias)", name)
            if match is not None:
                scaled[name] = tensors[name] * factors[f"{match[1]}.{match[2]}"]
        return scaled

    return Form(spec.model_copy(update=stacks), convert)
