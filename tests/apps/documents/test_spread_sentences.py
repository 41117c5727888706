"""Sentences over several subtitles: whole for the translator, laid back over the subtitles."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heedful.apps.documents.formats import translate_document

from .translators import Dictionary, echoed, sentences, shouted


def srt(*cues: str, seconds: float = 2.0) -> str:
    """Subtitles that follow each other."""
    return "\n".join(
        f"{n}\n00:00:{n * 2:02},000 --> 00:00:{int(n * 2 + seconds - 1):02},900\n{cue}\n"
        for n, cue in enumerate(cues, start=1)
    )


def cues(text: str) -> list[str]:
    return [each.strip() for each in re.split(r"\d+\n[\d:,]+ --> [\d:,]+\n", text)[1:]]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["I went to the", "store yesterday."], ["I went to the store yesterday."]),
        (["My friend", "Tom lives in Boston."], ["My friend Tom lives in Boston."]),
        (["It rained. I went", "home. He slept."], ["It rained.", "I went home.", "He slept."]),
        (["We met Mr.", "Smith there."], ["We met Mr. Smith there."]),
        (["We went there.", "they did not."], ["We went there.", "they did not."]),
        (["- Who sings\n- A man, and", "a dog."], ["Who sings", "A man, and a dog."]),
        (["A man, and", "- What? A dog."], ["A man, and", "What?", "A dog."]),
        (["and I said", "[MUSIC]", "no more."], ["and I said", "[MUSIC]", "no more."]),
        (["and I said", "JOHN: no more."], ["and I said", "JOHN: no more."]),
        (["I love you baby", "And if it is", "All right"], None),
        (["i love you baby", "and if it is", "all right"], None),
        (["我昨天去了", "商店买了一只大狗。"], ["我昨天去了商店买了一只大狗。"]),
    ],
)
def test_where_a_sentence_goes_on(said: list[str], expected: list[str] | None) -> None:
    assert sorted(sentences(srt(*said), "srt")) == sorted(expected or said)


def test_a_long_silence_ends_a_sentence() -> None:
    text = srt("I went to the", "store yesterday.").replace("00:00:04", "00:00:14")
    assert sentences(text.replace("00:00:05", "00:00:15"), "srt") == [
        "I went to the",
        "store yesterday.",
    ]


def test_words_with_times_of_their_own_stay_in_their_subtitle() -> None:
    text = "WEBVTT\n\n00:01.000 --> 00:02.000\nA<00:01.500> dog and\n\n"
    text += "00:02.000 --> 00:03.000\na man.\n"
    assert sentences(text, "vtt") == ["A dog and", "a man."]


def test_a_translation_is_laid_over_the_subtitles() -> None:
    text = srt("<i>It rained. I went to\nthe big old</i>", "{\\an8}<i>store, <b>yesterday</b>.</i>")
    found = shouted(text, "srt")
    assert cues(found) == [
        "<i>IT RAINED. I WENT\nTO THE BIG</i>",
        "{\\an8}<i>OLD STORE, <b>YESTERDAY</b>.</i>",
    ]


def laid(source: list[str], translation: str) -> list[str]:
    whole = " ".join(source)
    known = {whole: (translation, (None,) * len(translation.split()))}
    found = translate_document(srt(*source).encode(), Dictionary(known), format="srt")
    return cues(found.decode())


def test_shares_follow_lengths_and_words_stay_whole() -> None:
    said = ["I went to the store and bought a", "dog."]
    assert laid(said, "Ich ging in den Laden und kaufte einen Hund.") == [
        "Ich ging in den Laden und kaufte",
        "einen Hund.",
    ]
    # A cut after a comma is better than one that is a little nearer.
    assert laid(
        ["I came home late and", "he was not there."], "Ich kam heim, und er war fort."
    ) == [
        "Ich kam heim,",
        "und er war fort.",
    ]
    assert laid(["I came", "home."], "我昨天回家了。") == ["我昨天回", "家了。"]


def test_one_word_is_shown_all_the_time() -> None:
    assert laid(["I am", "not sure", "about it."], "Jein.") == ["Jein."] * 3


@given(
    st.lists(
        st.text(st.sampled_from("abZ .,?-<i>/\n[{\\an8}♪"), min_size=1, max_size=20), max_size=5
    )
)
@example(["88", "? a", "?"])  # whose "a" is shown with the last sign
@example(["88", "8 a", "?"])  # where a subtitle is left that is nothing but a number
def test_times_and_words_stay(said: list[str]) -> None:
    text = srt(*[re.sub(r"\n\s*(?=\n|\Z)|\A\s+", "x", each) or "x" for each in said])
    assert echoed(text.encode(), "srt") == text.encode()
    found = shouted(text, "srt")
    times = re.compile("^[0-9:,]+ --> .*", re.MULTILINE)
    assert times.findall(found) == times.findall(text)
    before, after = (" ".join(cues(each)).casefold().split() for each in (text, found))
    assert after == before
