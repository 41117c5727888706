"""The mean over a few seeds, and how far the mean of all seeds may lie from it (Student 1908)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heedful.evaluate.bootstrap import Interval

_COVERED = 0.95


def student_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent measurements with its 95 % confidence interval.

    Args:
        values: one for each seed; of a single one the interval is as wide as nothing is known: the
            value itself.
    """
    assert values, "nothing was measured"
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, mean, mean, mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = student_quantile(count - 1) * math.sqrt(variance / count)
    return Interval(mean, mean, mean - half, mean + half)


def student_quantile(freedom: int, covered: float = _COVERED) -> float:
    """Return t such that a variable of Student's distribution lies within ±t this often.

    Args:
        freedom: degrees of freedom, at least 1.
        covered: probability of lying within.
    """
    low, high = 0.0, 2.0
    while _within(high, freedom) < covered:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < covered else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability of lying within ±t: a finite sum (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    total, term = 0.0, cosine if odd else 1.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
