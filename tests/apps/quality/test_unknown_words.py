"""Words that a tokenizer cannot spell, and names that stand for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import heedful
from heedful.apps.quality.unknown_words import NAMES, stand_ins, unknown_words
from heedful.text.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return heedful.load("en-de", device="cpu").tokenizers.source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I met 王小明 in Zürich.", ["王小明"]),
        ("He reads Лев Толстой's book, Анна.", ["Лев Толстой", "Анна"]),
        ("Jean-Łukasz and (Łódź)!", ["Jean-Łukasz", "Łódź"]),
        ("नमस्ते दुनिया, she said", ["नमस्ते दुनिया"]),
        ("on小明on", ["小明"]),
        ("I am happy 😀 → you", []),
        ("plain", []),
        ("", []),
    ],
)
def test_words_with_unknown_characters(tokenizer, text, expected):
    assert [text[a:b] for a, b in unknown_words(text, tokenizer)] == expected


@given(st.text(st.sampled_from("ab 王Дé-.'😀3\u0301"), max_size=15))
def test_all_unknown_letters_are_in_a_place_and_places_are_apart(tokenizer, text):
    done = -1
    inside = set()
    for start, end in unknown_words(text, tokenizer):
        assert done < start < end
        assert not text[start].isspace()
        inside.update(range(start, end))
        done = end
    for place, character in enumerate(text):
        if character in "王Д":
            assert place in inside


def test_names_are_not_in_the_text_and_can_be_spelled(tokenizer):
    found = stand_ins("TOM and Annabel", [tokenizer])
    assert sorted(found) == sorted(set(NAMES) - {"Tom", "Anna"})
    lengths = [len(tokenizer.encode(name)) for name in found]
    assert lengths == sorted(lengths)

    class Strange:
        unk = 0

        def encode(self, text):
            return [0] if text == "Maria" else [1]

    assert "Maria" not in stand_ins("", [tokenizer, Strange()])
