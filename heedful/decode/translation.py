"""What translating and scoring give back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from heedful.decode.aligned import Alignment


class Translation(str):
    """A translated text, which is a `str`, and what is known about it.

    Attributes:
        score: natural-log probability, summed over the tokens and the end token of every piece.
        normalized_score: what translations are ranked by; the mean of a text's pieces.
        finished: False when a piece was cut at its longest length.
        tokens: the vocabulary's pieces it is made of, for display.
        token_scores: log-probability of every token, and of the end token after each piece.
        others: the next-best translations, best first.
        alignment: of words, when it was asked for.
    """

    score: float
    normalized_score: float
    finished: bool
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    others: tuple[Translation, ...]
    alignment: Alignment | None

    def __new__(
        cls,
        text: str = "",
        *,
        score: float = 0.0,
        normalized_score: float = 0.0,
        finished: bool = True,
        tokens: Sequence[str] = (),
        token_scores: Sequence[float] = (),
        others: Sequence[Translation] = (),
        alignment: Alignment | None = None,
    ) -> Self:
        """Build from its parts; the empty translation of an empty text by default."""
        self = super().__new__(cls, text)
        self.score = score
        self.normalized_score = normalized_score
        self.finished = finished
        self.tokens = tuple(tokens)
        self.token_scores = tuple(token_scores)
        self.others = tuple(others)
        self.alignment = alignment
        return self

    @property
    def n_best(self) -> tuple[Translation, ...]:
        """This translation and the next-best ones, best first."""
        return (self, *self.others)


@dataclass(frozen=True)
class Score:
    """What a model thinks of a given target.

    Args:
        score: natural-log probability, summed over the tokens and the end token.
        tokens: the vocabulary's pieces of the target, for display.
        token_scores: log-probability of each token and of the end token.
    """

    score: float
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]

    @classmethod
    def of(cls, tokens: Sequence[str], token_scores: Sequence[float]) -> Self:
        """Sum the scores of tokens."""
        return cls(math.fsum(token_scores), tuple(tokens), tuple(token_scores))
