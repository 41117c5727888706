"""Batches of different lengths under each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def stacked(batches: Sequence[Tensor], length: int, dim: int, fill: float = 0) -> Tensor:
    """The rows of all batches, each cut or filled up on its right.

    Args:
        batches: [B', ...] each, alike but for B' and their length.
        length: of the result.
        dim: which dimension has it, counted from the last one: below 0.
        fill: what stands where a batch had nothing.

    Returns:
        [B, ...].
    """
    rows = []
    for batch in batches:
        missing = length - batch.shape[dim]
        if missing > 0:
            batch = F.pad(batch, (0, 0) * (-1 - dim) + (0, missing), value=fill)
        rows.append(batch.narrow(dim, 0, length))
    return torch.cat(rows)
