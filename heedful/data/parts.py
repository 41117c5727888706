"""Parts of a batch: some of its rows, as a batch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    BatchLike = TypeVar("BatchLike", bound=DataclassInstance)


def rows_of(batch: BatchLike, start: int, stop: int, **others: Any) -> BatchLike:
    """Consecutive rows of a batch, padded as they were.

    Args:
        batch: a dataclass; the first axis of its tensors is that of the rows.
        start: the first row.
        stop: the row after the last.
        **others: fields whose values are given, as they are no rows.
    """
    rows = {
        field.name: getattr(batch, field.name)[start:stop]
        for field in dataclasses.fields(batch)
        if field.name not in others and isinstance(getattr(batch, field.name), Tensor)
    }
    return dataclasses.replace(batch, **rows, **others)


def positions_in(batch: DataclassInstance) -> int:
    """Positions of a batch on its longer side, padding counted; rows where there are no positions.

    Args:
        batch: a dataclass of tensors whose first axis is that of the rows.
    """
    tensors = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    shapes = [tensor.shape for tensor in tensors if isinstance(tensor, Tensor)]
    wide = [shape[0] * shape[1] for shape in shapes if len(shape) == 2]
    return max(wide, default=shapes[0][0])
