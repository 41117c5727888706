"""Mean over a few seeds with its confidence interval by Student's t-distribution (Student 1908)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heedful.apps.evaluation.bootstrap import Interval

_COVERED = 0.95


def student_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent measurements with its 95 % confidence interval.

    Args:
        values: measurement of each seed; the interval of a single one is the value itself.
    """
    assert values, "nothing was measured"
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, mean, mean, mean)
    # Divided by n - 1, since the mean comes from the same values.
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = student_quantile(count - 1) * math.sqrt(variance / count)
    return Interval(mean, mean, mean - half, mean + half)


def student_quantile(freedom: int, covered: float = _COVERED) -> float:
    """Return t such that a variable of Student's t-distribution lies within ±t with a probability.

    Args:
        freedom: degrees of freedom, at least 1.
        covered: probability of the range.
    """
    low, high = 0.0, 2.0
    # With few degrees of freedom quantiles are large (12.7 for one), so the bracket is searched.
    while _coverage(high, freedom) < covered:
        high *= 2
    for _ in range(100):  # bisection to the precision of a float
        middle = (low + high) / 2
        low, high = (middle, high) if _coverage(middle, freedom) < covered else (low, middle)
    return high


def _coverage(t: float, freedom: int) -> float:
    """Return the probability of ±t by a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    total, term = 0.0, cosine if odd else 1.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
