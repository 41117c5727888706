"""Catalogues of messages. The reference is polib."""

from __future__ import annotations

import re

import polib
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heedful.apps.documents.formats import translate_document
from heedful.errors import DataError

from .translators import Dictionary, echoed, sentences, shout, shouted

PO = r"""# A comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#. for translators
#: a.c:12
#, c-format
msgctxt "menu"
msgid "Open %s in \"%(name)s\"\n"
msgstr ""

msgid "Done"
msgstr "Fertig"

#, fuzzy
#| msgid "Sold"
msgid "Old"
msgstr "Verkauft"

msgid "%d file"
msgid_plural "%d files of <b>yours</b>"
msgstr[0] ""
msgstr[1] ""

msgid ""
"First line\n"
"second &amp; %s\n"
msgstr ""

#~ msgid "Gone"
#~ msgstr ""
"""


def test_missing_translations_are_filled_and_no_others() -> None:
    found = shouted(PO, "po")
    before, after = polib.pofile(PO), polib.pofile(found)
    assert after.metadata == before.metadata
    entries = list(zip(before, after, strict=True))
    for one, other in entries:
        for attribute in ("msgid", "msgctxt", "msgid_plural", "flags", "comment", "occurrences"):
            assert getattr(other, attribute) == getattr(one, attribute)
    texts = {
        entry.msgid: entry.msgstr or entry.msgstr_plural for entry in after if not entry.obsolete
    }
    assert texts == {
        'Open %s in "%(name)s"\n': 'OPEN %s IN "%(name)s"\n',
        "Done": "Fertig",
        "Old": "Verkauft",
        "%d file": {0: "%d FILE", 1: "%d FILES OF <b>YOURS</b>"},
        "First line\nsecond &amp; %s\n": "FIRST LINE\nSECOND &amp; %s\n",
    }


def test_all_else_stays() -> None:
    found = shouted(PO, "po")
    kept = [line for line in PO.splitlines() if not line.startswith("msgstr")]
    assert [line for line in found.splitlines() if line in kept] == kept


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_an_echo_only_fills(line_break: str) -> None:
    data = PO.replace("\n", line_break).encode()
    found = echoed(data, "po")
    assert found == echoed(found, "po")
    assert found.count(b"\n") == data.count(b"\n") + 2  # a message of two lines
    assert re.sub(rb"msgstr(\[\d\])? .*", b"", found).startswith(b"# A comment")


def test_a_language_with_one_form_gets_the_plural() -> None:
    text = 'msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\n'
    assert polib.pofile(shouted(text, "po"))[0].msgstr_plural == {0: "%d FILES"}


def test_placeholders_are_kept_when_a_translator_loses_them() -> None:
    known = {
        "Copy %s to %(name)s or {x}": ("Kopiert wurde etwas", (0, 0, 0)),
        "Use %s here": ("Hier %s benutzen", (2, 1, 0)),
    }
    text = 'msgid "Copy %s to %(name)s or {x}"\nmsgstr ""\n\nmsgid "Use %s here"\nmsgstr ""\n'
    found = polib.pofile(translate_document(text.encode(), Dictionary(known), format="po").decode())
    for placeholder in ("%s", "%(name)s", "{x}"):
        assert found[0].msgstr.count(placeholder) == 1
    assert found[1].msgstr == "Hier %s benutzen"


MESSAGES = st.text(st.sampled_from('abZ %s{}\\"\n\té<i>.&1'), min_size=1, max_size=40)


@example(["a<a> 1"], 20)
@given(st.lists(MESSAGES, min_size=1, max_size=4, unique=True), st.sampled_from([20, 78]))
def test_any_message_comes_back(messages: list[str], width: int) -> None:
    file = polib.POFile(wrapwidth=width)
    file.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    file += [polib.POEntry(msgid=message) for message in messages]
    text = str(file)
    found = polib.pofile(echoed(text.encode(), "po").decode())
    loud = polib.pofile(shouted(text, "po"))
    for message, entry, other in zip(messages, found, loud, strict=True):
        assert entry.msgid == message
        assert entry.msgstr in ("", message)
        assert entry.msgstr or not any(map(str.isalpha, words(message)))
        assert other.msgstr.casefold().split() == shout(entry.msgstr).casefold().split()


def words(message: str) -> str:
    """Without placeholders and tags."""
    return re.sub(r"%\S*|</?[abisu](?:\s[^<>\n]*)?>|\{[^{}]*\}|&[a-z]+;", "", message)


def test_a_declared_encoding_is_kept() -> None:
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset={}\\n"\n\n'
    text = header.format("ISO-8859-1") + 'msgid "é"\nmsgstr "{}"\n'
    found = shouted_bytes(text.format("").encode("latin-1"))
    assert found == text.format("É").encode("latin-1")
    assert sentences(header.format("CHARSET"), "po") == []


def shouted_bytes(data: bytes) -> bytes:
    from .translators import Shouting

    return translate_document(data, Shouting(), format="po")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('msgid "a"\nmsgstr "b\n', "Line 2 is no line of a catalogue"),
        ('msgid "a"\nfoo\n', "Line 2"),
        ('"a"\n', "Line 1"),
        ('msgid "a"\nmsgstr ""\nmsgstr ""\n', "Line 3 has a second msgstr"),
    ],
)
def test_damage_is_named(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        echoed(text.encode(), "po")
