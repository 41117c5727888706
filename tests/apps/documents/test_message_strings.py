"""Strings of programs: what stands in them stays in JSON, PO and XLIFF alike."""

from __future__ import annotations

import json
from collections.abc import Callable

import polib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from heedful.apps.documents.formats import DocumentTranslator, translate_document

from .translators import Dictionary, Reordering, Shouting


def in_json(text: str, translator: DocumentTranslator) -> str:
    data = json.dumps({"key": text}, ensure_ascii=len(text) % 2 == 0).encode()
    found = json.loads(translate_document(data, translator, format="json"))
    assert list(found) == ["key"]
    return str(found["key"])


def in_po(text: str, translator: DocumentTranslator) -> str:
    file = polib.POFile(wrapwidth=40)
    file.append(polib.POEntry(msgid=text))
    found = polib.pofile(translate_document(str(file).encode(), translator, format="po").decode())
    assert found[0].msgid == text
    return found[0].msgstr or text


def in_xliff(text: str, translator: DocumentTranslator, *, cdata: bool = False) -> str:
    root = etree.Element("xliff")
    source = etree.SubElement(etree.SubElement(root, "trans-unit"), "source")
    source.text = etree.CDATA(text) if cdata else text
    found = etree.fromstring(translate_document(etree.tostring(root), translator, format="xliff"))
    assert found.findtext("*/source") == text
    return str(found.findtext("*/target") or text)


def in_cdata(text: str, translator: DocumentTranslator) -> str:
    return in_xliff(text, translator, cdata=True)


every_format = pytest.mark.parametrize("through", [in_json, in_po, in_xliff, in_cdata])
Through = Callable[[str, DocumentTranslator], str]

IN_CAPITALS = {
    "{count, plural, one {# dog} other {# dogs}}": "{count, plural, one {# DOG} other {# DOGS}}",
    "You have {n, plural, =0 {no mail} other {{n} new mails}} in your box.": (
        "YOU HAVE {n, plural, =0 {NO MAIL} other {{n} NEW MAILS}} IN YOUR BOX."
    ),
    "{g, select, a {His {n, plural, other {# cats}}.} other {x}}": (
        "{g, select, a {HIS {n, plural, other {# CATS}}.} other {X}}"
    ),
    "{0, selectordinal, one {#st} other {#th day}}": (
        "{0, selectordinal, one {#st} other {#th DAY}}"
    ),
    "{n, plural, other {nobody''s '{n}', <b>{name}</b>}}": (
        "{n, plural, other {NOBODY''S '{n}', <b>{name}</b>}}"
    ),
    "{VAR_PLURAL, plural, =1 {one item} other {many {{x}} items}}": (
        "{VAR_PLURAL, plural, =1 {ONE ITEM} other {MANY {{x}} ITEMS}}"
    ),
    "On {d, date, short}: {0, number, percent}": "ON {d, date, short}: {0, number, percent}",
    "Please <link>read</link> <0>all</0> <b>now</b><br>or never": (
        "PLEASE <link>READ</link> <0>ALL</0> <b>NOW</b><br>OR NEVER"
    ),
    'Open <a href="/x" title="a > b">it</a>.': 'OPEN <a href="/x" title="a > b">IT</a>.',
    "See <code>the code</code> and `more code` of <file>": (
        "SEE <code>the code</code> AND `more code` OF <file>"
    ),
    "%{count} books, $t(common.more), @:name, {{x}}, :count, %s": (
        "%{count} BOOKS, $t(common.more), @:name, {{x}}, :count, %s"
    ),
    "See {{ a |\n b: 'c' }} here, <%= d.e %> {% f\n g %}": (
        "SEE {{ a |\n b: 'c' }} HERE, <%= d.e %> {% f\n g %}"
    ),
    "at https://${{ a.b }}.c.org/d": "AT https://${{ a.b }}.c.org/d",
    "Tom &amp; Jerry &unknown; ": "TOM &amp; JERRY &UNKNOWN; ",
    ":count apple|:count apples": ":count APPLE|:count APPLES",
    "one apple | {n} apples": "ONE APPLE | {n} APPLES",
    "{0} none|[1,19] some|[20,*] many": "{0} NONE|[1,19] SOME|[20,*] MANY",
    "Tom &amp; Jerry&nbsp;now &copy; & ": "TOM &amp; JERRY&nbsp;NOW &copy; & ",
    "[b]Bold[/b], [the manual](https://example.org), [X7X], [aside]": (
        "[b]BOLD[/b], [THE MANUAL](https://example.org), [X7X], [ASIDE]"
    ),
    "get %sHelp%s or %dpx": "GET %sHELP%s OR %dPX",
    "%lldMB from 1%1$sx to ${{ a.b }} by %device": "%lldMB FROM 1%1$sX TO ${{ a.b }} BY %DEVICE",
    "a <b or c> d": "A <B OR C> D",
}


@every_format
@pytest.mark.parametrize("text", IN_CAPITALS)
def test_words_are_translated_and_the_rest_stays(text: str, through: Through) -> None:
    assert through(text, Shouting()) == IN_CAPITALS[text]


KEPT = [
    "{name}",
    "%s",
    "{{x}}",
    "<br/>",
    "$t(a.b)",
    "https://example.org/a?b=1&c",
    "`a b`",
    "%(x)s",
]
PAIRS = [("<b>", "</b>"), ("<0>", "</0>"), ('<a href="{url}">', "</a>"), ("[i]", "[/i]")]
PIECES = st.recursive(
    st.sampled_from(["one", "two words", *KEPT]),
    lambda inner: st.builds(
        lambda pair, pieces: pair[0] + " ".join(pieces) + pair[1],
        st.sampled_from(PAIRS),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=5,
)


@settings(max_examples=40)
@given(st.lists(PIECES, min_size=1, max_size=5), st.integers(0, 9))
def test_each_part_is_there_once_in_any_order(pieces: list[str], seed: int) -> None:
    text = " ".join(pieces)
    for through in (in_json, in_po, in_xliff):
        found = through(text, Reordering(seed))
        for part in [*KEPT, *(tag for pair in PAIRS for tag in pair)]:
            assert found.count(part) == text.count(part), found


@every_format
@pytest.mark.parametrize("text", ["{n, plural, one {# dog}", "{n, select, } a dog"])
def test_what_is_no_message_stays(text: str, through: Through) -> None:
    assert through(text, Shouting()) == text


def test_an_apostrophe_cannot_quote_a_brace() -> None:
    known = {"the {name}": ("l'{name}", (0,)), "boys": ("boys'", (0,))}
    assert in_json("the {name}", Dictionary(known)) == "l’{name}"
    message = "{n, plural, one {the {name}} other {boys}}"
    written = "{n, plural, one {l''{name}} other {boys''}}"
    assert in_json(message, Dictionary(known)) == written
