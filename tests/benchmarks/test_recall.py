"""Texts of the benchmark of copying and recall: every answer follows from what was told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import recall


@given(st.integers(1, 40), st.integers(0, 99))
def test_copies_repeat_what_was_said(n: int, seed: int) -> None:
    ids, answers = recall.texts("copy", n, 3, torch.Generator().manual_seed(seed))
    for row, asked in zip(ids.tolist(), answers.tolist(), strict=True):
        assert [token for token, is_answer in zip(row, asked, strict=True) if is_answer] == row[:n]
        assert row.count(2 * recall.SYMBOLS) == 1


@given(st.integers(1, recall.SYMBOLS), st.integers(0, 99))
def test_values_are_those_that_stood_beside_the_keys(n: int, seed: int) -> None:
    ids, answers = recall.texts("recall", n, 3, torch.Generator().manual_seed(seed))
    for row, asked in zip(ids.tolist(), answers.tolist(), strict=True):
        told = dict(zip(row[: 2 * n : 2], row[1 : 2 * n : 2], strict=True))
        assert len(told) == n
        places = [place for place, is_answer in enumerate(asked) if is_answer]
        assert len(places) == n
        assert all(row[place] == told[row[place - 1]] for place in places)


@pytest.mark.parametrize("task", [*recall.TRAINED])
def test_a_run_says_the_share_of_right_answers(task: str) -> None:
    found = recall.learn("window", task, seed=1, steps=2)
    assert set(found["right"]) == set(map(str, recall.READ[task]))
    assert all(0.0 <= share < 0.2 for share in found["right"].values())  # nothing was learned yet
