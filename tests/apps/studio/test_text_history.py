"""Translations of a sentence over time, and the words that are new in each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.studio.text_history import changed_words, history

TEXTS = st.text("ab \u732b\n", max_size=30)


@given(TEXTS, TEXTS, st.booleans())
def test_words_make_up_the_text_and_none_is_new_against_itself(
    before: str, text: str, spaced: bool
) -> None:
    words = changed_words(before, text, spaced=spaced)
    assert "".join(word for word, _ in words) == text
    assert not any(is_new for _, is_new in changed_words(text, text, spaced=spaced))
    # Words that stayed are words of the text before, in its order.
    kept = [word.strip() or word for word, is_new in words if not is_new]
    assert len(kept) <= len(before)
    rest = iter(before)
    assert all(letter in rest for letter in "".join(kept) if letter.strip())


def test_new_words_are_marked() -> None:
    words = changed_words("Ich habe den Mann .", "Ich sah den alten Mann .")
    assert [word.strip() for word, is_new in words if is_new] == ["sah", "alten"]
    characters = changed_words(
        "\u732b\u5728", "\u732b\u4e5f\u5728", spaced=False
    )  # no spaces: by characters
    assert [word for word, is_new in characters if is_new] == ["\u4e5f"]


def sample(source: str, text: str, reference: str = "die Katze") -> dict[str, str]:
    return {"source": source, "reference": reference, "text": text}


def test_one_sentence_is_followed_through_the_runs() -> None:
    runs = {
        "one": [
            (10, [sample("the cat", "die"), sample("a dog", "ein", "ein Hund")]),
            (20, [sample("the cat", "die Katze")]),
            (30, [sample("the cat", "die Katze")]),
        ],
        "other": [(15, [sample("a dog", "Hund", "ein Hund")])],
        "none": [],
    }
    found = history(runs, 0)
    assert found["sentences"] == ["the cat", "a dog"]
    assert (found["source"], found["reference"]) == ("the cat", "die Katze")
    (one,) = found["runs"]  # the others never translated it
    assert [each["step"] for each in one["texts"]] == [10, 20, 30]
    assert [each["changed"] for each in one["texts"]] == [True, True, False]
    assert one["texts"][0]["words"] == [("die", False)]  # nothing before it to differ from
    assert one["texts"][1]["words"] == [("die ", False), ("Katze", True)]
    assert one["texts"][1]["chrf"] == 100
    assert one["texts"][0]["chrf"] < 60
    assert [run["name"] for run in history(runs, 1)["runs"]] == ["one", "other"]
    assert history(runs, 99)["source"] == "a dog"


def test_the_sentence_that_changed_most_is_found() -> None:
    runs = {
        "one": [
            (10, [sample("it", "es"), sample("the cat", "die"), sample("the black cat", "der")]),
            (20, [sample("it", "es"), sample("the cat", "eine"), sample("the black cat", "die")]),
        ]
    }
    assert history(runs, -1)["source"] == "the black cat"  # as many as "the cat", and longer


def test_without_samples_there_is_nothing() -> None:
    assert history({"one": []}, 0)["sentences"] == []
    nameless = history({"one": [(1, [sample("", "some text", "")])]}, 0)  # a language model's
    assert nameless["runs"][0]["texts"][0]["chrf"] is None
