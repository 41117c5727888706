"""Long texts in pieces: nothing lost, cut where it hurts least."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.pipelines.long_texts import split_text
from heedful.pipelines.text_splitting import join_pieces, units
from heedful.text.pretokenization import TextPiece
from heedful.text.tokenizer_pair import Reading

ALPHABET = "ab D.,!? \t\u3000。、漢字é\u0301ก😀\"'9"


def words(texts):
    return [len(text.split()) for text in texts]


def characters(texts):
    return [len(text) for text in texts]


@given(text=st.text(ALPHABET, max_size=120) | st.text(max_size=80), limit=st.integers(1, 12))
@settings(max_examples=300)
def test_pieces_are_the_text_and_short_enough(text, limit):
    for measure in (characters, words):
        pieces = split_text(text, limit, measure)
        assert "".join(piece.text for piece in pieces) == text
        counts = measure([piece.text.strip() for piece in pieces])
        assert all(
            count <= limit or len(piece.text) == 1
            for count, piece in zip(counts, pieces, strict=True)
        )


@given(text=st.text(ALPHABET, max_size=120), limit=st.integers(1, 12))
@settings(max_examples=100)
def test_joining_loses_nothing_but_space(text, limit):
    pieces = split_text(text, limit, characters)
    joined = join_pieces(pieces, [piece.text for piece in pieces])
    assert "".join(joined.split()) == "".join(text.split())


def cut(text, limit=6, measure=words):
    return [piece.text for piece in split_text(text, limit, measure)]


def test_sentences_come_first():
    text = 'He came at 3.5 p.m. to us. "Why?" She asked Dr. Smith and J. Doe. Then, 9 left! ok then'
    assert cut(text, 9) == [
        "He came at 3.5 p.m. to us. ",
        '"Why?" ',
        "She asked Dr. Smith and J. Doe. ",
        "Then, 9 left! ok then",
    ]


def test_scripts_without_spaces():
    assert cut("今日は晴れ。明日は雨！本当？「はい。」さて", 8, characters) == [
        "今日は晴れ。",
        "明日は雨！",
        "本当？",
        "「はい。」",
        "さて",
    ]
    assert cut("東京、京都、大阪、神戸", 6, characters) == ["東京、京都、", "大阪、神戸"]


def test_then_clauses_then_words_then_characters():
    assert cut("one two three, four five six, seven eight") == [
        "one two three, ",
        "four five six, seven eight",
    ]
    assert cut("a b c d e f g h") == ["a b c d ", "e f g h"]
    assert cut("aaa bbbbb cccc", 6, characters) == ["aaa ", "bbbbb ", "cccc"]
    assert cut("abcdefgh", 3, characters) == ["ab", "cd", "ef", "gh"]


def test_short_text_is_left_alone():
    assert cut("One. Two. Three.") == ["One. Two. Three."]
    assert cut("") == [""]


SENTENCES = {
    "zh": ["他说：“好。”", "“走吧！”", "用 Python。"],
    "ja": ["今日は晴れです。", "「行こう！」", "はい。"],
    "th": ["วันนี้อากาศดี", "ไปกันเถอะ", "ครับ"],
    "ko": ["날씨가 좋습니다.", "갑시다!", "네."],
    "km": ["អាកាសធាតុល្អ។", "តោះទៅ!", "បាទ។"],
    "lo": ["ອາກາດດີ.", "ໄປກັນເທາະ!", "ແມ່ນ."],
    "my": ["ရာသီဥတု ကောင်းတယ်။", "သွားကြရအောင်။", "ဟုတ်ကဲ့။"],
    "ar": ["الطقس جميل.", "«هيا بنا!»", "نعم، 12:30."],
    "he": ["מזג האוויר טוב.", "קדימה!", "\u200fכן, (A-1) 12:30!"],
    "fa": ["هوا خوب است.", "می\u200cروم!", "بله، ۱۲٫۵."],
}


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_are_joined_by_the_script_of_the_target(language):
    sentences = SENTENCES[language]
    gap = "" if language in ("zh", "ja") else " "
    english = ["It is fine today.", "Let us go!", "Yes."]
    for gaps in (" ", "\t"):
        pieces = units(gaps.join(english), Reading("sentences", "en"))
        assert join_pieces(pieces, sentences) == gap.join(sentences)
    pieces = [TextPiece(sentence + gap) for sentence in sentences]
    assert join_pieces(pieces, english) == " ".join(english)
    assert join_pieces(pieces, sentences) == gap.join(sentences)


def test_joining_puts_spaces_where_they_belong():
    pieces = split_text("One two. Three four.", 3, words)
    assert join_pieces(pieces, ["Eins zwei.", " Drei vier. "]) == "Eins zwei. Drei vier."
    assert join_pieces(pieces, ["一二。", "三四。"]) == "一二。三四。"
    assert join_pieces(pieces, ["", "Drei."]) == "Drei."
    word = split_text("abcdef", 3, characters)
    assert join_pieces(word, ["uvw", "xyz"]) == "uvwxyz"
    spaceless = split_text("漢字漢字", 2, characters)
    assert join_pieces(spaceless, ["Chinese", "letters"]) == "Chinese letters"


def test_time_is_bounded():
    started = time.process_time()
    for unit in ("a", "a ", ".", ". ", "a. ", "。", "、", '."', " ", "a, b "):
        text = unit * (200_000 // len(unit))
        assert "".join(piece.text for piece in split_text(text, 100, characters)) == text
    assert time.process_time() - started < 8
