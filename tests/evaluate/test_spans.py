"""Spans that tags mark, and their F1, against examples worked by hand."""

from __future__ import annotations

import pytest

from heedful.evaluate.spans import mark_spans, span_f1, spans_of


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
