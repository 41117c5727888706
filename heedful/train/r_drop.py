"""R-Drop (Liang 2021): two dropout passes over the same batch should agree."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from heedful.data.batches import PairBatch


def twice(batch: PairBatch) -> PairBatch:
    """The batch followed by itself, so that one pass draws two sets of dropout masks."""
    doubled: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            doubled[field.name] = torch.cat([value, value])
    return dataclasses.replace(batch, target_tokens=2 * batch.target_tokens, **doubled)
