"""Length normalisation: what keeps short hypotheses from being ranked first for being short."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Number = TypeVar("Number", float, "Tensor")


def length_norm(length: Number, alpha: float) -> Number:
    """The divisor of a score (Wu 2016, equation 14).

    Args:
        length: tokens of the hypothesis, its end token counted.
        alpha: strength; 0 leaves scores as they are.
    """
    result: Number = ((length + 5.0) / 6.0) ** alpha
    return result
