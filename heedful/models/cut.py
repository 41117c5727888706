"""A smaller model: one without some of the heads of another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.models.block import Block
from heedful.models.build import build_model
from heedful.models.spec import KeptHeadsSpec, StackSpec
from heedful.models.stack import Stack
from heedful.models.weights import canonical_weights, load_weights
from heedful.nn.attention import Attention
from heedful.nn.kept_heads import KeptHeads
from heedful.nn.undrawn import undrawn

if TYPE_CHECKING:
    from heedful.models.build import AnyModel

Removed = Mapping[tuple[str, int, str], Collection[int]]
"""Numbers of heads, by stack (`encoder`, `decoder`), layer and attention (`self_attention`,
`cross_attention`)."""


def without_heads(model: AnyModel, removed: Removed) -> AnyModel:
    """A copy of a model whose projections lack the columns and rows of some heads.

    It computes what the model does when those heads give zeros. A key/value head goes when none of
    its query heads is left; an attention without heads gives its output bias.

    Args:
        model: of any class.
        removed: which heads.

    Returns:
        A model of the same class, in evaluation mode.
    """
    changes: dict[str, StackSpec] = {}
    weights = dict(canonical_weights(model))
    for name in ("encoder", "decoder"):
        stack = getattr(model, name, None)
        if isinstance(stack, Stack):
            changes[name] = _cut_stack(getattr(model.spec, name), stack, name, removed, weights)
    spec: Any = type(model.spec).parse(
        {**model.spec.plain(), **{name: stack.plain() for name, stack in changes.items()}}
    )
    with undrawn():
        smaller = build_model(spec)
    like = next(model.parameters())
    smaller = smaller.to(like.device, like.dtype)
    load_weights(smaller, weights, where="pruning")
    return smaller.eval()


def _cut_stack(
    spec: StackSpec, stack: Stack, name: str, removed: Removed, weights: dict[str, Tensor]
) -> StackSpec:
    layers = []
    for number, block in enumerate(stack.blocks):
        assert isinstance(block, Block)
        kept: dict[str, tuple[int, ...]] = {}
        for which in ("self_attention", "cross_attention"):
            attention = getattr(block, which)
            if attention is None:
                continue
            gone = removed.get((name, number, which), ())
            assert set(gone) <= set(attention.kept.heads), (name, number, which, gone)
            left = tuple(head for head in attention.kept.heads if head not in gone)
            if len(left) < attention.num_heads:
                kept[which] = left
            _cut(attention, left, f"{name}.blocks.{number}.{which}.", weights)
        layers.append(KeptHeadsSpec(**kept))
    if all(layer == KeptHeadsSpec() for layer in layers):
        return spec
    return spec.model_copy(update={"kept_heads": tuple(layers)})


def _cut(
    attention: Attention, left: tuple[int, ...], prefix: str, weights: dict[str, Tensor]
) -> None:
    """Take rows and columns of heads out of an attention's weights."""
    before, width = attention.kept, attention.head_width
    after = KeptHeads(left, before.total, before.shared)
    queries = _channels([before.heads.index(head) for head in after.heads], width)
    keys = _channels([before.key_heads.index(head) for head in after.key_heads], width)
    rows = {"query": queries, "key": keys, "value": keys}
    for name, channels in rows.items():
        for kind in ("weight", "bias"):
            full = f"{prefix}{name}.{kind}"
            if full in weights:
                weights[full] = weights[full][channels]
    output = f"{prefix}output.weight"
    weights[output] = weights[output][:, queries]


def _channels(places: list[int], width: int) -> Tensor:
    found = [range(place * width, (place + 1) * width) for place in places]
    return torch.tensor([channel for each in found for channel in each], dtype=torch.int64)
