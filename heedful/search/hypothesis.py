"""Length normalisation: what keeps short hypotheses from being ranked first for being short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from heedful.errors import ModelError

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


@dataclass(frozen=True)
class Specials:
    """The ids of the tokens that stand for no text."""

    pad: int
    bos: int
    eos: int

    @property
    def ids(self) -> frozenset[int]:
        """All of them."""
        return frozenset((self.pad, self.bos, self.eos))


@dataclass(frozen=True)
class Hypothesis:
    """A target sequence and what the model thinks of it.

    Args:
        tokens: ids, without beginning- and end-of-sequence tokens.
        score: natural-log probability, summed over the tokens and the end token.
        normalized_score: what hypotheses are ranked by.
        token_scores: log-probability of each token and of the end token, len(tokens) + 1 of them.
        finished: False when it was cut at its longest length, where the model would rather have
            gone on. The end token is then forced, and its log-probability counted all the same.
    """

    tokens: tuple[int, ...]
    score: float
    normalized_score: float
    token_scores: tuple[float, ...]
    finished: bool


def not_numbers() -> ModelError:
    """What to raise when a model's scores are none."""
    return ModelError(
        "The model's probabilities are not numbers (NaN)",
        remedy="Its weights are damaged or its training diverged: use an earlier checkpoint",
    )
