"""Pieces: the boxes of a tensor that one process keeps, in the order of the whole tensor.

A shard is one box of rows. A part of a fused matrix is several: `tensor_plan.py` keeps its rows in
another order, and every run of rows that follow each other in the whole matrix is a box of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

from torch import Tensor

from heedful.train.model_weights import lies_in_parts

MODEL_FOLDER = "model"
TRAINING_FOLDER = "training"
"""The folders of a checkpoint with the pieces of weights, and with those of all other tensors."""


@dataclass(frozen=True)
class TensorPiece:
    """A box of a tensor.

    Args:
        tensor: its content, in the memory that the process keeps it in.
        offsets: of its first element in the whole tensor, by axis.
        size: of the whole tensor.
    """

    tensor: Tensor
    offsets: tuple[int, ...]
    size: tuple[int, ...]

    def copied(self) -> TensorPiece:
        """The same with a copy of the content on the processor."""
        return replace(self, tensor=self.tensor.cpu().clone())


Pieces = Mapping[str, Sequence[TensorPiece]]
"""The pieces that a process keeps of some tensors, by their names."""


def pieces_of(tensor: Tensor, rows: Tensor | None = None) -> list[TensorPiece]:
    """The pieces of a tensor that this process keeps; changing their content changes the tensor.

    Args:
        tensor: all of it, or a DTensor [N, …].
        rows: [N] int64, the original number of every row of a DTensor; None where rows are in
            their original order.

    Returns:
        No piece if the process keeps nothing of it, one or, with `rows`, several.
    """
    size = tuple(tensor.shape)
    if not lies_in_parts(tensor):
        return [TensorPiece(tensor.detach(), (0,) * len(size), size)]
    local = cast(Any, tensor.detach()).to_local()
    if not local.numel():  # fewer rows than processes
        return []
    (box,) = cast(Any, tensor).__create_chunk_list__()
    first, *others = box.offsets
    if rows is None:
        return [TensorPiece(local, (first, *others), size)]
    numbers = rows[first : first + len(local)]
    breaks = (numbers.diff() != 1).nonzero().flatten() + 1
    bounds = [0, *breaks.tolist(), len(numbers)]
    return [
        TensorPiece(local[start:stop], (int(numbers[start]), *others), size)
        for start, stop in pairwise(bounds)
    ]


def all_pieces(tensors: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> Pieces:
    """The pieces that a process keeps of weights, moments and averages.

    Args:
        tensors: by the names of weights, after a kind and a slash if any.
        rows: as `pieces_of` takes them, by the names of weights.
    """
    return {
        name: pieces_of(tensor, rows.get(weight_name(name))) for name, tensor in tensors.items()
    }


def weight_name(name: str) -> str:
    """The name of the weight that a moment belongs to."""
    return name.rpartition("/")[2]
