"""Quality by the length of the source, which shows systems that fail on long sentences.

Bahdanau 2015 (figure 2) showed with such curves that a translator with a fixed-size context vector
fails on long sentences.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from heedful.apps.evaluation.bootstrap import Interval, score_intervals
from heedful.errors import ConfigError, DataError
from heedful.evaluate.corpus_metrics import AUTO, METRIC_NAMES, References, check_aligned

LENGTH_BINS = (5, 10, 15, 20, 30, 40, 60)
"""Maximum number of words of a source in each bin except the last, which has no upper bound."""


@dataclass(frozen=True)
class LengthBin:
    """The sentences whose sources have similar lengths.

    Attributes:
        low: minimum number of words of a source.
        high: maximum number of words of a source; None for the last bin.
        sentences: number of sentences.
        scores: score of each metric; empty for an empty bin.
    """

    low: int
    high: int | None
    sentences: int
    scores: Mapping[str, Interval]

    @property
    def label(self) -> str:
        """Range of lengths in words, such as `up to 5`, `6–10` or `61+`."""
        if self.low == 0:
            return f"up to {self.high}"
        if self.high is None:
            return f"{self.low}+"
        return f"{self.low}–{self.high}" if self.low < self.high else str(self.high)

    def plain(self) -> dict[str, Any]:
        """Return the bin as JSON data."""
        return asdict(self)


def check_bounds(bounds: Sequence[int]) -> None:
    """Refuse bounds that are not positive and ascending.

    Raises:
        ConfigError: when the bounds are refused.
    """
    if not bounds or bounds[0] < 1 or any(a >= b for a, b in pairwise(bounds)):
        raise ConfigError(
            f"Bins end at ascending numbers from 1 on, not at {' '.join(map(str, bounds))}",
            where="length bins",
            remedy="Give numbers such as 10 20 30",
        )


def bin_members(sources: Sequence[str], bounds: Sequence[int]) -> list[list[int]]:
    """Return the indices of the sentences of each bin; every sentence is in exactly one bin.

    Args:
        sources: source texts, with words separated by white space.
        bounds: maximum number of words of each bin except the last.
    """
    members: list[list[int]] = [[] for _ in range(len(bounds) + 1)]
    for number, source in enumerate(sources):
        # `bisect_left`, since a bound belongs to the bin that it closes.
        members[bisect_left(bounds, len(source.split()))].append(number)
    return members


def scores_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    metrics: Sequence[str] = METRIC_NAMES,
    *,
    bounds: Sequence[int] = LENGTH_BINS,
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = AUTO,
    lowercase: bool = False,
) -> list[LengthBin]:
    """Score a system on short and on long sources.

    Args:
        sources: translated texts, with words separated by white space.
        hypotheses: translations of the sources.
        references: reference translations, or several lists of them.
        metrics: names of metrics out of `bleu`, `chrf`, `ter`.
        bounds: maximum number of words of each bin except the last.
        samples, seed: resamples and seed of the bootstrap within each bin.
        tokenize, lowercase: options of `corpus_scores`.

    Returns:
        All bins in ascending order, including empty bins. The first bin begins at 0 words.

    Raises:
        DataError: when the numbers of lines differ, or there are none.
        ConfigError: when the bounds do not ascend, or on an unknown metric or tokenizer.
    """
    check_bounds(bounds)
    lists = check_aligned(hypotheses, references)
    if len(sources) != len(hypotheses):
        raise DataError(
            f"There are {len(sources)} sources for {len(hypotheses)} translations",
            remedy="Give files that correspond line by line",
        )
    bins = []
    lows, highs = [0, *(bound + 1 for bound in bounds)], [*bounds, None]
    for low, high, members in zip(lows, highs, bin_members(sources, bounds), strict=True):
        scores: dict[str, Interval] = {}
        if members:  # metrics are not defined for an empty list
            scores = score_intervals(
                [hypotheses[number] for number in members],
                [[lines[number] for number in members] for lines in lists],
                metrics,
                samples=samples,
                seed=seed,
                tokenize=tokenize,
                lowercase=lowercase,
            )
        # Empty bins are kept, so that the curves of two systems have the same points.
        bins.append(LengthBin(low, high, len(members), scores))
    return bins
