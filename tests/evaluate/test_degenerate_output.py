"""Empty and repeated translations are named; what references do as well is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.evaluate.corpus_metrics import describe_degenerate, repeats_itself

CAPTIONS = [f"Ein Mann {verb} auf dem Platz." for verb in "abcdefghijkl"]


@pytest.mark.parametrize(
    "text",
    [
        "Ein Mann mit mit einem einem einem.",
        "in der in der in der in der",
        "und ein Mann und ein Mann und ein Mann",
        "的的的的的的的的的的的的的的",
        "Terrerrerrerrerrerrerrer",
    ],
)
def test_repetition(text: str) -> None:
    assert repeats_itself(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Nein, nein!",
        "Der Hund, der der Katze folgt, ist braun.",
        "一个骑自行车的男人在街上",
        "Donaudampfschifffahrtsgesellschaft",
        "1,000,000,000",
    ],
)
def test_no_repetition(text: str) -> None:
    assert not repeats_itself(text)


def test_what_is_said() -> None:
    sources = CAPTIONS
    assert describe_degenerate([""] * 12, sources) == "12 of 12 translations are empty"
    # Empty sources have empty translations.
    assert describe_degenerate(["", "Ein Hund"], ["", "A dog"]) is None
    repeated = describe_degenerate(["mit mit mit mit"] * 12, sources)
    assert repeated == '12 of 12 translations repeat words, such as "mit mit mit mit"'
    same = describe_degenerate(["Ein Mann in einem Hemd"] * 12, sources)
    assert same == '12 of 12 translations are the same: "Ein Mann in einem Hemd"'


@given(st.lists(st.text("ab ", max_size=12), max_size=15))
def test_references_are_never_degenerate(texts: list[str]) -> None:
    """Toy tasks and lists of one word are as they should be."""
    assert describe_degenerate(texts, ["a"] * len(texts), texts) is None


@given(st.integers(1, 40), st.data())
def test_most_is_more_than_half(count: int, data: st.DataObject) -> None:
    empty = data.draw(st.integers(0, count))
    texts = [""] * empty + [f"Satz {number}" for number in range(count - empty)]
    sources = [str(number) for number in range(count)]
    found = describe_degenerate(texts, sources)
    assert (found is not None) == (2 * empty > count)
