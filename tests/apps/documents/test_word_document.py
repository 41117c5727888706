"""DOCX: paragraphs change, all other files and the look of words stay. The reference is lxml."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

import heedful.apps.documents.word_document as word_document
from heedful.apps.documents.formats import open_document, translate_document
from heedful.errors import DataError

from .translators import Dictionary, Shouting, echoed

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
BOLD = "<w:rPr><w:b/></w:rPr>"
OTHER = {"[Content_Types].xml": "<Types/>", "word/styles.xml": "<a>text here</a>", "x.bin": "\0\1"}


def run(text: str, look: str = "") -> str:
    return f'<w:r>{look}<w:t xml:space="preserve">{text}</w:t></w:r>'


def docx(body: str, **more: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (OTHER | more).items():
            archive.writestr(name, content)
        root = f'<?xml version="1.0" encoding="UTF-8"?>\n<w:document xmlns:w="{W}"><w:body>{body}'
        archive.writestr("word/document.xml", f"{root}</w:body></w:document>")
    return stream.getvalue()


def contents(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def body(data: bytes) -> str:
    text = contents(data)["word/document.xml"].decode()
    return text[text.index("<w:body>") + 8 : text.index("</w:body>")]


def looks(data: bytes) -> list[tuple[str, bool]]:
    """The text of each run and whether it is bold; neighbours of one look together."""
    found: list[tuple[str, bool]] = []
    for each in etree.fromstring(contents(data)["word/document.xml"]).iter(f"{{{W}}}r"):
        text = "".join(t.text or "" for t in each.iter(f"{{{W}}}t"))
        is_bold = each.find(f".//{{{W}}}b") is not None
        if found and found[-1][1] == is_bold:
            found[-1] = (found[-1][0] + text, is_bold)
        else:
            found.append((text, is_bold))
    return found


def shouted(data: bytes) -> bytes:
    return translate_document(data, Shouting(), format="docx")


def sentences(data: bytes) -> list[str]:
    return [each.text for each in open_document(data, format="docx").sentences]


PAGE = (
    '<w:p><w:pPr><w:jc w:val="left"/></w:pPr><w:bookmarkStart w:id="0"/>'
    f"{run('A ')}{run('big dog', BOLD)}"
    f'<w:proofErr/>{run(" runs &amp; runs. It ")}{run("sits.")}<w:bookmarkEnd w:id="0"/></w:p>'
    '<w:p><w:hyperlink r:id="r1" xmlns:r="u">'
    f"{run('A link', '<w:rPr><w:u/></w:rPr>')}</w:hyperlink>{run(' is here')}</w:p>"
    "<w:p><w:r><w:t>One</w:t><w:tab/><w:t>two</w:t></w:r></w:p><w:p/>"
    f'<w:p>{run("Page ")}<w:r><w:fldChar w:fldCharType="begin"/></w:r>'
    '<w:r><w:instrText>PAGE</w:instrText></w:r><w:r><w:fldChar w:fldCharType="separate"/></w:r>'
    f'{run("IV")}<w:r><w:fldChar w:fldCharType="end"/></w:r>{run(" of it")}</w:p>'
    f"<w:p><w:r><w:pict><w:txbxContent><w:p>{run('In a box')}</w:p></w:txbxContent></w:pict></w:r>"
    f"{run('Around it')}</w:p>"
    f"<w:p><w:del>{run('gone').replace('w:t', 'w:delText')}</w:del>{run('12')}</w:p>"
)


def test_paragraphs_are_read() -> None:
    header = f'<w:hdr xmlns:w="{W}"><w:p>{run("Top")}</w:p></w:hdr>'
    data = docx(PAGE, **{"word/header1.xml": header})
    assert sorted(sentences(data)) == sorted(
        re.findall(
            "[^|]+",
            "Top|A big dog runs & runs.|It sits.|A link is here|One|two|Page IV of it|In a box|"
            "Around it",
        )
    )


def test_an_echo_changes_no_byte() -> None:
    assert echoed(docx(PAGE), "docx") == docx(PAGE)


def test_other_files_stay() -> None:
    before, after = contents(docx(PAGE)), contents(shouted(docx(PAGE)))
    assert list(after) == list(before)
    assert {name for name in before if before[name] != after[name]} == {"word/document.xml"}


def test_looks_stay_at_their_words() -> None:
    first = shouted(docx(PAGE[: PAGE.index("</w:p>") + 6]))
    assert looks(first) == [("A ", False), ("BIG DOG", True), (" RUNS & RUNS. IT SITS.", False)]


def test_structure_stays() -> None:
    """Elements other than runs and their texts, in order; letter case aside."""
    pattern = r"<(?!/?w:r>|/?w:t[ >])[^>]*>"
    assert sorted(re.findall(pattern, body(shouted(docx(PAGE))))) == sorted(
        re.findall(pattern, PAGE)
    )
    etree.fromstring(contents(shouted(docx(PAGE)))["word/document.xml"])


def test_looks_follow_their_words() -> None:
    first = "<w:p><w:pPr/>"
    data = docx(f"{first}{run('A ')}{run('big dog', BOLD)}{run(' runs.')}</w:p>")
    known = {"A big dog runs.": ("Es läuft ein <großer> Hund.", (None, 3, 0, 1, 2))}
    found = translate_document(data, Dictionary(known), format="docx")
    assert body(found) == (
        f"{first}{run('Es läuft ein ')}{run('&lt;großer&gt; Hund', BOLD)}{run('.')}</w:p>"
    )


TEXTS = st.text(st.sampled_from("ab Z.é&<1"), min_size=1, max_size=8)
RUNS = st.lists(st.tuples(TEXTS, st.sampled_from(["", BOLD, "<w:rPr><w:i/></w:rPr>"])), max_size=6)


@given(st.lists(RUNS, max_size=3))
def test_any_paragraph(paragraphs: list[list[tuple[str, str]]]) -> None:
    escape = str.maketrans({"&": "&amp;", "<": "&lt;"})
    written = "".join(
        "<w:p>" + "".join(run(text.translate(escape), look) for text, look in runs) + "</w:p>"
        for runs in paragraphs
    )
    data = docx(written)
    assert echoed(data, "docx") == data
    before, after = (
        ["".join(t.text or "" for t in p.iter(f"{{{W}}}t")) for p in paragraph_elements(each)]
        for each in (data, shouted(data))
    )
    assert [text.split() for text in after] == [text.upper().split() for text in before]


def paragraph_elements(data: bytes) -> Sequence[etree._Element]:
    return list(etree.fromstring(contents(data)["word/document.xml"]).iter(f"{{{W}}}p"))


def test_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = docx(PAGE, **{"word/media.bin": "0" * (1 << 20)})
    monkeypatch.setattr(word_document, "_MOST_BYTES", 1 << 19)
    with pytest.raises(DataError, match="larger than"):
        echoed(data, "docx")
    lying = data.replace((1 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    with pytest.raises(DataError, match="no whole archive"):
        echoed(lying, "docx")
    monkeypatch.setattr(word_document, "_MOST_FILES", 3)
    with pytest.raises(DataError, match="larger than"):
        echoed(docx(PAGE), "docx")


def test_damage_is_named() -> None:
    with pytest.raises(DataError, match="no whole archive"):
        echoed(docx(PAGE).replace(b"PK\3\4", b"", 1), "docx")  # the first file is out of its place
    with pytest.raises(DataError, match="no whole archive"):
        echoed(b"PK\3\4 and no more", "docx")
    with pytest.raises(DataError, match="no whole archive"):
        echoed(docx(PAGE)[:-40], "docx")
    stream = io.BytesIO()
    zipfile.ZipFile(stream, "w").close()
    with pytest.raises(DataError, match="holds no document of Word"):
        echoed(stream.getvalue(), "docx")
    with pytest.raises(DataError, match=r"word/document.xml: Line 2, column \d+ is no XML"):
        echoed(docx("<w:p>"), "docx")
