"""R-Drop (Liang 2021): two dropout passes over the same batch should agree."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from heedful.data.batches import PairBatch

_CHUNK_ELEMENTS = 1 << 22


def twice(batch: PairBatch) -> PairBatch:
    """The batch followed by itself, so that one pass draws two sets of dropout masks."""
    doubled: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            doubled[field.name] = torch.cat([value, value])
    return dataclasses.replace(batch, target_tokens=2 * batch.target_tokens, **doubled)


def symmetric_divergence(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """KL(p‖q) + KL(q‖p) summed over positions, in nats.

    Args:
        first: [n, D] hidden states of one pass, at real positions.
        second: [n, D] those of the other pass.
        weight: [V, D] output projection.

    Returns:
        0-dim float32. Logits exist a chunk of rows at a time and are recomputed backward.
    """
    rows = max(1, _CHUNK_ELEMENTS // weight.shape[0])
    total = torch.zeros((), dtype=torch.float32, device=first.device)
    for start in range(0, first.shape[0], rows):
        part = slice(start, start + rows)
        total = total + checkpoint(
            _divergence,
            first[part],
            second[part],
            weight,
            use_reentrant=False,
            preserve_rng_state=False,
        )
    return total


def _divergence(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    wide = torch.promote_types(first.dtype, torch.float32)
    p = torch.log_softmax(torch.nn.functional.linear(first, weight), -1, dtype=wide)
    q = torch.log_softmax(torch.nn.functional.linear(second, weight), -1, dtype=wide)
    # KL(p‖q) + KL(q‖p) = Σ (p − q)(log p − log q)
    return ((p.exp() - q.exp()) * (p - q)).sum()
