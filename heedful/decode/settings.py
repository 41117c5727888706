"""How translations are searched for, as data."""

from __future__ import annotations

from typing import Annotated, Self, TypedDict

from pydantic import Field, model_validator

from heedful.config import Config

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]

# The most tokens a translation may have when the user does not say: generous enough for any pair
# of languages cut into similar pieces, small enough that a model that never stops is soon cut.
LENGTH_RATIO = 2
LENGTH_MARGIN = 20

# Tokens of a shortlist: the likeliest of each source token, and the commonest of all.
PER_TOKEN = 100
FREQUENT = 100


class SearchSettings(Config):
    """Beam search or sampling, what it may generate and how hypotheses are ranked.

    A hypothesis of n tokens, its end token counted, with summed log-probability s is ranked by
    s / ((5 + n) / 6)^length_penalty (Wu 2016, as in Vaswani 2017).
    """

    beam: Positive = Field(4, description="hypotheses kept alive for a sentence; 1 is greedy")
    n_best: Positive = Field(1, description="hypotheses returned for a sentence, or samples drawn")
    length_penalty: NonNegative = Field(0.6, description="0 favours short translations; 1, long")
    coverage_penalty: NonNegative = Field(
        0.0, description="how much source tokens nobody attended to count against a hypothesis"
    )
    min_length: Annotated[int, Field(ge=0)] = Field(0, description="fewest tokens before the end")
    max_length: Positive | None = Field(
        None,
        description="most tokens before the end; "
        f"{LENGTH_RATIO} x source tokens + {LENGTH_MARGIN} if unset",
    )
    no_repeat_ngram: Annotated[int, Field(ge=0)] = Field(
        0, description="never generate a sequence of this many tokens twice; 0 allows all"
    )
    sampling: bool = Field(False, description="draw at random instead of searching")
    temperature: Annotated[float, Field(gt=0)] = Field(
        1.0, description="divides the logits before drawing: below 1 is bolder, above 1 wilder"
    )
    top_k: Annotated[int, Field(ge=0)] = Field(
        0, description="draw among this many most probable tokens; 0 is all"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="draw among the fewest most probable tokens that hold this probability"
    )
    min_p: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="draw among tokens at least this probable relative to the most probable"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(1, description="of the draws")

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if not self.sampling and self.n_best > self.beam:
            raise ValueError(
                f"n_best = {self.n_best} needs a beam at least as wide (beam = {self.beam})"
            )
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(
                f"min_length = {self.min_length} is more than max_length = {self.max_length}"
            )
        if not self.sampling:
            drawn = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
            for name, unused in drawn.items():
                if getattr(self, name) != unused:
                    raise ValueError(f"{name} needs sampling = true")
        return self

    def longest(self, source_length: int) -> int:
        """The most tokens, end token not counted, for a source of so many tokens."""
        if self.max_length is not None:
            return self.max_length
        return max(LENGTH_RATIO * source_length + LENGTH_MARGIN, self.min_length)


class SearchOptions(TypedDict, total=False):
    """The fields of `SearchSettings` as keyword arguments."""

    beam: int
    n_best: int
    length_penalty: float
    coverage_penalty: float
    min_length: int
    max_length: int | None
    no_repeat_ngram: int
    sampling: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
