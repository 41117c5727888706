"""Accuracy and macro-F1 by hand."""

from __future__ import annotations

import pytest

from heedful.evaluate.classification import accuracy, macro_f1


def test_figures_worked_out_by_hand() -> None:
    given, right = [0, 0, 1, 1, 2], [0, 1, 1, 1, 0]
    assert accuracy(given, right) == 3 / 5
    # 0: one of two given, one of two right; 1: two of two given, of three right; 2: never right.
    assert macro_f1(given, right) == pytest.approx((2 / 4 + 4 / 5 + 0) / 3)


def test_a_rare_label_counts_as_much_as_a_common_one() -> None:
    right = [0] * 99 + [1]
    assert accuracy([0] * 100, right) == 0.99
    assert macro_f1([0] * 100, right) == pytest.approx((198 / 199) / 2)
    assert macro_f1(right, right) == 1
