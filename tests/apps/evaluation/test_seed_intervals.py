"""Means over seeds, against numbers from printed tables of Student's distribution."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.evaluation.seed_intervals import student_interval, student_quantile


@pytest.mark.parametrize(
    ("freedom", "covered", "t"),
    [(1, 0.95, 12.706), (2, 0.95, 4.303), (3, 0.95, 3.182), (4, 0.95, 2.776), (9, 0.95, 2.262),
     (30, 0.95, 2.042), (1, 0.9, 6.314), (2, 0.99, 9.925), (5, 0.99, 4.032)],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(freedom: int, covered: float, t: float) -> None:
    assert student_quantile(freedom, covered) == pytest.approx(t, abs=6e-4)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=6))
def test_the_interval_stands_around_the_mean(values: list[float]) -> None:
    found = student_interval(values)
    assert found.score == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert found.high - found.score == pytest.approx(found.score - found.low, abs=1e-9)


def test_it_covers_the_mean_as_often_as_it_says() -> None:
    draws = np.random.default_rng(1).normal(3, 2, (4000, 3))
    found = [student_interval(row) for row in draws.tolist()]
    assert np.mean([each.low <= 3 <= each.high for each in found]) == pytest.approx(0.95, abs=0.012)


def test_one_seed_has_no_interval() -> None:
    found = student_interval([2.5])
    assert (found.low, found.score, found.high) == (2.5, 2.5, 2.5)
