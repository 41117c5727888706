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
    """Return the divisor of a score (Wu 2016, equation 14).

    Args:
        length: number of tokens of the hypothesis, the end token counted.
        alpha: exponent; 0 means a divisor of 1.
    """
    result: Number = ((length + 5.0) / 6.0) ** alpha
    return result


@dataclass(frozen=True)
class Specials:
    """The ids of special tokens, which have no text."""

    pad: int
    bos: int
    eos: int

    @property
    def ids(self) -> frozenset[int]:
        """The set of the ids."""
        return frozenset((self.pad, self.bos, self.eos))


@dataclass(frozen=True)
class Hypothesis:
    """A target sequence and its scores.

    Args:
        tokens: ids, without beginning- and end-of-sequence tokens.
        score: natural-log probability, summed over the tokens and the end token.
        normalized_score: score by which hypotheses are ranked.
        token_scores: log-probabilities of the tokens and of the end token, len(tokens) + 1.
        finished: False when the end token was forced at the longest length against the model's
            preference. Its log-probability is counted all the same.
        missing: indices of the required phrases that it lacks, among those of its sentence.
    """

    tokens: tuple[int, ...]
    score: float
    normalized_score: float
    token_scores: tuple[float, ...]
    finished: bool
    missing: tuple[int, ...] = ()


def not_numbers() -> ModelError:
    """Return the error for scores that are NaN."""
    return ModelError(
        "The model's probabilities are not numbers (NaN)",
        remedy="Its weights are damaged or its training diverged: use an earlier checkpoint",
    )


Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]

NEW_TOKENS = 100
"""New tokens of a continuation if no number is set."""

# The longest translation by default: enough for any two languages with similar tokenizers, and
# short enough that a model that never stops is soon cut.
LENGTH_RATIO = 2
LENGTH_MARGIN = 20

# Memory is estimated beforehand for beams from this width on: looking up the free memory takes some
# 10 ms the first time.
_WIDE = 1000

# Sizes of a shortlist: likeliest tokens for each source token, and most frequent tokens.
PER_TOKEN = 100
FREQUENT = 100


class SearchSettings(Config):
    """Settings of beam search or sampling, of its constraints and of the ranking.

    A hypothesis of n tokens, its end token counted, with summed log-probability s is ranked by
    s / ((5 + n) / 6)^length_penalty (Wu 2016, as in Vaswani 2017).
    """

    beam: Positive = Field(
        4, description="beam width: number of hypotheses kept for each sentence; 1 is greedy search"
    )
    n_best: Positive = Field(1, description="number of translations returned for each sentence")
    length_penalty: NonNegative = Field(
        0.6,
        description="exponent of the length penalty (Wu 2016); 0 favours short translations, 1 "
        "long ones",
    )
    coverage_penalty: NonNegative = Field(
        0.0,
        description="weight of the coverage penalty for source tokens without attention (Wu "
        "2016); 0.2 is usual, 0 turns it off",
    )
    min_length: Annotated[int, Field(ge=0)] = Field(
        0, description="minimum number of tokens of a translation"
    )
    max_length: Positive | None = Field(
        None,
        description="maximum number of tokens of a translation; "
        f"{LENGTH_RATIO} x source tokens + {LENGTH_MARGIN} if unset",
    )
    no_repeat_ngram: Annotated[int, Field(ge=0)] = Field(
        0,
        description="length N of n-grams that may not occur twice in an output; 0 allows "
        "repetition",
    )
    sampling: bool = Field(False, description="sample tokens at random instead of searching")
    temperature: NonNegative = Field(
        1.0,
        description="temperature of sampling: logits are divided by it; below 1 is more "
        "conservative, 0 is greedy",
    )
    top_k: Annotated[int, Field(ge=0)] = Field(
        0,
        description="number of most probable tokens to sample from (Fan 2018); 0 samples from all",
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="total probability of the most probable tokens to sample from (nucleus "
        "sampling, Holtzman 2020); 1 samples from all",
    )
    min_p: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="minimum probability of a sampled token, relative to the most probable one "
        "(Nguyen 2024)",
    )
    epsilon: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="minimum probability of a sampled token (epsilon sampling, Hewitt 2022); 0.02 "
        "suits minimum Bayes risk",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        1, description="seed of random sampling; equal seeds give equal samples"
    )
    risk_samples: Annotated[int, Field(ge=0)] = Field(
        0,
        description="number of samples for minimum Bayes risk decoding (Eikema and Aziz 2020), "
        "which returns the sample most similar to the others; 0 turns it off",
    )
    alternatives: Annotated[int, Field(ge=0)] = Field(
        0,
        description="number of different translations, found by diverse beam search (Vijayakumar "
        "2018); 0 searches normally",
    )
    # On 150 sentences of Tatoeba, 5 answers of `en-de` have a mean chrF against each other of 65
    # by n_best, 63 with 0.5, 61 with 1, 47 with 2, 35 with 4; the best stay as good up to 2.
    diversity: NonNegative = Field(
        2.0, description="penalty on a token that another alternative has at the same position"
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.temperature == 0:  # greedy: a draw at temperature 0 is the most probable token
            # Set through `__dict__`, as settings are frozen and this is their own validator.
            self.__dict__["sampling"] = True
        self._set_implied_options()
        # With alternatives each of them has a beam of its own.
        if not self.sampling and not self.alternatives and self.n_best > self.beam:
            raise ValueError(
                f"n_best = {self.n_best} needs a beam at least as wide (beam = {self.beam})"
            )
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(
                f"min_length = {self.min_length} is more than max_length = {self.max_length}"
            )
        if not self.sampling:
            # An option without effect is refused, as the user expects an effect.
            drawn = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "epsilon": 0.0}
            for name, unused in drawn.items():
                if getattr(self, name) != unused:
                    raise ValueError(f"{name} needs sampling = true")
        return self

    def _set_implied_options(self) -> None:
        """Set the options that risk samples or alternatives imply."""
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
            # Every alternative is returned, since each group takes the same time whether it is
            # returned or not.
            self.__dict__["n_best"] = self.alternatives

    @property
    def width(self) -> int:
        """Hypotheses of a sentence that a step computes at once."""
        if self.sampling:
            return self.risk_samples or self.n_best
        return self.beam * max(1, self.alternatives)

    def longest(self, source_length: int) -> int:
        """Return the most tokens for a source of `source_length`, the end token not counted."""
        if self.max_length is not None:
            return self.max_length
        # A `min_length` above the default must be reachable.
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
    """Settings of greedy search, beam search or sampling of continuations of a prompt.

    A cut at the longest length or at a stop string does not change a continuation's score.
    """

    beam: Positive = Field(
        1, description="beam width: number of hypotheses kept for each prompt; 1 is greedy search"
    )
    n_best: Positive = Field(1, description="number of continuations returned for each prompt")
    min_length: Annotated[int, Field(ge=0)] = Field(0, description="minimum number of new tokens")
    max_length: Positive | None = Field(
        None,
        description="maximum number of new tokens; if unset 100, or the number of positions that "
        "are left",
    )
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="strings that end a continuation and are cut from it"
    )
    cache: Literal["auto", "growing", "static", "ring"] = Field(
        "auto",
        description="key-value cache: growing, static (allocated once), or ring, which keeps only "
        "the window of a sliding-window model; auto takes a ring for such models and growing for "
        "others",
    )

    json_schema: str = Field(
        "", description="JSON Schema that the output fits; it ends where it is complete"
    )
    regex: str = Field("", description="regular expression that the whole output matches")

    @property
    def has_form(self) -> bool:
        """True where a grammar decides what the output looks like."""
        return bool(self.json_schema or self.regex)

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if self.json_schema and self.regex:
            raise ValueError("json_schema and regex are two forms of one output: give one")
        # A banned repetition may be the only token that fits.
        if self.has_form and self.no_repeat_ngram:
            raise ValueError("no_repeat_ngram may forbid what json_schema or regex demands")
        return self

    def limited(self, room: int | None, usual: int = NEW_TOKENS) -> Self:
        """Return these settings with a maximum of new tokens.

        Args:
            room: most tokens that the model can add; None without a limit.
            usual: maximum if the settings have none.
        """
        if self.max_length is not None:
            return self
        usual = max(usual, self.min_length)
        return self.model_copy(update={"max_length": usual if room is None else min(usual, room)})


class GenerationOptions(SearchOptions, total=False):
    """The fields of `GenerationSettings` as keyword arguments."""

    stop: tuple[str, ...]
    cache: Literal["auto", "growing", "static", "ring"]
    json_schema: str
    regex: str


def table_length(specs: Sequence[TranslatorSpec]) -> int | None:
    """Return the number of positions of the smallest table; None without learned positions."""
    # Members of an ensemble may differ; the shortest table limits all.
    lengths = [spec.embedding.positions.max_length for spec in specs]
    return min((length for length in lengths if length is not None), default=None)


_ANY_VOCABULARY = 1000
"""Width that is allowed for any vocabulary, as toy models have a few dozen tokens."""


def check_width(specs: Sequence[CommonSpec], settings: SearchSettings) -> None:
    """Refuse a beam, or a number of samples, that no search could finish.

    Args:
        specs: specs of the models.
        settings: settings of the search.

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

    # float32 logits, and as much again for sorting or log-probabilities.
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
    """Return the most tokens that models can generate; None without learned positions.

    Raises:
        ConfigError: when the settings request more.
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
        specs: specs of the models.
        ids: token ids of the text, without special tokens.
        where: name of the text, for the error message.
        frame: number of special tokens that the model adds.

    Raises:
        DataError: when the text is too long.
    """
    table = table_length(specs)
    if table is not None and len(ids) + frame > table:
        raise DataError(
            f"{len(ids)} tokens are more than the {table - frame} the model can read",
            where=where,
            remedy="Give shorter pieces of the text",
        )
