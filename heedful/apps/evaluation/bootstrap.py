"""Paired bootstrap: the significance of a difference between two systems.

Koehn 2004, "Statistical significance tests for machine translation evaluation": repeatedly draw as
many sentences as the test set has, with replacement, and score both systems on the same draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from heedful.errors import DataError
from heedful.evaluate.corpus_metrics import (
    AUTO,
    METRIC_NAMES,
    References,
    build_metric,
    check_aligned,
    usual_spelling,
)

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Floats = npt.NDArray[np.float64]

_LOWER_IS_BETTER = ("ter", "loss")


@dataclass(frozen=True)
class Interval:
    """A score on the whole test set, with its bootstrap interval.

    Attributes:
        score: score on the test set itself.
        mean: mean over the resamples.
        low, high: quantiles of the resamples at 2.5 % and 97.5 %.
    """

    score: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedScore:
    """The comparison of two systems by one metric.

    Attributes:
        name, signature: name and signature of the metric, as in `MetricScore`.
        a, b, difference: scores of both systems, and of B minus A.
        wins: share of resamples in which B is better (for TER and loss: lower); ties count half.
        p_value: two-sided p-value: the probability of a difference at least as large as the
            observed one by the draw of sentences alone (resampled differences shifted to mean 0).
    """

    name: str
    signature: str
    a: Interval
    b: Interval
    difference: Interval
    wins: float
    p_value: float

    def plain(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return asdict(self)


def paired_bootstrap(
    system_a: Sequence[str],
    system_b: Sequence[str],
    references: References,
    metrics: Sequence[str] = METRIC_NAMES,
    *,
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = AUTO,
    lowercase: bool = False,
) -> dict[str, PairedScore]:
    """Compare the outputs of two systems for the same sentences.

    All metrics use the same resamples, which for the default seed are those of sacreBLEU's
    `--paired-bs`.

    Args:
        system_a, system_b: outputs of each system.
        references: references of the outputs, or several such lists.
        metrics: names of metrics out of `bleu`, `chrf`, `ter`.
        samples: number of resamples.
        seed: seed of the resampling.
        tokenize, lowercase: options of `corpus_scores`.

    Raises:
        DataError: when the numbers of lines differ, or there are none.
        ConfigError: on a metric or tokenizer that does not exist or is not installed.
    """
    drawn = _resampled_scores(
        (system_a, system_b), references, metrics, samples, seed, tokenize, lowercase
    )
    return {name: _compare(name, *scores) for name, scores in drawn.items()}


def score_intervals(
    hypotheses: Sequence[str],
    references: References,
    metrics: Sequence[str] = METRIC_NAMES,
    *,
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = AUTO,
    lowercase: bool = False,
) -> dict[str, Interval]:
    """Score one system, with bootstrap intervals.

    Args:
        hypotheses: outputs of the system.
        references, metrics, samples, seed, tokenize, lowercase: options of `paired_bootstrap`.

    Returns:
        For each metric the score of `corpus_scores` and its 95 % interval.

    Raises:
        DataError: when the numbers of lines differ, or there are none.
        ConfigError: on a metric or tokenizer that does not exist or is not installed.
    """
    drawn = _resampled_scores(
        (hypotheses,), references, metrics, samples, seed, tokenize, lowercase
    )
    return {
        name: _interval(float(whole[0]), each[:, 0]) for name, (_, whole, each) in drawn.items()
    }


def ratio_interval(
    sums: npt.ArrayLike, counts: npt.ArrayLike, *, samples: int = 1000, seed: int = 12345
) -> Interval:
    """Return the bootstrap interval of a sum divided by a count, such as the loss per token.

    Args:
        sums: sum of each unit that is drawn, such as a text [N].
        counts: count of each unit [N], at least one of them above 0.
        samples: number of resamples.
        seed: seed of the resampling.
    """
    totals = np.stack([np.asarray(sums, np.float64), np.asarray(counts, np.float64)])
    assert totals[1].sum() > 0, "nothing is counted"
    drawn = np.array([totals @ times for times in _resamples(totals.shape[1], samples, seed)])
    drawn = drawn[drawn[:, 1] > 0]  # a resample of empty units only has no ratio
    whole = totals.sum(1)
    return _interval(float(whole[0] / whole[1]), drawn[:, 0] / drawn[:, 1])


def paired_ratios(
    name: str,
    a: Sequence[float],
    b: Sequence[float],
    counts: Sequence[int],
    *,
    samples: int = 1000,
    seed: int = 12345,
) -> PairedScore:
    """Compare two systems by a sum divided by a count, such as the loss per token.

    Args:
        name: name of the score; a lower `loss` is better.
        a, b: sum of each sentence for both systems.
        counts: count of each sentence, such as its tokens.
        samples: number of resamples.
        seed: seed of the resampling.

    Raises:
        DataError: when there is nothing to compare.
    """
    # Aligned by sentence: a paired test has no meaning otherwise.
    assert samples > 0 and len(a) == len(b) == len(counts), (samples, len(a), len(b), len(counts))
    if not sum(counts):
        raise DataError("There is nothing to score")
    totals = np.array([a, b, counts], dtype=np.float64)
    drawn = np.array([totals @ times for times in _resamples(len(counts), samples, seed)])
    # The ratio of sums, not the mean of ratios: long sentences weigh more, as in the loss itself.
    resampled = drawn[:, :2] / np.maximum(drawn[:, 2:], 1)
    whole = totals.sum(1)
    return _compare(name, "", whole[:2] / whole[2], resampled)


def _resampled_scores(
    systems: Sequence[Sequence[str]],
    references: References,
    metrics: Sequence[str],
    samples: int,
    seed: int,
    tokenize: str,
    lowercase: bool,
) -> dict[str, tuple[str, Floats, Floats]]:
    """Score systems on the test set and on resamples of it.

    Returns:
        For each metric its signature, the scores [systems] and those of resamples
        [samples, systems].
    """
    assert samples > 0, "at least one resample"
    aligned = [check_aligned(hypotheses, references) for hypotheses in systems]
    lists = list(map(usual_spelling, aligned[0]))
    systems = [usual_spelling(hypotheses) for hypotheses in systems]
    built = {n: build_metric(n, lists, tokenize=tokenize, lowercase=lowercase) for n in metrics}
    # Metrics are computed from sums of counts over sentences, so a resample is one matmul.
    counts = {
        name: [_sentence_statistics(metric, hypotheses, lists) for hypotheses in systems]
        for name, metric in built.items()
    }
    draws = chain([np.ones(len(systems[0]))], _resamples(len(systems[0]), samples, seed))
    scores: dict[str, list[list[float]]] = {name: [] for name in built}
    for times_drawn in draws:
        for name, metric in built.items():
            scores[name].append([_score(metric, times_drawn @ each) for each in counts[name]])
    tables = {name: np.array(rows) for name, rows in scores.items()}
    return {n: (str(built[n].get_signature()), each[0], each[1:]) for n, each in tables.items()}


def _sentence_statistics(
    metric: Metric, hypotheses: Sequence[str], references: list[list[str]]
) -> Floats:
    """Return the additive counts from which a metric is computed [sentences, counts].

    sacreBLEU's own significance tests use a metric by this private method and the one in `_score`;
    the public methods return finished scores, which cannot be summed.
    """
    return np.array(metric._extract_corpus_statistics(hypotheses, references), dtype=np.float64)


def _score(metric: Metric, totals: Floats) -> float:
    return float(metric._compute_score_from_stats(totals.tolist()).score)


def _resamples(sentences: int, samples: int, seed: int) -> Iterator[Floats]:
    """Yield the number of draws of each sentence [sentences] for each resample."""
    generator = np.random.default_rng(seed)
    for _ in range(samples):
        # The same generator and call as in sacreBLEU, so that the draws are the same.
        drawn = generator.choice(sentences, size=sentences, replace=True)
        yield np.bincount(drawn, minlength=sentences).astype(np.float64)


def _compare(name: str, signature: str, scores: Floats, resampled: Floats) -> PairedScore:
    a, b = map(float, scores)
    scores_a, scores_b = resampled[:, 0], resampled[:, 1]
    differences = scores_b - scores_a
    observed = b - a
    better = np.sign(-differences if name in _LOWER_IS_BETTER else differences)
    # The distribution under the null hypothesis: the same spread around no difference.
    by_chance = np.abs(differences - differences.mean())
    # The observed difference counts as one of the draws: p can never be 0 (Davison 1997, 4.2).
    # A rounding error must not turn "equally large" into "smaller".
    as_large = int(np.sum(by_chance >= abs(observed) - 1e-9))
    return PairedScore(
        name=name,
        signature=signature,
        a=_interval(a, scores_a),
        b=_interval(b, scores_b),
        difference=_interval(observed, differences),
        wins=float(np.mean((better + 1) / 2)),
        p_value=(as_large + 1) / (len(differences) + 1),
    )


def _interval(score: float, resampled: Floats) -> Interval:
    # The percentile method; 1,000 resamples leave 25 on each side.
    low, high = np.quantile(resampled, (0.025, 0.975))
    return Interval(score, float(resampled.mean()), float(low), float(high))
