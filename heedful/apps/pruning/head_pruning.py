"""Removal of attention heads from a model: a copy with smaller projections."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.models.build import build_around, canonical_weights
from heedful.models.stack_spec import StackSpec
from heedful.nn.attention.multi_head import KeptHeads

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.models.stack import Stack
    from heedful.nn.attention.multi_head import Attention

Heads = Mapping[tuple[str, int, str], Collection[int]]
"""Indices of heads by stack (`encoder`, `decoder`), layer and attention (`self_attention`,
`cross_attention`), counted in the model before any pruning."""


def without_heads(model: AnyModel, removed: Heads) -> AnyModel:
    """Return a copy of a model whose projections lack the columns and rows of some heads.

    The copy computes what the model would if these heads gave zeros. A key/value head is removed
    with the last of its query heads; an attention without heads gives its output bias.

    Args:
        model: model of any class.
        removed: heads to leave out.

    Returns:
        A model of the same class, in evaluation mode.
    """
    # A new dictionary whose entries are replaced: the tensors of the model stay as they are.
    weights = dict(canonical_weights(model))
    stacks = {
        name: _prune_stack(stack, getattr(model, name), name, removed, weights)
        for name, stack in model.spec.stacks().items()
    }
    spec: Any = model.spec.with_stacks(stacks)
    # The stored types stay: a pruned bfloat16 model is one as well.
    return build_around(spec, weights, where="pruning", dtype=None).eval()


def _prune_stack(
    spec: StackSpec, stack: Stack, name: str, removed: Heads, weights: dict[str, Tensor]
) -> StackSpec:
    """Prune the weights of a stack in place and return its spec with the heads that are left."""
    layers = []
    # By `spec.blocks` and not by the pattern: layers that shared a block now may differ.
    for number, (block, layer) in enumerate(zip(stack.blocks, spec.blocks, strict=True)):
        for which, described in layer.attentions().items():
            attention: Attention = getattr(block, which)
            pruned = set(removed.get((name, number, which), ()))
            assert pruned <= set(attention.kept.heads), (name, number, which, pruned)
            left = tuple(head for head in attention.kept.heads if head not in pruned)
            # `num_heads` counts the heads before any pruning, also of an earlier call.
            if len(left) < attention.num_heads:
                layer = layer.replace(**{which: described.model_copy(update={"kept_heads": left})})
            _prune_attention(attention, left, f"{name}.blocks.{number}.{which}.", weights)
        layers.append(layer)
    # Keep the short pattern of equal blocks where nothing was pruned.
    pattern = tuple(layers)
    return spec if pattern == spec.blocks else spec.model_copy(update={"pattern": pattern})


def _prune_attention(
    attention: Attention, left: tuple[int, ...], prefix: str, weights: dict[str, Tensor]
) -> None:
    """Remove the rows and columns of heads from an attention's weights, in place."""
    before, width = attention.kept, attention.head_width
    after = KeptHeads(left, before.total, before.shared)
    queries = _channels([before.heads.index(head) for head in after.heads], width)
    keys = _channels([before.key_heads.index(head) for head in after.key_heads], width)
    # Query, key and value matrices are [heads · E, D]: a head is a range of rows.
    rows = {"query": queries, "key": keys, "value": keys}
    for name, channels in rows.items():
        for kind in ("weight", "bias"):
            full = f"{prefix}{name}.{kind}"
            if full in weights:
                weights[full] = weights[full][channels]
    output = f"{prefix}output.weight"
    # The output matrix is [D, heads · E], so a head is a range of columns; its bias stays.
    weights[output] = weights[output][:, queries]


def _channels(places: list[int], width: int) -> Tensor:
    """Return the indices of the channels of heads, `width` for each; `places` count from 0."""
    ranges = [range(place * width, (place + 1) * width) for place in places]
    return torch.tensor([channel for each in ranges for channel in each], dtype=torch.int64)
