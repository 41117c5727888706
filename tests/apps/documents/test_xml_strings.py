"""Strings of Android and .NET, TMX and TBX. The reference is lxml."""

from __future__ import annotations

import re

import pytest
from lxml import etree

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.formats import open_document, translate_document
from heedful.errors import DataError

from .translators import Dictionary, echoed, sentences, shouted

ANDROID = r"""<?xml version="1.0" encoding="utf-8"?>
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2">
    <!-- Not this -->
    <string name="title">It\'s a <b>big</b> day, <xliff:g id="n">%1$s</xliff:g>!\nNext \u0026 last</string>
    <string name="id" translatable="false">Never</string>
    <string name="quoted">"It's here"</string>
    <string name="other">@string/title</string>
    <string name="data"><![CDATA[Some <b>bold</b> text & more]]></string>
    <string name="markup">See &lt;b>this&lt;/b> &amp; that</string>
    <string-array name="days"><item>One day</item><item>@string/x</item></string-array>
    <plurals name="dogs"><item quantity="one">A dog</item><item quantity="other">%d dogs</item></plurals>
    <integer name="five">5</integer>
</resources>
"""  # noqa: E501
RESX = """<?xml version="1.0"?>\r
<root><resheader name="version"><value>Two words</value></resheader>\r
 <data name="a" xml:space="preserve"><value>Hello {0}\r
second &amp; last</value><comment>Not this</comment></data>\r
 <data name="b" type="System.Int32"><value>Never</value></data>\r
 <data name="&gt;&gt;c.Name"><value>Never</value></data></root>"""
TMX = """<tmx version="1.4"><header srclang="en"/><body>
  <tu>
    <tuv xml:lang="EN-us" creationid="x"><prop>p</prop><seg>A <bpt i="1">&lt;b></bpt>big<ept i="1">&lt;/b></ept> &amp; old house</seg></tuv>
  </tu>
  <tu><tuv xml:lang="en"><seg>One</seg></tuv><tuv xml:lang="de-AT"><seg>Eins</seg></tuv></tu>
  <tu><tuv xml:lang="fr"><seg>Deux</seg></tuv></tu>
</body></tmx>"""  # noqa: E501
TBX = """<tbx type="TBX-Basic"><text><body><conceptEntry id="1">
  <langSec xml:lang="en"><termSec><term>red door</term><note>n</note></termSec></langSec>
</conceptEntry></body></text></tbx>"""
GERMAN = {"target_language": "de"}


def test_androids_strings_are_found() -> None:
    assert sentences(ANDROID, "android") == [
        "It's a big day, %1$s!",
        "Next & last",
        "It's here",
        "Some bold text & more",
        "See this & that",
        "One day",
        "A dog",
        "%d dogs",
    ]
    assert sentences(ANDROID, "android", keys=["dogs.one", "days.*"]) == ["One day", "A dog"]


def test_androids_strings_keep_markup_and_escapes() -> None:
    found = shouted(ANDROID, "android")
    assert r"IT\'S A <b>BIG</b> DAY, <xliff:g id=" in found
    assert r"%1$s</xliff:g>!\nNEXT \u0026 LAST<" in found
    assert "<![CDATA[SOME <b>BOLD</b> TEXT & MORE]]>" in found
    assert "SEE &lt;b>THIS&lt;/b> &amp; THAT" in found
    assert found.casefold().replace("\\'", "'") == ANDROID.casefold().replace("\\'", "'")


@pytest.mark.parametrize(
    ("translation", "written"),
    [('it\'s "x" \\', r"it\'s \"x\" \\"), ("@x", r"\@x"), ("a?", "a?"), ("<b", "&lt;b")],
)
def test_an_android_translation_is_escaped(translation: str, written: str) -> None:
    text = '<resources><string name="a">word</string></resources>'
    known = {"word": (translation, (None,) * len(translation.split()))}
    found = translate_document(text.encode(), Dictionary(known), format="android").decode()
    assert found == text.replace("word", written)


def test_resx_strings_change() -> None:
    assert sentences(RESX, "resx") == ["Hello {0}", "second & last"]
    expected = RESX.replace("Hello", "HELLO").replace("second &amp; last", "SECOND &amp; LAST")
    assert shouted(RESX, "resx") == expected


def test_memories_and_termbases_get_the_missing_language() -> None:
    found = shouted(TMX, "tmx", **GERMAN)
    assert re.sub(r'\s*<tuv xml:lang="de">.*', "", found) == TMX
    (written,) = etree.fromstring(found.encode()).xpath('//tuv[@xml:lang="de"]')
    assert [each.tag for each in written.iter()] == ["tuv", "seg", "bpt", "ept"]
    assert "".join(written.itertext()) == "A <b>BIG</b> & OLD HOUSE"
    found = shouted(TBX, "tbx", **GERMAN)
    new = '\n  <langSec xml:lang="de"><termSec><term>RED DOOR</term></termSec></langSec>'
    assert found.replace(new, "") == TBX
    assert shouted(found, "tbx", **GERMAN) == found


@pytest.mark.parametrize(
    ("text", "format"), [(ANDROID, "android"), (RESX, "resx"), (TMX, "tmx"), (TBX, "tbx")]
)
def test_an_echo_changes_no_byte(text: str, format: str) -> None:
    target = "en" if format in ("tmx", "tbx") else "de"
    assert echoed(text.encode(), format, target_language=target) == text.encode()


def test_damage_is_named() -> None:
    with pytest.raises(DataError, match="The root is <a>, not <resources>"):
        echoed(b"<a/>", "android")
    with pytest.raises(DataError, match="--target-language de"):
        open_document(TMX.encode(), format="tmx", settings=DocumentSettings())
