"""Plain text, and what all formats share: sentences, encodings, bytes that stay."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.formats import translate_document
from heedful.errors import DataError

from .translators import Dictionary, echoed, sentences, shout, shouted

LINES = st.lists(
    st.text(st.sampled_from("ab Z.!?,-3é日\u00a0\t\U0001f600{}%s<>&\"'"), max_size=30)
    | st.sampled_from(["", "Mr. A. went on. So did I!", "- an item", "see https://a.b/c?d=e."]),
    max_size=8,
)


def texts() -> st.SearchStrategy[str]:
    breaks = st.sampled_from(["\n", "\r\n", "\r"])
    return st.tuples(LINES, breaks).map(lambda pair: pair[1].join(pair[0]))


@given(
    texts(),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.sampled_from(["lines"]) | st.just("sentences"),
)
def test_an_echo_changes_no_byte(text: str, encoding: str, split: str) -> None:
    data = text.encode(encoding)
    assert echoed(data, "text", split=split) == data


@example("Z\u00a0.>é>!")
@given(texts())
def test_only_letters_change(text: str) -> None:
    """White space inside a sentence may become a single space, a line break never."""
    found = shouted(text, "text")
    before, after = " ".join(text.split()), " ".join(found.split())
    assert len(after) == len(before)
    changed = {(a, b) for a, b in zip(before, after, strict=True) if a != b}
    assert all(b == shout(a) for a, b in changed)
    assert re.findall(r"\r\n|\n|\r", text) == re.findall(r"\r\n|\n|\r", found)


def test_paragraphs_are_split_into_sentences_and_stay_paragraphs() -> None:
    text = "  Dr. Smith came.  He left!\r\n\r\nA new one\r\nruns on here.\r\n"
    assert sentences(text, "text") == ["Dr. Smith came.", "He left!", "A new one runs on here."]
    assert shouted(text, "text") == text.upper()


def test_a_break_that_was_meant_ends_a_passage() -> None:
    text = "A title\nThis line is the longest of all of them and is\nwrapped here.\nShort\nlines\n"
    assert sentences(text, "text") == [
        "A title",
        "This line is the longest of all of them and is wrapped here.",
        "Short",
        "lines",
    ]


def test_items_of_a_list_are_passages_without_their_marks() -> None:
    assert sentences("- one thing and more\n- two\n1. three things that are\n", "text") == [
        "one thing and more",
        "two",
        "three things that are",
    ]


def test_columns_of_a_table_are_passages() -> None:
    text = "Name\tMeaning of it\nA dog   an animal  here\n"
    assert sentences(text, "text") == ["Name", "Meaning of it", "A dog", "an animal here"]
    assert shouted("a\tb   c", "text") == "A\tB   C"


def test_lines_and_passages_are_taken_whole() -> None:
    text = "One is here. Two is here\nas well.\n"
    assert sentences(text, "text", split="lines") == ["One is here. Two is here", "as well."]
    assert sentences(text, "text", split="passages") == ["One is here. Two is here as well."]


def test_what_has_no_letters_is_not_translated() -> None:
    assert sentences("2024\n\n-- 3.5 --\n\n12 dogs. 13!\n", "text") == ["12 dogs."]


def test_a_sentence_is_translated_once() -> None:
    assert sentences("Yes.\n\nYes.\n", "text") == ["Yes."]


def test_addresses_are_kept() -> None:
    known = {
        "Write to a@b.org or see https://x.org/Y now.": ("Jetzt SCHREIB an mich!", (5, 0, 1, 2))
    }
    found = translate_document(
        b"Write to a@b.org or see https://x.org/Y now.\n", Dictionary(known), format="text"
    ).decode()
    assert found.count("a@b.org") == found.count("https://x.org/Y") == 1
    assert "SCHREIB" in found


def test_a_wrapped_sentence_is_wrapped_again() -> None:
    known = {"one two three four": ("vier drei zwei eins und mehr", (3, 2, 1, 0, None, None))}
    found = translate_document(b"one two\nthree four", Dictionary(known), format="text")
    assert found == b"vier drei zwei\neins und mehr"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"abc\ndef \xff ghi", "Byte 8 (line 2) is 0xff, which is not utf-8"),
        (b"\xff\xfea\x00\xd8\xd8", "Byte 4"),
    ],
)
def test_bytes_that_are_no_text_are_named(data: bytes, words: str) -> None:
    with pytest.raises(DataError) as error:
        echoed(data, "text")
    assert words in str(error.value)


def test_an_encoding_may_be_named() -> None:
    data = "Straße\n".encode("iso-8859-1")
    assert echoed(data, "text", encoding="iso-8859-1") == data
    for name in ("klingon", "base64", "undefined", "punycode"):
        with pytest.raises(DataError, match="which is unknown"):
            echoed(data, "text", encoding=name)


def test_a_character_that_the_encoding_lacks_is_named() -> None:
    known = {"money": ("5 €", (0, 0))}
    settings = DocumentSettings(encoding="iso-8859-1")
    with pytest.raises(DataError, match="'€'"):
        translate_document(b"money", Dictionary(known), format="text", settings=settings)
