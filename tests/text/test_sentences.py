"""Sentences of a text: none lost, and cut where each language ends them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.text.sentences import (
    count_sentences,
    learned_reading,
    sentence_pieces,
    sentence_spans,
)

MARKS = "a BÉ.!?…\u00a0\u2003\u3000。！」』”\"'1)\u200b።។།\n\t😀“「とé"


def sentences(text: str, language: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text, language)]


@given(st.text(MARKS, max_size=40) | st.text(max_size=40), st.sampled_from(["en", "de", "ja", "x"]))
@settings(max_examples=500)
def test_every_character_but_space_is_in_one_sentence(text: str, language: str) -> None:
    spans = list(sentence_spans(text, language))
    assert all(a < b <= c < d for (a, b), (c, d) in itertools.pairwise(spans))
    assert all(text[a:b] == text[a:b].strip() for a, b in spans)
    assert "".join("".join(text[a:b] for a, b in spans).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ["Tom lives in Boston.", "You should go home!", "Is it raining?"]),
        ("en", ["Mr. and Mrs. Smith live at 5 Main St. in Boston.", "They have a dog."]),
        ("en", ['"Really?" he asked.', "It cost $3.50.", "Yahoo! is big."]),
        ("en", ["1. Open the door.", "2. Close it."]),
        ("en", ["i am tired.", "you are here!", "it rains, e.g. today."]),
        ("en", ["She saw me.", "I said no.", "So do I.", "Tom is ill.", '"Go."']),
        ("en", ["See no. 5 by I. Newton.", "It is OK."]),
        ("de", ["Er sieht mich.", "Wen sie mag.", "Gut."]),
        ("de", ["Das kostet z. B. 3 Euro.", "Er ist am 3. Mai geboren.", "Gut."]),
        ("fr", ["C’est M. Dupont.", "Il a dit : « Non. »", "Puis il est parti."]),
        ("es", ["¿Qué hora es?", "¡Son las dos!"]),
        ("ru", ["Он жил в г. Москве.", "Идёт дождь."]),
        ("hi", ["वह घर गया।", "मैं आया।"]),
        ("ar", ["هل أنت بخير؟", "نعم."]),
        ("ko", ["나는 간다.", "너는 온다."]),
        ("lo", ["ຂ້ອຍໄປ.", "ເຈົ້າມາ."]),
    ],
)
def test_sentences_between_spaces(language: str, expected: list[str]) -> None:
    assert sentences(" ".join(expected), language) == expected


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("zh", ["汤姆住在波士顿。", "你应该回家！", "下雨了吗？"]),
        ("ja", ["「はい。」と言った。", "雨です。"]),
        ("km", ["ខ្ញុំទៅផ្ទះ។", "អ្នកទៅណា។"]),
        ("my", ["သူသွားတယ်။", "ကျွန်တော်လာတယ်။"]),
        ("bo", ["བོད་ཡིག།", "བོད་སྐད།"]),
    ],
)
def test_sentences_without_spaces_between(language: str, expected: list[str]) -> None:
    assert sentences("".join(expected), language) == expected


def test_a_corpus_of_sentences_teaches_sentences_and_one_of_paragraphs_lines() -> None:
    single = learned_reading(["One.", "", "Two. Three."] + ["Four."] * 8, "en")
    assert (single.split, single.sentences) == ("sentences", 1.1)
    paragraphs = learned_reading(["One. Two. Three.", "Four. Five."], "de")
    assert (paragraphs.split, paragraphs.language) == ("lines", "de")
    assert learned_reading([]).split == "sentences"
    assert learned_reading(["8/13/99", "₹5", "May 5", " "]).letterless == 0.6667


def test_a_long_text_is_cut_as_a_short_one() -> None:
    """The library reads a window at a time."""
    text = "Tom said that it would rain for " + "very " * 30 + "long. Was he right? "
    once = sentences(text, "en")
    assert sentences(text * 60, "en") == once * 60
    assert len(sentences("a" * 5000 + ". " + text, "en")) == 1 + len(once)


def test_sentences_of_all_lines_are_counted() -> None:
    assert count_sentences("One. Two.\n\nThree") == 3


def test_marks_of_direction_stay_with_their_sentence() -> None:
    first, second = "\u2067שלום (A-1) 12:30!\u2069\u200f", "\u200fמה שלומך?"
    assert [piece.text for piece in sentence_pieces(f"{first} {second}", "he")] == [
        f"{first} ",
        second,
    ]
