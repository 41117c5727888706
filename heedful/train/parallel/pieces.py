"""Pieces: the boxes of a tensor that one process holds, with their offsets in the whole tensor.

A shard is one box of rows. A part of a fused matrix is several boxes: `tensor_plan.py` permutes its
rows, and every run of rows that are consecutive in the whole matrix is one box.
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
"""Folders of a checkpoint: pieces of the weights, and pieces of all other tensors."""


@dataclass(frozen=True)
class TensorPiece:
    """A box of a tensor.

    Args:
        tensor: content of the box, in the memory where the process holds it.
        offsets: offsets of its first element in the whole tensor, by axis.
        size: size of the whole tensor.
    """

    tensor: Tensor
    offsets: tuple[int, ...]
    size: tuple[int, ...]

    def copy(self) -> TensorPiece:
        """Copy the piece, with its content on the CPU."""
        return replace(self, tensor=self.tensor.cpu().clone())


Pieces = Mapping[str, Sequence[TensorPiece]]
"""Pieces of tensors that a process holds, by tensor name."""


def pieces_of(tensor: Tensor, rows: Tensor | None = None) -> list[TensorPiece]:
    """Return the pieces of a tensor that this process holds, as views of its memory.

    Args:
        tensor: whole tensor, or a DTensor [N, …].
        rows: [N] int64, original number of every row of a DTensor; None for the original order.

    Returns:
        No piece if the process holds no row, one piece, or several with `rows`.
    """
    size = tuple(tensor.shape)
    if not lies_in_parts(tensor):
        # A copy on every process: planners write the first one's.
        return [TensorPiece(tensor.detach(), (0,) * len(size), size)]
    local = cast(Any, tensor.detach()).to_local()
    if not local.numel():  # fewer rows than processes
        return []
    # DTensor's own account of where its local part begins, also for uneven shards.
    (box,) = cast(Any, tensor).__create_chunk_list__()
    first, *others = box.offsets
    if rows is None:
        return [TensorPiece(local, (first, *others), size)]
    # [local rows], original row numbers; a jump by more than 1 begins a new piece.
    numbers = rows[first : first + len(local)]
    breaks = (numbers.diff() != 1).nonzero().flatten() + 1
    bounds = [0, *breaks.tolist(), len(numbers)]
    return [
        TensorPiece(local[start:stop], (int(numbers[start]), *others), size)
        for start, stop in pairwise(bounds)
    ]


def all_pieces(tensors: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> Pieces:
    """Return the pieces that a process holds of weights, moments and averages.

    Args:
        tensors: tensors by name (WEIGHT or KIND/WEIGHT).
        rows: original row numbers (see `pieces_of`) by weight name.
    """
    return {
        # Moments are permuted like their weight.
        name: pieces_of(tensor, rows.get(weight_name(name)))
        for name, tensor in tensors.items()
    }


def weight_name(name: str) -> str:
    """Return the weight's name in the name of a moment or average."""
    return name.rpartition("/")[2]
