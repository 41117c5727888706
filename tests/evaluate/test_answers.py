"""SQuAD's two metrics, against examples worked by hand from their definition."""

from __future__ import annotations

import pytest

from heedful.evaluate.answers import exact_match, normalized, word_f1


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
    assert normalized(text) == expected


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
    assert exact_match([given], [right]) == exact
    assert word_f1([given], [right]) == pytest.approx(f1)


def test_the_mean_over_questions():
    given, right = ["cat", "black cat", "", "x"], [["cat"], ["cat"], [], ["y"]]
    assert exact_match(given, right) == 2 / 4
    assert word_f1(given, right) == pytest.approx((1 + 2 / 3 + 1 + 0) / 4)
