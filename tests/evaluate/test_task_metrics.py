"""Metrics of classifiers, taggers and readers, against figures worked out by hand."""

from __future__ import annotations

import pytest

from heedful.evaluate.task_metrics import (
    accuracy,
    answer_exact_match,
    answer_f1,
    macro_f1,
    mark_spans,
    normalized_answer,
    span_f1,
    spans_of,
    word_error_rate,
)


def test_figures_worked_out_by_hand() -> None:
    given, right = [0, 0, 1, 1, 2], [0, 1, 1, 1, 0]
    assert accuracy(given, right) == 3 / 5
    # 0: one of two given, one of two right; 1: two of two given, of three right; 2: never right.
    assert macro_f1(given, right) == pytest.approx((2 / 4 + 4 / 5 + 0) / 3)


@pytest.mark.parametrize(
    ("given", "right", "errors"),
    [
        (["two nine five"], ["two nine five"], 0 / 3),
        (["two five"], ["two nine five"], 1 / 3),  # left out
        (["two nine nine five"], ["two nine five"], 1 / 3),  # added
        (["nine five two"], ["two nine five"], 2 / 3),  # moved: left out and added
        (["", "one two"], ["one", "one one one"], (1 + 2) / 4),  # by all words, not by texts
        (["one two three"], ["four"], 3 / 1),  # more errors than words
    ],
)
def test_word_errors_worked_out_by_hand(given: list[str], right: list[str], errors: float) -> None:
    assert word_error_rate(given, right) == pytest.approx(errors)


def test_a_rare_label_counts_as_much_as_a_common_one() -> None:
    right = [0] * 99 + [1]
    assert accuracy([0] * 100, right) == 0.99
    assert macro_f1([0] * 100, right) == pytest.approx((198 / 199) / 2)
    assert macro_f1(right, right) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's\tmat.", "cats mat"),
        ("an apple a day", "apple day"),
        ("theory, anagram", "theory anagram"),  # articles are whole words
        ("a-b", "ab"),  # punctuation goes first, so the article is no word of its own
        ("The", ""),
        ("5–6 °C", "5–6 °c"),  # other than ASCII punctuation stays
    ],
)
def test_normalized(text, expected):
    assert normalized_answer(text) == expected


@pytest.mark.parametrize(
    ("given", "right", "exact", "f1"),
    [
        ("the cat", ["Cat!"], 1, 1),
        ("black cat", ["the cat"], 0, 2 / 3),  # 1 of 2 and 1 of 1
        ("cat cat dog", ["cat dog dog"], 0, 2 / 3),  # shared: cat once, dog once
        ("on the mat", ["under it", "mat"], 0, 2 / 3),  # the nearest counts
        ("it", ["under it", "it"], 1, 1),
        ("dog", ["cat"], 0, 0),
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", [], 1, 1),
        ("the", ["a cat"], 0, 0),
    ],
)
def test_one_question(given, right, exact, f1):
    assert answer_exact_match([given], [right]) == exact
    assert answer_f1([given], [right]) == pytest.approx(f1)


def test_the_mean_over_questions():
    given, right = ["cat", "black cat", "", "x"], [["cat"], ["cat"], [], ["y"]]
    assert answer_exact_match(given, right) == 2 / 4
    assert answer_f1(given, right) == pytest.approx((1 + 2 / 3 + 1 + 0) / 4)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-A", [(0, 1, "A")]),
        ("B-A I-A O B-B", [(0, 2, "A"), (3, 4, "B")]),
        ("B-A B-A I-A", [(0, 1, "A"), (1, 3, "A")]),  # two of a kind side by side
        ("B-A I-B I-B", [(0, 1, "A"), (1, 3, "B")]),  # an I of another kind begins
        ("I-A I-A O I-A", [(0, 2, "A"), (3, 4, "A")]),  # without a B
        ("O B-A-B I-A-B", [(1, 3, "A-B")]),
        ("B-A O I-A", [(0, 1, "A"), (2, 3, "A")]),
    ],
)
def test_spans_of_tags(tags, expected):
    assert spans_of(tags.split()) == expected


def test_a_word_without_a_tag_is_outside():
    assert spans_of(["B-A", None, "I-A"]) == [(0, 1, "A"), (2, 3, "A")]


def test_f1_by_hand():
    right = [["B-A", "I-A", "O", "B-B"], ["O", "B-A"]]
    given = [["B-A", "I-A", "O", "B-A"], ["B-A", "B-A"]]
    # 3 to be found, 4 given, 2 of them right: precision 2/4, recall 2/3, F1 4/7
    assert span_f1(given, right) == pytest.approx(4 / 7)
    assert span_f1(right, right) == 1.0
    assert span_f1([["O"] * 4, ["O"] * 2], right) == 0.0
    assert span_f1([["B-A", "O", "O", "B-B"], ["O", "O"]], right) == pytest.approx(2 / 5)
    assert span_f1([["O"]], [["O"]]) == 1.0
    # where a span stands counts, and in which sentence
    assert span_f1([["B-A", "O"], ["O", "O"]], [["O", "O"], ["B-A", "O"]]) == 0.0


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["O", "B-A", "I-A"], True),
        (["B-A"], True),
        (["O"], False),
        (["O", "B-"], False),
        (["NN", "O"], False),
        (["O", "B-A", "E-A"], False),
        ([], False),
    ],
)
def test_which_tags_mark_spans(tags, expected):
    assert mark_spans(tags) is expected
