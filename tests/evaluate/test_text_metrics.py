"""Metrics of summaries, answers and named entities that a model writes."""

from __future__ import annotations

import sys

import pytest

from heedful.apps.evaluation.bootstrap import score_intervals
from heedful.errors import ConfigError
from heedful.evaluate import text_metrics
from heedful.evaluate.corpus_metrics import corpus_scores


def score(metric: str, outputs: list[str], *references: list[str]) -> float:
    return corpus_scores(outputs, references, (metric,))[metric].score


def test_rouge_by_hand():
    pytest.importorskip("rouge_score")
    # Stems: cats is cat. Words in common: cat, on, the, mat of five and of six.
    output, reference = ["cats sat on the mat"], ["a cat was on the mat"]
    assert score("rouge1", output, reference) == pytest.approx(200 * 4 / 11)
    assert score("rouge2", output, reference) == pytest.approx(200 * 2 / 9)
    assert score("rougeL", ["the mat on cats"], reference) == pytest.approx(200 * 2 / 10)


def test_rouge_takes_the_nearest_reference_and_no_empty_one():
    pytest.importorskip("rouge_score")
    outputs = ["a b", "c d"]
    assert score("rouge1", outputs, ["x", "c x"], ["a b", ""]) == pytest.approx(75)


def test_rouge_without_its_library_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    text_metrics._rouge_scorer.cache_clear()
    with pytest.raises(ConfigError, match="rouge-score"):
        score("rouge1", ["a"], ["a"])


def test_a_wrong_name_is_met_with_the_nearest():
    with pytest.raises(ConfigError, match="rouge1, rouge2") as caught:
        score("rouge_l", ["a"], ["a"])
    assert "rougeL" in caught.value.remedy


def test_answers_are_compared_as_by_squad():
    outputs, right, other = ["The Cat.", "dogs"], ["cat", "two dogs"], ["cats", "a dog"]
    assert score("answer_exact", outputs, right, other) == 50
    assert score("answer_f1", outputs, right, other) == pytest.approx(100 * (1 + 2 / 3) / 2)


def test_an_empty_line_of_a_further_file_is_no_answer():
    assert score("answer_exact", ["", ""], ["cat", ""], ["", ""]) == 50


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("person: Ada Lovelace ; location: London", 100.0),
        ("location: London ; person: Ada  Lovelace", 100.0),  # in any order
        ("person: Ada ; location: London", 50.0),
        ("person: Ada Lovelace ; person: London", 50.0),  # of the wrong kind
        ("location: London ; location: London", 50.0),  # twice is right once
        ("none", 0.0),
    ],
)
def test_entities(output, expected):
    assert score("entity_f1", [output], ["person: Ada Lovelace ; location: London"]) == expected


def test_entities_are_counted_over_all_texts():
    outputs, right = ["none", "a: b", "a: c"], ["none", "a: b", "a: d ; a: e"]
    assert score("entity_f1", outputs, right) == pytest.approx(200 * 1 / 5)
    assert score("entity_f1", ["none"], ["none"]) == 100
    interval = score_intervals(outputs, right, ("entity_f1",), samples=50)["entity_f1"]
    assert interval.low <= 40 <= interval.high
