"""Documents are read again before they are written: what changed the structure is named."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heedful.apps.documents.document import Document, MarkedText
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.document_structure import STRUCTURES, difference
from heedful.apps.documents.formats import FORMATS, translate_document
from heedful.apps.documents.line_up import TranslatedSentence
from heedful.apps.documents.passage import Passage, PassagePart, plain
from heedful.errors import DataError

SETTINGS = DocumentSettings(columns=("b",), target_language="de", keys=())
SAME = {
    "text": ("One\n\nTwo\n", "Eins\n\nZwei\n"),
    "html": ("<p>a <b>b</b><br>", "<p><b>B</b> A<br>"),
    "markdown": ("# A\n\nb `c` [d](e)\n", "# X\n\n[y](e) `c` z\n"),
    "srt": ("1\n00:01,0 --> 00:02,0\n<i>a</i>\n", "1\n00:01,0 --> 00:02,0\n<i>b</i>\n"),
    "po": ('msgid "a %s"\nmsgstr ""\n', 'msgid "a %s"\nmsgstr "%s b"\n'),
    "json": ('{"a": ["b {n}", 1]}', '{"a": ["{n} c", 1]}'),
    "yaml": ("a: b\nc: [1, d]\n", "a: 'x'\nc: [1, y]\n"),
    "strings": ('a = "b %@"; // c', 'a = "%@ x";'),
    "csv": ("a,b\n1,c\n", 'a,b\n1,"x, y"\n'),
    "android": (
        '<resources><string name="a">b <i>c</i></string></resources>',
        '<resources><string name="a"><i>x</i> y</string></resources>',
    ),
    "xliff": (
        "<xliff><segment><source>a <ph/></source></segment></xliff>",
        "<xliff><segment><source>a <ph/></source><target><ph/>b</target></segment></xliff>",
    ),
    "tmx": (
        '<tmx><tu><tuv xml:lang="en"><seg>a {n}</seg></tuv></tu></tmx>',
        '<tmx><tu><tuv xml:lang="en"><seg>a {n}</seg></tuv>'
        '<tuv xml:lang="de"><seg>{n} b</seg></tuv></tu></tmx>',
    ),
    "xcstrings": (
        '{"sourceLanguage": "en", "strings": {"a %@": {}}}',
        '{"sourceLanguage": "en", "strings": {"a %@": {"localizations": {"de": {"stringUnit":'
        ' {"state": "new", "value": "%@ b"}}}}}}',
    ),
}
DAMAGE = {
    "text": [("Zwei", "")],
    "html": [("</b>", ""), ("<br>", "<br><br>"), ("<p>", "<p class=x>")],
    "markdown": [("`c`", "c"), ("(e)", "(f)"), ("# X", "X"), ("z", "z\n\n- y")],
    "srt": [("02,0", "03,0"), ("</i>", ""), ("b", "")],
    "po": [("%s b", "b"), ('"%s b"', '"%s \nb"'), ('"a %s"', '"x %s"'), ("%s b", "%s b\\n")],
    "json": [("{n} c", "c"), ("1]", "2]"), ('"a"', '"x"'), ("]", "")],
    "yaml": [("'x'", "yes"), ("1,", "2,"), ("c:", "d:"), ("[1", "[[1")],
    "strings": [("%@ x", "x"), ("a =", "b ="), ('";', '"')],
    "csv": [('"x, y"', "x, y"), ("1,", "2,"), ("\n1", "\n\n1")],
    "android": [("<i>x</i> y", "y"), ('"a"', '"b"'), ("</string>", "")],
    "xliff": [("<ph/>b", "b"), (">a ", ">x "), ("</target>", "")],
    "tmx": [("{n} b", "b"), ("a {n}", "x {n}")],
    "xcstrings": [("%@ b", "b"), ('"en"', '"fr"')],
}


@pytest.mark.parametrize("format", SAME)
def test_a_translation_has_the_structure_of_its_source(format: str) -> None:
    source, translation = (STRUCTURES[format](text, SETTINGS) for text in SAME[format])
    assert difference(source, translation) is None


@pytest.mark.parametrize(
    ("format", "old", "new"), [(f, *pair) for f, pairs in DAMAGE.items() for pair in pairs]
)
def test_damage_is_seen(format: str, old: str, new: str) -> None:
    source, translation = SAME[format]
    damaged = translation.replace(old, new)
    assert damaged != translation
    found = difference(STRUCTURES[format](source, SETTINGS), STRUCTURES[format](damaged, SETTINGS))
    assert found is not None


def test_a_placeholder_behind_a_message_is_seen() -> None:
    """It looks like a branch: `} and {name}`."""
    plural = "{n, plural, one {# dog} other {# dogs}}"
    texts = (f'["{{name}} has {plural}"]', f'["{plural} has {{name}}"]')
    source, translation = (STRUCTURES["json"](text, SETTINGS) for text in texts)
    assert difference(source, translation) is None


def test_every_format_has_a_structure() -> None:
    assert set(STRUCTURES) | {"docx"} <= set(FORMATS)


class Breaking:
    """Writes JSON that is none where a sentence says so."""

    def translate(self, texts: Sequence[str], *, alignment: bool) -> list[TranslatedSentence]:
        return [TranslatedSentence(text.upper()) for text in texts]


def open_raw(data: bytes, settings: DocumentSettings, where: str) -> Document:
    """Open JSON without escapes in what is written."""
    text = data.decode()
    starts = [n for n in range(len(text)) if text.startswith('"w', n)]
    passages = [
        Passage(n + 1, n + 3, (PassagePart(n + 1, n + 3, "text", text[n + 1 : n + 3]),), broken)
        for n in starts
    ]
    return Document([MarkedText(text, passages, settings)], lambda texts: texts[0].encode())


def broken(text: str, place: object) -> str:
    return '"' if text in ("WB", "WC") else plain(text, place)  # type: ignore[arg-type]


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> None:
    raw_json = FORMATS["json"].__class__("json", (), open_raw, FORMATS["json"].structure)
    monkeypatch.setitem(FORMATS, "json", raw_json)


TEXT = b'["wa",\n "wb",\n "wc", "wd"]'


@pytest.mark.usefixtures("raw")
def test_the_passage_is_named() -> None:
    with pytest.raises(DataError, match=r"at line 2 \(wb\): it cannot be read again.*--lenient"):
        translate_document(TEXT, Breaking(), format="json")


@pytest.mark.usefixtures("raw")
def test_lenient_leaves_such_passages() -> None:
    found = translate_document(TEXT, Breaking(), format="json", lenient=True)
    assert found == b'["WA",\n "wb",\n "wc", "WD"]'
    opened = FORMATS["json"].open(TEXT, SETTINGS, "x")
    translations = Breaking().translate([s.text for s in opened.sentences], alignment=False)
    written = FORMATS["json"].write(opened, translations, TEXT, SETTINGS, "x", lenient=True)
    reason = "its translation would change the structure"
    assert written.left_out == (f"line 2 (wb): {reason}", f"line 3 (wc): {reason}")


def test_a_source_that_cannot_be_read_has_nothing_to_compare() -> None:
    assert difference(STRUCTURES["json"]("{", SETTINGS), iter(())) is None
