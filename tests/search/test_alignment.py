"""From attention between tokens to words and pictures."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.search.alignment import (
    Alignment,
    align,
    display_width,
    draw_alignment,
    join_alignments,
    token_words,
)
from heedful.text.pretokenization import is_spaceless, word_spans
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

TEXTS = ["a small house, by the lake.", "houses by the small lakes", "今日は晴れ。", "déjà 12.50 €"]


@pytest.fixture(scope="module", params=["bpe", "byte-bpe", "unigram", "characters"])
def tokenizer(request):
    size = 330 if request.param == "byte-bpe" else 70
    return train_tokenizer(TokenizerSpec(kind=request.param, vocabulary_size=size), TEXTS * 4)


def words(text):
    return [text[start:end] for start, end in word_spans(text)]


def test_words_with_and_without_spaces():
    assert words(" One  two,\tthree ") == ["One", "two,", "three"]
    assert words("今日は OK。") == ["今", "日", "は", "OK", "。"]
    assert words("한국어 단어") == ["한국어", "단어"]
    assert words("กำ") == ["กำ"] or words("กั") == ["กั"]
    assert words("") == []


@given(st.text(max_size=40))
@settings(max_examples=100)
def test_words_hold_all_but_space(text):
    assert "".join(words(text)) == "".join(text.split())
    assert is_spaceless("漢")
    assert not is_spaceless("a")


def test_every_token_belongs_to_the_word_it_is_part_of(tokenizer):
    for text in TEXTS:
        ids = tokenizer.encode(text)
        found, word_of = token_words(tokenizer, ids, text)
        assert "".join(found) == "".join(text.split())
        assert found == words(text) or is_spaceless(text[0])
        assert len(word_of) == len(ids)
        assert word_of == sorted(word_of)
        assert set(word_of) == set(range(len(found)))
        if tokenizer.kind == "byte-bpe":  # a character may be several tokens
            continue
        for number, word in enumerate(found):
            ours = [i for i, w in zip(ids, word_of, strict=True) if w == number]
            assert tokenizer.decode(ours).strip() == word


def test_words_are_shown_as_they_are_written():
    lowered = train_tokenizer(
        TokenizerSpec(kind="bpe", vocabulary_size=60, lowercase=True), TEXTS * 4
    )
    found, _ = token_words(lowered, lowered.encode("The Small HOUSE"), "The Small HOUSE")
    assert found == ["The", "Small", "HOUSE"]


def test_weights_are_gathered_by_hand():
    pieces = train_tokenizer(TokenizerSpec(kind="characters"), ["ab c"])
    source, target = pieces.encode("ab c"), pieces.encode("c ab")
    assert len(source) == len(target) == 4
    weights = torch.tensor(
        [
            [0.1, 0.1, 0.2, 0.5, 0.1],  # c
            [0.4, 0.2, 0.1, 0.1, 0.2],  # space: a new word begins
            [0.6, 0.2, 0.0, 0.1, 0.1],
            [0.2, 0.6, 0.1, 0.1, 0.0],
            [0.0, 0.0, 0.0, 0.0, 1.0],  # the end
        ]
    )
    found = align(weights.double().numpy(), (pieces, source, "ab c"), (pieces, target, "c ab"))
    assert (found.source_words, found.target_words) == (("ab", "c"), ("c", "ab"))
    _, word_of_source = token_words(pieces, source, "ab c")
    _, word_of_target = token_words(pieces, target, "c ab")
    for t in range(2):
        rows = [i for i in range(4) if word_of_target[i] == t]
        for s in range(2):
            columns = [j for j in range(4) if word_of_source[j] == s]
            expected = sum(float(weights[i, j]) for i in rows for j in columns) / len(rows)
            assert found.matrix[t][s] == pytest.approx(expected)
    assert [(s, t) for s, t, _ in found.links] == [(1, 0), (0, 1)]


def test_links_need_weight():
    assert Alignment(("a",), ("b", "c"), ((0.5,), (0.0,))).links == ((0, 0, 0.5),)
    assert Alignment((), ("b",), ((),)).links == ()


def test_parts_attend_to_themselves():
    first = Alignment(("a", "b"), ("x",), ((0.4, 0.6),))
    second = Alignment(("c",), ("y", "z"), ((0.9,), (0.8,)))
    both = join_alignments([first, second])
    assert both.source_words == ("a", "b", "c")
    assert both.target_words == ("x", "y", "z")
    assert both.matrix == ((0.4, 0.6, 0.0), (0.0, 0.0, 0.9), (0.0, 0.0, 0.8))
    assert join_alignments([first]) == first


def test_picture():
    drawn = draw_alignment(
        Alignment(("ab", "漢"), ("xyz", "語"), ((0.95, 0.05), (0.3, 0.65))), width=40
    )
    assert drawn.split("\n") == [
        "    a",
        "    b  漢",
        "xyz ██",
        " 語 ░░ ▓▓",
    ]


def test_wide_pictures_are_continued():
    alignment = Alignment(("a",) * 30, ("x",), ((1.0,) * 30,))
    drawn = draw_alignment(alignment, width=32)
    assert max(map(display_width, drawn.split("\n"))) <= 32
    assert drawn.count("██") == 30
    assert draw_alignment(Alignment((), (), ())) == ""
