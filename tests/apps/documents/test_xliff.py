"""XLIFF. The reference is lxml."""

from __future__ import annotations

import re

import pytest
from lxml import etree

from heedful.apps.documents.formats import translate_document
from heedful.errors import DataError

from .translators import Dictionary, echoed, sentences, shouted

OLD = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
 <file original='a' source-language="en" target-language="de" datatype="plaintext"><body>
  <trans-unit id="1" >
    <source>Press <g id="1">the <x id="2"/>key</g> &amp; wait
      for it</source>
    <note>Not this</note>
  </trans-unit>
  <trans-unit id="2"><source>Done</source><target>Fertig</target></trans-unit>
  <trans-unit id="3"><source>One</source><target state="new"/></trans-unit>
  <trans-unit id="4" translate="no"><source>Never</source></trans-unit>
  <trans-unit id="5"><source>Two <ph id="1">&lt;br/></ph> words</source><target></target>
   <alt-trans><source>Tow words</source><target>Zwei</target></alt-trans></trans-unit>
  <trans-unit id="6"><source>A <bpt id="1">&lt;b></bpt>bold<ept id="1">&lt;/b></ept> <mrk mtype="protected">Name</mrk></source><target state="needs-translation">A bold</target></trans-unit>
 </body></file>
</xliff>
"""  # noqa: E501
NEW = """<xliff version="2.0" srcLang="en" trgLang="de" xmlns="urn:oasis:names:tc:xliff:document:2.0">\r
<file id="f"><unit id="u"><segment id="1"><source>See <pc id="1">my house</pc> <ph id="2"/>now</source></segment>\r
<ignorable><source> and </source></ignorable>\r
<segment id="2" state="initial"><source>Two <sc id="3"/>words<ec startRef="3"/> {n}</source><target>Two</target></segment>\r
<segment id="3" state="final"><source>Three</source><target>Drei</target></segment></unit>\r
<unit id="v" translate="no"><segment><source>Never</source></segment></unit></file></xliff>\r
"""  # noqa: E501


def targets(text: str) -> list[str]:
    root = etree.fromstring(text.encode())
    return [" ".join("".join(each.itertext()).split()) for each in root.iter("{*}target")]


def test_missing_targets_are_filled() -> None:
    assert sentences(OLD, "xliff") == [
        "Press the key & wait for it",
        "One",
        "Two words",
        "A bold Name",
    ]
    assert targets(shouted(OLD, "xliff")) == [
        "PRESS THE KEY & WAIT FOR IT",
        "Fertig",
        "ONE",
        "TWO <br/> WORDS",
        "Zwei",
        "A <b>BOLD</b> Name",
    ]
    assert sentences(NEW, "xliff") == ["See my house now", "Two words {n}"]
    assert targets(shouted(NEW, "xliff")) == ["SEE MY HOUSE NOW", "TWO WORDS {n}", "Drei"]


@pytest.mark.parametrize("text", [OLD, NEW])
def test_all_else_stays(text: str) -> None:
    """Targets taken out again, only their places differ."""
    target = r"\s*<target[^>/]*>(?:(?!</target>).)*</target>|\s*<target[^>]*/>"
    for write in (shouted, lambda text, _: echoed(text.encode(), "xliff").decode()):
        found = write(text, "xliff")
        assert re.sub(target, "", found, flags=re.S) == re.sub(target, "", text, flags=re.S)
        assert write(found, "xliff") == found


def test_a_new_target_is_indented_as_its_source() -> None:
    assert "</source>\n    <target>PRESS <g" in shouted(OLD, "xliff")


def test_codes_follow_their_words() -> None:
    known = {"See my house now": ("Jetzt sieh mein Haus", (3, 0, 1, 2))}
    text = NEW.replace('state="initial"', 'state="final"')
    found = translate_document(text.encode(), Dictionary(known), format="xliff").decode()
    assert '<target><ph id="2"/>Jetzt sieh <pc id="1">mein Haus</pc></target>' in found


def test_prefixes_are_kept() -> None:
    text = '<x:xliff xmlns:x="u"><x:trans-unit><x:source>a b</x:source></x:trans-unit></x:xliff>'
    assert "<x:target>A B</x:target>" in shouted(text, "xliff")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<xliff>\n<a></b></xliff>", "Line 2, column 6 is no XML: mismatched tag"),
        ("<html/>", "no XLIFF"),
        ('<!DOCTYPE x [\n<!ENTITY a "b">]><xliff/>', "Line 2 declares an entity"),
        ("", "no element found"),
    ],
)
def test_damage_is_named(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        echoed(text.encode(), "xliff")


def test_a_lacking_character_is_a_reference() -> None:
    text = '<?xml version="1.0" encoding="us-ascii"?>'
    text += "<xliff><segment><source>a</source></segment></xliff>"
    found = translate_document(text.encode(), Dictionary({"a": ("ä", (0,))}), format="xliff")
    assert b"<target>&#228;</target>" in found


def one(source: str, target: str = "") -> str:
    return f'<xliff><trans-unit id="1"><source>{source}</source>{target}</trans-unit></xliff>'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a &lt;b&gt;bold&lt;/b&gt; c", "A &lt;b&gt;BOLD&lt;/b&gt; C"),
        ("<![CDATA[a <b>bold</b> & c]]>", "<![CDATA[A <b>BOLD</b> & C]]>"),
        (
            '{VAR_PLURAL, plural, =0 {none} =1 {<x id="A"/> item} other {many &amp; more}}',
            '{VAR_PLURAL, plural, =0 {NONE} =1 {<x id="A"/> ITEM} other {MANY &amp; MORE}}',
        ),
    ],
)
def test_markup_in_text_stays(source: str, expected: str) -> None:
    assert f"<target>{expected}</target>" in shouted(one(source), "xliff")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("", '<target state="needs-review-translation">A B</target>'),
        ('<target state="new"/>', '<target state="needs-review-translation">A B</target>'),
        (
            '<target state="needs-translation" x="1">a b</target>',
            '<target x="1" state="needs-review-translation">A B</target>',
        ),
    ],
)
def test_what_a_machine_translated_is_marked_where_it_is_asked_for(
    target: str, expected: str
) -> None:
    assert expected in shouted(one("a b", target), "xliff", mark_machine=True)


def test_a_segment_has_the_state_in_version_2() -> None:
    found = shouted(NEW, "xliff", mark_machine=True)
    states = [
        segment.get("state") for segment in etree.fromstring(found.encode()).iter("{*}segment")
    ]
    assert states == ["translated", "translated", "final", None]
