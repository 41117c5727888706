"""Parts of plain text that stay: each exactly once and apart, with any model."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import heedful
from heedful.pipelines.kept_spans import NAMES, KeptText
from heedful.pipelines.numpy_translation import NumpyTranslationPipeline
from heedful.pipelines.text_splitting import cut_texts, may_keep_parts
from heedful.pretrained import catalogue
from heedful.search.alignment import Alignment
from heedful.search.search_settings import SearchSettings
from heedful.text.protected_spans import SPAN_KINDS, KeptKinds

KINDS = KeptKinds(SPAN_KINDS)
PARTS = (
    *("%s", "%d", "{0}", "{a}", "{ab}", "%{count}", "{{x}}", "$t(a.b)", ":name", "@:a", "%(x)s"),
    *("${x}", "__X__", "[X7X]", "[1]", "https://a.org/b", "https://a.org", "a@b.org", "b@b.org"),
    *("`code`", "`code b`", "<br/>", "😀", "♪", "&amp;", "<b>", "</b>", "<0>", "</0>", ":smile:"),
)
WORDS = st.sampled_from(["red", "house", "Tom", "is", "old,", "end.", "(so)", "it's"])
TEXTS = st.lists(st.one_of(WORDS, st.sampled_from(PARTS)), min_size=1, max_size=9).map(" ".join)


def kept_text(text, names=NAMES):
    marked, parts = KINDS.protect(text)
    return KeptText(marked, parts, names, KINDS)


def reordered(text, seed):
    """Exchange capitals and small letters of some words, and put them in another order."""
    generator = random.Random(seed)
    words = text.split()
    order = [*range(len(words))]
    generator.shuffle(order)
    source, target = tuple(words), tuple(words[n].swapcase() for n in order)
    rows = tuple(tuple(0.9 * (n == link) for n in range(len(words))) for link in order)
    return " ".join(target), Alignment(source, target, rows)


@settings(deadline=None, max_examples=50)
@given(text=TEXTS, seed=st.integers(0, 50), has_names=st.booleans())
@example(text="{a} and {ab}", seed=0, has_names=False)
@example(text="https://a.org {a} https://a.org/b", seed=1, has_names=True)
def test_each_part_stays_once_and_apart(text, seed, has_names):
    kept = kept_text(text, NAMES if has_names else ())
    placed = kept.place(*reordered(kept.text, seed), strict=True)
    assert placed is not None
    found, alignment = placed
    parts = Counter(text[a:b] for a, b in KINDS.find(text))
    assert Counter(found[a:b] for a, b in KINDS.find(found)) == parts
    assert "".join(alignment.target_words) == "".join(found.split())
    assert "".join(alignment.source_words) == "".join(text.split())


@settings(deadline=None, max_examples=50)
@given(text=TEXTS, has_names=st.booleans())
@example(text="%s <0> </0>", has_names=True)
@example(text="<b> </b> %s", has_names=True)
@example(text="<b> old, </b> red %s", has_names=True)
@example(text="end. <b> &amp; :name red </b> <0>", has_names=True)
def test_the_same_words_in_the_same_order_are_the_same_text(text, has_names):
    kept = kept_text(text, NAMES if has_names else ())
    words = tuple(kept.text.split())
    rows = tuple(tuple(float(a == b) for b in range(len(words))) for a in range(len(words)))
    placed = kept.place(kept.text, Alignment(words, words, rows), strict=True)
    if placed is not None and kept.names:
        assert Counter(placed[0].split()) == Counter(text.split())


@given(st.text(st.characters(max_codepoint=0x1FAFF), max_size=8))
@example("example.org")
@example("1\ufe0f\u20e3")
@example("\U000f0003")
def test_a_text_with_a_part_is_looked_at(text):
    assert may_keep_parts(text) or not KINDS.find(text)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("♪ I sing ♪", "I sing"),
        ("I love cats 🐱.", "I love cats."),
        ("* an item", "an item"),
        ("*bold*", "bold"),
        ("# Title", "Title"),
        ("© 2020 Example", "2020 Example"),
        ("#1 in C#", "#1 in C#"),
        ('Open <a href="/x">the door</a>.', "Open the door."),
        ("a<br>b", "a b"),
        ("w<b>or</b>d", "word"),
        ("See {a}, {b}s and Tom [1].", "See Boston, Bill and Tom."),
        ("%s%s{a}/{b}", "Tom/Boston"),
    ],
)
def test_the_model_reads_a_sentence(text, read):
    assert kept_text(text).text == read


@pytest.mark.parametrize(
    ("translation", "found"),
    [
        ("Boston sieht Tom.", "{ab} sieht {a}."),
        ("BOSTON sieht Tom.", "{ab} sieht {a}."),
        ("Tom sieht Tom und Boston.", None),
    ],
)
def test_names_stand_for_parts(translation, found):
    words = tuple(translation.split())
    rows = tuple(tuple(0.0 for _ in range(3)) for _ in words)
    kept = kept_text("{a} sees {ab}.")
    placed = kept.place(
        translation, Alignment(("Tom", "sees", "Boston."), words, rows), strict=True
    )
    assert (placed and placed[0]) == found


@pytest.fixture(scope="module")
def model():
    return heedful.load("en-de", device="cpu")


def test_a_model_without_reserved_tokens_keeps_parts(model):
    texts = [
        *("♪ I sing a song every day ♪", "I love cats 🐱.", "😀", "ע", "12345", "{0}: %s", "中文"),
        'Open <a href="/x">the door</a>.',
        "See https://example.org/a?b=1 or write to anna@example.org, [X7X].",
        "You have %{count} new messages. :name is here. I like $t(key).",
    ]
    found = model.translate(texts, alignment=True)
    assert found[0].startswith("♪ ")
    assert found[0].endswith(" ♪")
    assert "🐱" in found[1]
    assert re.search(r"\w 🐱\W*$", found[1])
    assert [*map(str, found[2:7])] == texts[2:7]
    for text, translation in zip(texts, found, strict=True):
        parts = Counter(text[a:b] for a, b in KINDS.find(text))
        assert Counter(translation[a:b] for a, b in KINDS.find(translation)) == parts
        assert "".join(translation.alignment.target_words) == "".join(translation.split())
        assert translation.untranslated == ()
    assert [*map(str, model.translate(texts))] == [*map(str, found)]
    three = model.translate(texts[7:], n_best=3)
    assert all("<a href" in each for each in three[0].n_best)


def test_a_sentence_without_place_for_its_parts_is_left_and_said(model, monkeypatch):
    monkeypatch.setattr(KeptText, "place", lambda *_, **__: None)
    said = []
    (found,) = model.translate(["I see. Look at {a}!"], warn=said.append)
    assert found.endswith("Look at {a}!")
    assert not found.startswith("I see")
    assert found.untranslated == ("Look at {a}!",)
    assert len(said) == 1
    assert "line 1: left as it is" in said[0]


def test_nothing_is_kept_where_nothing_is_to_be(model):
    assert str(model.translate(["12345"], protect=[])[0]) != "12345"
    address = "https://example.org/q?x=17"
    assert address not in model.translate([f"See {address} now."], protect=[])[0]
    assert address in model.translate([f"See {address} now."], protect=["urls"])[0]
    assert "😀" not in model.translate(["I love cats 😀."], protect=["urls"])[0]


def test_texts_without_letters_are_read_by_a_model_that_learned_them(model):
    for share, copied in ((0.0, [True, True, False]), (0.3, [False, True, False])):
        reading = replace(model.tokenizers.reads, letterless=share)
        cut = cut_texts(["8/13/99", "中文", "May 5"], model.tokenizers.source, 99, reading)
        assert [text.segments[0].is_copied for text in cut] == copied


def test_texts_with_parts_are_left_to_the_search_that_aligns():
    pipeline = NumpyTranslationPipeline.load(catalogue.directory_of(Path("en-de")), device="cpu")
    if pipeline is None:
        pytest.skip("no kernels here")
    assert pipeline.serves(["It is 12:30, 5 % of it."])
    assert not pipeline.serves(["Look at {a}."])
    assert [*map(str, pipeline.translate(["😀 12345"], SearchSettings()))] == ["😀 12345"]
