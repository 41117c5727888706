"""The settings of a search, and the hypotheses that it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypedDict, TypeVar

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.errors import ConfigError, DataError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.models.model_spec import CommonSpec, TranslatorSpec

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
        missing: places of the required phrases that it lacks, among those of its sentence.
    """

    tokens: tuple[int, ...]
    score: float
    normalized_score: float
    token_scores: tuple[float, ...]
    finished: bool
    missing: tuple[int, ...] = ()


def not_numbers() -> ModelError:
    """Return the error for scores that are not numbers."""
    return ModelError(
        "The model's probabilities are not numbers (NaN)",
        remedy="Its weights are damaged or its training diverged: use an earlier checkpoint",
    )


Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]

# The most tokens a translation may have when the user does not say: generous enough for any pair
# of languages cut into similar pieces, small enough that a model that never stops is soon cut.
LENGTH_RATIO = 2
LENGTH_MARGIN = 20

# Hypotheses of a sentence from which on their memory is estimated before the search: looking up the
# free memory takes some 10 ms the first time.
_WIDE = 1000

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
    temperature: NonNegative = Field(
        1.0,
        description="divides the logits before drawing: below 1 bolder, above 1 wilder, 0 greedy",
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
    epsilon: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="draw among tokens of at least this probability, or the most probable"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(1, description="of the draws")
    risk_samples: Annotated[int, Field(ge=0)] = Field(
        0, description="draw so many and choose the one most like all (minimum Bayes risk); 0: none"
    )
    alternatives: Annotated[int, Field(ge=0)] = Field(
        0, description="translations that differ, by a diverse beam search; 0 is a plain search"
    )
    # On 150 sentences of Tatoeba, 5 answers of `en-de` have a mean chrF against each other of 65
    # by n_best, 63 with 0.5, 61 with 1, 47 with 2, 35 with 4; the best stay as good up to 2.
    diversity: NonNegative = Field(
        2.0, description="how much a token costs that another alternative has at the same place"
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.temperature == 0:  # a draw at temperature 0 is the most probable token
            self.__dict__["sampling"] = True
        self._settle_answers()
        if not self.sampling and not self.alternatives and self.n_best > self.beam:
            raise ValueError(
                f"n_best = {self.n_best} needs a beam at least as wide (beam = {self.beam})"
            )
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(
                f"min_length = {self.min_length} is more than max_length = {self.max_length}"
            )
        if not self.sampling:
            drawn = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "epsilon": 0.0}
            for name, unused in drawn.items():
                if getattr(self, name) != unused:
                    raise ValueError(f"{name} needs sampling = true")
        return self

    def _settle_answers(self) -> None:
        """Settle what several samples or alternatives imply."""
        if self.risk_samples:
            self.__dict__["sampling"] = True
            if self.n_best > self.risk_samples:
                raise ValueError(
                    f"n_best = {self.n_best} is more than risk_samples = {self.risk_samples}"
                )
        if self.alternatives:
            if self.sampling:
                raise ValueError("alternatives are searched for: leave out sampling")
            if self.n_best not in (1, self.alternatives):
                raise ValueError(
                    f"n_best = {self.n_best} and alternatives = {self.alternatives}: give one"
                )
            self.__dict__["n_best"] = self.alternatives

    @property
    def width(self) -> int:
        """Hypotheses of a sentence that are kept, or drawn, at once."""
        if self.sampling:
            return self.risk_samples or self.n_best
        return self.beam * max(1, self.alternatives)

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
    epsilon: float
    seed: int
    risk_samples: int
    alternatives: int
    diversity: float


class GenerationSettings(SearchSettings):
    """Greedy search, beam search or sampling of what follows a prompt.

    Being cut at the longest length or at a stop string costs a continuation nothing.
    """

    beam: Positive = Field(1, description="continuations kept alive for a prompt; 1 is greedy")
    n_best: Positive = Field(1, description="continuations returned for a prompt, or samples drawn")
    min_length: Annotated[int, Field(ge=0)] = Field(0, description="fewest new tokens")
    max_length: Positive = Field(100, description="most new tokens")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="texts that end a continuation; it does not hold them"
    )
    cache: Literal["auto", "growing", "static", "ring"] = Field(
        "auto",
        description="where keys and values are kept; a ring, which never grows, holds what a "
        "model with a window sees; auto: a ring for such models, else growing",
    )


class GenerationOptions(SearchOptions, total=False):
    """The fields of `GenerationSettings` as keyword arguments."""

    stop: tuple[str, ...]
    cache: Literal["auto", "growing", "static", "ring"]


def table_length(specs: Sequence[TranslatorSpec]) -> int | None:
    """Positions that all models have embeddings for; None when positions never end."""
    lengths = [spec.embedding.positions.max_length for spec in specs]
    return min((length for length in lengths if length is not None), default=None)


_ANY_VOCABULARY = 1000
"""Hypotheses that a search may keep even where the vocabulary is smaller."""


def check_width(specs: Sequence[CommonSpec], settings: SearchSettings) -> None:
    """Refuse a beam, or a number of samples, that no search could finish.

    Args:
        specs: of the models.
        settings: of the search.

    Raises:
        ConfigError: when the beam is wider than the vocabulary, or one sentence's scores need more
            memory than is free.
    """
    vocabulary = min(spec.predicted_vocabulary for spec in specs)
    name = "n_best" if settings.sampling else "beam"
    width = settings.width
    if not settings.sampling and width > max(vocabulary, _ANY_VOCABULARY):
        raise ConfigError(
            f"The beam is wider than the model's vocabulary of {vocabulary:,} tokens",
            where=f"beam = {width}",
            remedy="Take a beam of a few hypotheses, such as 4 or 10",
        )
    if width < _WIDE:
        return
    from heedful.memory import available_bytes

    needed, free = 2 * 4 * width * vocabulary, available_bytes()
    if needed > free:
        raise ConfigError(
            f"The scores of one step of one sentence would need {needed / 2**30:,.1f} GiB of "
            f"memory; {free / 2**30:,.1f} GiB are free",
            where=f"{name} = {width}",
            remedy="Take a beam of a few hypotheses, such as 4 or 10"
            if name == "beam"
            else "Draw fewer samples at once",
        )


def longest_output(specs: Sequence[TranslatorSpec], settings: SearchSettings) -> int | None:
    """The most tokens that models can generate; None when positions never end.

    Raises:
        ConfigError: when more is asked for.
    """
    check_width(specs, settings)
    table = table_length(specs)
    if table is None:
        return None
    longest = table - 1  # the beginning-of-sequence token takes a position
    for name, asked in (
        ("max_length", settings.max_length),
        ("min_length", settings.min_length),
    ):
        if asked is not None and asked > longest:
            raise ConfigError(
                f"The model has learned {table} positions and can generate {longest} tokens",
                where=f"{name} = {asked}",
                remedy="Ask for less",
            )
    return longest


def check_fits(
    specs: Sequence[TranslatorSpec], ids: Sequence[int], where: str, frame: int = 1
) -> None:
    """Refuse a text that models with learned positions cannot read whole.

    Args:
        specs: of the models.
        ids: of the text, without special tokens.
        where: what to call it.
        frame: special tokens that stand around it.

    Raises:
        DataError: naming the text.
    """
    table = table_length(specs)
    if table is not None and len(ids) + frame > table:
        raise DataError(
            f"{len(ids)} tokens are more than the {table - frame} the model can read",
            where=where,
            remedy="Give shorter pieces of the text",
        )
