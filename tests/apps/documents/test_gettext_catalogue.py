"""Catalogues of messages. The reference is polib."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import polib
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heedful.apps.documents.formats import open_document, translate_document
from heedful.errors import DataError

from .translators import Dictionary, Reordering, echoed, sentences, shout, shouted

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
@example(["<a1>", "<a1\n>a"], 20)
@example(["%a1%a"], 20)
@example(["%s%%s b"], 20)
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
    return re.sub(
        r"%(?:<\w+>)?[^\s<]*|</?[A-Za-z\d][\w.]*(?:\s(?:\"[^\"]*\"|[^<>])*)?>|\{[^{}]*\}|&[a-z]+;",
        "",
        message,
    )


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


def strings_of(text: str) -> list[list[str]]:
    """Lines of each string, read by the grammar of the format alone; a string may have escapes."""
    found: list[list[str]] = []
    for line in text.splitlines():
        match = re.fullmatch(r'(?:(msg\w+(?:\[\d\])?) )?"((?:[^"\\]|\\.)*)"', line)
        assert match or not line.strip() or line[0] == "#", line
        if match:
            found += [[]] if match[1] else []
            found[-1].append(match[2])
    return found


@pytest.mark.parametrize(
    ("written", "msgid"),
    [
        ('"See https://example.org/"\n"handbook/first steps."', "SEE https://example.org/handbook/first STEPS."),  # noqa: E501
        ('""\n"Open <a href=\\"%(u)"\n"s\\" class=\\"big\\">this</a>."', 'OPEN <a href="%(u)s" class="big">THIS</a>.'),  # noqa: E501
        ('"Keep {na"\r\n"me} and %"\r\n"s"', "KEEP {name} AND %s"),
    ],
)  # fmt: skip
def test_a_part_across_a_fold_stays_one(written: str, msgid: str) -> None:
    found = shouted(f'#, python-format\nmsgid {written}\nmsgstr ""\n', "po")
    assert len(strings_of(found)) == 2
    assert polib.pofile(found)[0].msgstr == msgid


@given(st.lists(st.text(st.sampled_from('ab"\\\n\t好は。-'), max_size=30), max_size=12))
def test_lines_are_folded_as_gettext_folds(words: list[str]) -> None:
    message = "word " + " ".join(words)
    file = polib.POFile(wrapwidth=0)
    file.append(polib.POEntry(msgid=message))
    found = strings_of(shouted(str(file), "po"))[-1]
    assert polib.pofile(shouted(str(file), "po"))[0].msgstr.split() == shout(message).split()
    for line in found:
        # Twice the column for each wide sign; a single word may be wider.
        columns = len(line) + sum(sign in "好は。" for sign in line)
        assert columns <= 77 or " " not in line.rstrip()
        assert "\\n" not in re.sub(r"\\\\[^n]", "", line)[:-2]


def reordered(message: str, flag: str) -> str:
    text = f'#, {flag}\nmsgid "{message}"\nmsgstr ""\n'
    found = translate_document(text.encode(), Reordering(), format="po")
    return polib.pofile(found.decode())[0].msgstr


def test_an_argument_is_named_by_its_number_or_the_message_is_left_out() -> None:
    assert reordered("Copy %s to %-5d now", "c-format") == "NOW %2$-5d TO %1$s cOPY"
    assert reordered("Copy %(a)s to %(b)d now", "python-format") == "NOW %(b)d TO %(a)s cOPY"
    assert reordered("Copy %s to %d now", "python-format") == ""
    assert reordered("Copy %.*s to %d now", "c-format") == ""
    assert reordered("100%% of %s files", "c-format") == "FILES %s OF 100%%"


def test_the_forms_of_a_plural_are_filled_together() -> None:
    text = """#, python-format
msgid "%s file"
msgid_plural "%s files in %d folders"
msgstr[0] ""
msgstr[1] ""
"""
    data = translate_document(text.encode(), Reordering(), format="po").decode()
    assert data == text
    # "one file" is no form for 21 files, which the first of three forms may be for.
    three = '#, c-format\nmsgid "one file"\nmsgid_plural "%d files"\n'
    three += "".join(f'msgstr[{n}] ""\n' for n in range(3))
    assert set(polib.pofile(shouted(three, "po"))[0].msgstr_plural.values()) == {"%d FILES"}


@pytest.mark.parametrize(("written", "number"), [("3", "3"), ("INTEGER", "none")])
def test_a_plural_without_the_declared_number_of_forms_is_told(written: str, number: str) -> None:
    """The tools of gettext refuse a catalogue with such a message."""
    header = (
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
        f'"Plural-Forms: nplurals={written}; plural=0;\\n"\n\n'
    )
    text = header + 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    document = open_document(text.encode(), format="po")
    assert document.sentences == ()
    assert document.write([]) == text.encode()
    assert document.left_out == (
        f"line 6 (a): it has 2 plural forms, and the header declares {number}",
    )


def test_what_a_machine_translated_is_marked_where_it_is_asked_for() -> None:
    found = polib.pofile(shouted(PO, "po", mark_machine=True))
    before = {
        entry.msgid: entry.msgstr or any(entry.msgstr_plural.values()) for entry in polib.pofile(PO)
    }
    for entry in found:
        assert entry.fuzzy == (entry.msgid == "Old" or not (before[entry.msgid] or entry.obsolete))
    assert found[0].flags == ["fuzzy", "c-format"]


def test_the_tools_of_gettext_accept_it(tmp_path: Path) -> None:
    if (msgfmt := shutil.which("msgfmt")) is None:
        pytest.skip("msgfmt is not installed")
    (tmp_path / "a.po").write_text(shouted(PO, "po"))
    command = [msgfmt, "--check", "-o", str(tmp_path / "a.mo"), str(tmp_path / "a.po")]
    assert subprocess.run(command, capture_output=True).returncode == 0
