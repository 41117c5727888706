"""The cost of a part: its operations, and the elements it keeps for the gradients.

A multiply-add counts as two operations. Matmuls are counted: with weights, between queries and
keys, and between attention weights and values. Norms, activations, softmax and look-ups are left
out, as their work per token is proportional to D, and that of matmuls to D². Every pair of query
and key counts, also one that a mask hides, since that is what a dense kernel computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import nn

FLOAT32 = 4
"""Bytes of a float32; weights are trained in it at every precision."""

BFLOAT16 = 2
"""Bytes of a bfloat16 or float16."""

Checkpointing = Literal["none", "selective", "full"]
"""Parts of blocks that are recomputed for gradients: none, all except matmuls, all."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations by their cause.

    Args:
        weights: matmuls with the blocks' weight matrices; linear in the number of tokens.
        attention: matmuls between tokens (scores, and sums of values); quadratic in length.
        output: the projection to the vocabulary.
    """

    weights: int = 0
    attention: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        """All operations."""
        return self.weights + self.attention + self.output

    def __add__(self, other: Work) -> Work:
        return Work(
            weights=self.weights + other.weights,
            attention=self.attention + other.attention,
            output=self.output + other.output,
        )

    def times(self, factor: int) -> Work:
        """Return the same work done `factor` times."""
        return Work(
            weights=self.weights * factor,
            attention=self.attention * factor,
            output=self.output * factor,
        )


class Saved(NamedTuple):
    """Elements of a token that the forward pass keeps for the backward pass.

    Args:
        numbers: elements in the precision of the matmuls.
        marks: elements of dropout masks, a byte each.
        wide: elements that are float32 at every precision.
    """

    numbers: int = 0
    marks: int = 0
    wide: int = 0

    def plus(self, other: Saved, times: int = 1) -> Saved:
        """Return the sum of these elements and `times` as many of `other`."""
        return Saved(*(mine + times * its for mine, its in zip(self, other, strict=True)))

    def bytes(self, number_bytes: int) -> int:
        """Return the bytes of a token where matmuls use elements of `number_bytes`."""
        return self.numbers * number_bytes + self.marks + self.wide * FLOAT32


# Declared by each part, not counted by `torch.utils.flop_counter`: it sees no scan in C (0.925 of
# Mamba's operations) and cannot run experts on the meta device (docs/design/log.md).
class Costed(Protocol):
    """The protocol by which every part of a block reports its cost.

    A part that keeps a state also has `state_bytes(tokens, number_bytes)`; a cross mixer has
    `read_work(tokens)` and `read_saved(mixed)` for the projection of its memory.
    """

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of new tokens of one sentence.

        Args:
            queries: number of new tokens.
            keys: number of keys that they attend to, the new tokens included.
        """

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of a token kept for the backward pass beside the part's input.

        Args:
            length: length of the sequence if the kernel keeps its attention weights; 0 if not.
            mixed: flag of matmuls with fewer bits than float32.
            shared_bias: flag of a position bias that all blocks share.
        """


def weight_work(*modules: nn.Module) -> int:
    """Return the operations of a token in linear maps: two for each element of their matrices."""
    matrices = (p for module in modules for p in module.parameters() if p.dim() == 2)
    return 2 * sum(matrix.numel() for matrix in matrices)


def weight_outputs(*modules: nn.Module) -> int:
    """Return the outputs of linear maps for a token: one for each row of their matrices."""
    matrices = (p for module in modules for p in module.parameters() if p.dim() == 2)
    return sum(matrix.shape[0] for matrix in matrices)
