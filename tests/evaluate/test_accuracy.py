"""Exact match and the numbers made of log-probabilities."""

from __future__ import annotations

import math

import pytest

from heedful.errors import DataError
from heedful.evaluate.accuracy import exact_match
from heedful.evaluate.perplexity import bits_per_unit, perplexity


def test_exact_match_is_to_the_last_character() -> None:
    assert exact_match(["a b", "a\u00a0b", "C", ""], ["a b", "a b", "c", ""]) == 0.5
    assert exact_match(["a"], ["a"]) == 1.0
    with pytest.raises(DataError, match="1 lines to score, but the reference has 2"):
        exact_match(["a"], ["a", "b"])
    with pytest.raises(DataError, match="nothing to score"):
        exact_match([], [])


def test_perplexity_of_a_fair_choice_is_its_size() -> None:
    assert perplexity(10 * math.log(7), 10) == pytest.approx(7)
    assert perplexity(0.0, 3) == 1.0
    assert perplexity(1e6, 1) == math.inf


def test_bits() -> None:
    # eight characters, each one of four equally likely: two bits each
    assert bits_per_unit(8 * math.log(4), 8) == pytest.approx(2)
