"""Subtitles: what is said is translated, times and tags stay."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import heedful
from heedful.apps.documents.formats import translate_document
from heedful.errors import DataError

from .translators import echoed, sentences, shouted

SRT = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,500 X1:40\r\n<i>A dog</i> runs\r\n{\\an8}in the snow.\r\n"
    "\r\n2\r\n00:00:03,000 --> 00:00:04,000\r\n- Who sings?\r\n- A man.\r\n\r\nAfter all.\r\n"
)
VTT = (
    "WEBVTT Kind: captions\nX: a\n\nNOTE a comment\nof two lines\n\nSTYLE\n::cue { color: red }\n\n"
    "intro\n00:01.000 --> 00:02.000 align:start\n<v Bob>Fish &amp; chips<00:01.500> "
    "<c.loud>are</c> hot\n\n00:03.000 --> 00:04.000\n1 &lt; 2\n"
)
CUE_TEXT = st.lists(
    st.text(st.sampled_from("abZ .-<>/i{}\\&;é"), min_size=1, max_size=20), max_size=3
)


def test_what_is_said_is_translated() -> None:
    assert sentences(SRT, "srt") == [
        "A dog runs in the snow.",
        "Who sings?",
        "A man.",
        "After all.",
    ]
    expected = SRT.replace("A dog</i> runs", "A DOG</i> RUNS").replace("in the snow", "IN THE SNOW")
    expected = expected.replace("Who sings", "WHO SINGS").replace("A man", "A MAN")
    assert shouted(SRT, "srt") == "\ufeff" + expected.replace("After all", "AFTER ALL")[1:]


@pytest.mark.parametrize("gap", ["", "\n"], ids=["no empty line", "an empty line"])
def test_cues_need_no_empty_line_between(gap: str) -> None:
    cues = [
        f"{number}\n00:00:0{number},000 --> 00:00:0{number},900\n{said}\n"
        for number, said in enumerate(["Where is my book?", "It is\n1984.", "Yes."], start=1)
    ]
    text = gap.join(cues)
    assert sentences(text, "srt") == ["Where is my book?", "It is 1984.", "Yes."]
    expected = text.replace("Where is my book", "WHERE IS MY BOOK").replace("It is", "IT IS")
    assert shouted(text, "srt") == expected.replace("Yes", "YES")


def test_notes_styles_and_speakers_stay() -> None:
    assert sentences(VTT, "vtt") == ["Fish & chips are hot"]
    expected = VTT.replace("Fish &amp; chips", "FISH &amp; CHIPS").replace(">are<", ">ARE<")
    assert shouted(VTT, "vtt") == expected.replace("hot", "HOT")


@given(
    st.lists(CUE_TEXT, max_size=4), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["srt", "vtt"])
)
@example([["-->a"]], "\n", "srt")  # what is said may look like the line of times
def test_an_echo_changes_no_byte(cues: list[list[str]], line_break: str, format: str) -> None:
    lines = ["WEBVTT", ""] if format == "vtt" else []
    for number, cue in enumerate(cues):
        said = [line if line.strip() else "x" for line in cue]
        lines += [str(number), f"00:00:0{number}.000 --> 00:00:0{number}.900", *said, ""]
    data = line_break.join(lines).encode()
    assert echoed(data, format) == data
    shouted(data, format)


@pytest.mark.parametrize(
    ("text", "format", "words"),
    [
        ("Hello\n\nthere\n", "srt", "Line 1 should have the times"),
        ("1\n00:01 -> 00:02\nA\n", "srt", "Line 1"),
        ("1\n00:00:01,000 --> 00:00:02,000\nA\n", "vtt", "not WEBVTT"),
        ("WEBVTT\n\n00:01.000 --> 00:02.000\nA\n\nfoo\nbar\n", "vtt", "Line 6"),
    ],
)
def test_damage_is_named(text: str, format: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        echoed(text.encode(), format)


def test_a_loaded_translator_translates_documents() -> None:
    """As the guide has it."""
    page = b"<p>Tom saw the <b>dog</b>. It is raining.</p>"
    translator = heedful.load("en-de", device="cpu")
    found = translate_document(page, translator, format="html").decode()
    assert found.startswith("<p>Tom ")
    assert "<b>Hund</b>" in found
    assert translate_document(SRT.encode(), translator, format="srt").count(b"-->") == 2
