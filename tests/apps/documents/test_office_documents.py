"""PPTX, XLSX, OpenDocument and EPUB: texts change, and archives stay as their formats want them."""

from __future__ import annotations

import io
import zipfile

import pytest
from lxml import etree

from heedful.apps.documents.formats import open_document, translate_document
from heedful.errors import DataError

from .translators import Dictionary, Shouting, echoed

OOXML = "http://schemas.openxmlformats.org"
A = f'xmlns:a="{OOXML}/drawingml/2006/main"'
P = f'xmlns:p="{OOXML}/presentationml/2006/main"'
X = f'xmlns="{OOXML}/spreadsheetml/2006/main"'
OASIS = "urn:oasis:names:tc:opendocument:xmlns"
ODF = " ".join(
    f'xmlns:{name}="{OASIS}:{name}:1.0"'
    for name in ("office", "text", "style", "table", "officeooo")
)


def archive(**files: str) -> bytes:
    """An archive whose `mimetype` is not packed; __ in names stands for a slash."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as result:
        for name, content in files.items():
            how = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            result.writestr(name.replace("__", "/"), content, compress_type=how)
    return stream.getvalue()


def contents(data: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        return {name: opened.read(name).decode() for name in opened.namelist()}


def check(format: str, data: bytes, sentences: list[str], **changed: str) -> None:
    """Compare sentences, and files after a translation into capitals; an echo changes none."""
    assert [each.text for each in open_document(data, format=format).sentences] == sentences
    assert echoed(data, format) == data
    found = translate_document(data, Shouting(), format=format)
    expected = contents(data) | {name.replace("__", "/"): text for name, text in changed.items()}
    assert list(contents(found)) == list(contents(data))
    for name, text in contents(found).items():
        assert text == expected[name]
        if text.startswith("<"):
            etree.fromstring(text)


def slide(content: str) -> str:
    return f"<p:sld {P} {A}><p:txBody>{content}</p:txBody></p:sld>"


def pptx(content: str) -> bytes:
    return archive(
        ppt__presentation_xml=f"<p:presentation {P}/>",
        ppt__slides__one=slide(content),
        master=f"<p:sldMaster {P} {A}><a:p><a:r><a:t>Click</a:t></a:r></a:p></p:sldMaster>",
    )


def test_slides() -> None:
    link = '<a:rPr lang="en-GB"><a:hlinkClick id="r1"/></a:rPr>'
    page = (
        '<a:p><a:pPr lvl="1"/><a:r><a:rPr lang="en-GB" dirty="0"/><a:t>Big da</a:t></a:r>'
        f'<a:r><a:rPr lang="de-DE"/><a:t>ys with </a:t></a:r><a:r>{link}<a:t>a link</a:t></a:r>'
        '<a:br/><a:r><a:t>Page </a:t></a:r><a:fld id="x" type="slidenum"><a:t>3</a:t></a:fld>'
        '<a:endParaRPr lang="en-GB"/></a:p><a:p><a:endParaRPr/></a:p>'
    )
    plain = '<a:r><a:rPr lang="en-GB" dirty="0"/><a:t>{}</a:t></a:r>'
    check(
        "pptx",
        pptx(page),
        ["Big days with a link", "Page 3"],
        ppt__slides__one=slide(
            f'<a:p><a:pPr lvl="1"/>{plain.format("BIG DAYS WITH ")}'
            f"<a:r>{link}<a:t>A LINK</a:t></a:r>"
            f'<a:br/>{plain.format("PAGE ")}<a:fld id="x" type="slidenum"><a:t>3</a:t></a:fld>'
            '<a:endParaRPr lang="en-GB"/></a:p><a:p><a:endParaRPr/></a:p>'
        ),
    )


def test_workbooks() -> None:
    """Names of columns stay, for formulas call them; so do texts that formulas compare."""
    strings = (
        f"<sst {X}><si><t>Red\nhouse</t></si><si><r><t>this is a </t></r>"
        "<r><rPr><b/></rPr><t>dog</t></r><rPh><t>ignored</t></rPh><phoneticPr/></si>"
        "<si><t>See a@b.org now_x000D_</t></si><si><t>12</t></si>"
        "<si><t>Price</t></si><si><t>Open</t></si></sst>"
    )
    sheet = (
        f'<worksheet {X}><c t="inlineStr"><is><t>In a cell</t></is></c><c t="str">'
        '<f>IF(A1="Open",1,2)</f><v>result</v></c></worksheet>'
    )
    check(
        "xlsx",
        archive(
            xl__workbook=f'<workbook {X}><sheet name="Sheet one"/></workbook>',
            xl__strings=strings,
            xl__sheet=sheet,
            xl__table=f'<table {X}><tableColumn id="1" name="Price"/></table>',
            xl__other=f"<styleSheet {X}><si><t>no text</t></si></styleSheet>",
        ),
        ["Red", "house", "this is a dog", "See a@b.org now", "In a cell"],
        xl__strings=strings.replace("Red\nhouse", "RED\nHOUSE")
        .replace("<r><t>this is a ", '<r><t xml:space="preserve">THIS IS A ')
        .replace("<t>dog", '<t xml:space="preserve">DOG')
        .replace("See a@b.org now", "SEE a@b.org NOW"),
        xl__sheet=sheet.replace("In a cell", "IN A CELL"),
    )


def writer(styles: str, content: str) -> str:
    return (
        f"<office:document-content {ODF}><office:automatic-styles>{styles}"
        f"</office:automatic-styles><office:body>{content}</office:body></office:document-content>"
    )


SESSION = '<style:style style:name="T1"><style:text-properties officeooo:rsid="1"/></style:style>'


def test_text_documents() -> None:
    """What is bold stays so; the style of a session of editing looks like none."""
    note = "<text:note><text:note-body><text:p>{}</text:p></text:note-body></text:note>"
    page = (
        "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
        '<text:h>The <text:span text:style-name="T1">big</text:span> day<text:s/>out<text:tab/>One'
        f"</text:h>\n<text:p>\n A {note.format('Small.')}dog<text:line-break/>barks at "
        '<text:span text:style-name="B">red ho</text:span><text:span text:style-name="B">use'
        "</text:span>.</text:p>"
        '<table:table-cell table:formula="x"><text:p>Sum</text:p></table:table-cell>'
    )
    written = (
        "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
        "<text:h>THE BIG DAY<text:s/>OUT<text:tab/>ONE"
        f"</text:h>\n<text:p> A {note.format('SMALL.')}DOG<text:line-break/>BARKS AT "
        '<text:span text:style-name="B">RED HOUSE</text:span>.</text:p>'
        '<table:table-cell table:formula="x"><text:p>Sum</text:p></table:table-cell>'
    )
    data = archive(
        mimetype="application/vnd.oasis.opendocument.text",
        content_xml=writer(SESSION, page),
        styles_xml=f"<office:document-styles {ODF}><text:p>Top</text:p></office:document-styles>",
    )
    check(
        "odt",
        data,
        ["The big day out", "One", "A dog barks at red house.", "Small.", "Top"],
        content_xml=writer(SESSION, written),
        styles_xml=f"<office:document-styles {ODF}><text:p>TOP</text:p></office:document-styles>",
    )
    with zipfile.ZipFile(io.BytesIO(translate_document(data, Shouting(), format="odt"))) as found:
        first = found.infolist()[0]
    assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)


def test_spans_follow_their_words() -> None:
    span = '<text:span text:style-name="B">big <text:a>link</text:a></text:span>'
    page = f"<text:p>here is a {span}</text:p>"
    known = {"here is a big link": ("ein grosser Link ist hier", (2, 3, 4, 1, 0))}
    found = translate_document(
        archive(content_xml=writer("", page)), Dictionary(known), format="odt"
    )
    bold = '<text:span text:style-name="B">{}</text:span>'
    adjective, noun = bold.format("grosser "), bold.format("Link")
    assert contents(found)["content_xml"] == writer(
        "", f"<text:p>ein {adjective}<text:a>{noun}</text:a> ist hier</text:p>"
    )


CONTAINER = '<container><rootfile full-path="o/book.opf"/></container>'


def book(title: str, label: str, page: str) -> bytes:
    items = (
        '<item href="a%20b.xhtml" media-type="application/xhtml+xml"/>'
        '<item href="../toc" media-type="application/x-dtbncx+xml"/>'
        '<item href="gone.xhtml" media-type="application/xhtml+xml"/>'
    )
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as result:
        result.writestr("mimetype", "application/epub+zip")
        result.writestr("META-INF/container.xml", CONTAINER)
        dc = 'xmlns:dc="http://purl.org/dc/elements/1.1/"'
        result.writestr(
            "o/book.opf", f"<package {dc}><dc:title>{title}</dc:title>{items}</package>"
        )
        ncx = f"<navLabel><text>{label}</text></navLabel>"
        result.writestr("toc", f'<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/">{ncx}</ncx>')
        result.writestr("o/a b.xhtml", f"<html><head><title/></head><body>{page}</body></html>")
        result.writestr("o/other.xhtml", "<p>not of the book</p>")
    return stream.getvalue()


def test_books() -> None:
    before = book("A book", "Chapter one", '<p>A <i>big</i> dog.<br/><a id="x"/></p>')
    after = book("A BOOK", "CHAPTER ONE", '<p>A <i>BIG</i> DOG.<br/><a id="x"/></p>')
    found = contents(after)
    changed = ("o/book.opf", "toc", "o/a b.xhtml")
    check(
        "epub",
        before,
        ["A book", "A big dog.", "Chapter one"],
        **{name: found[name] for name in changed},
    )


@pytest.mark.parametrize(
    ("format", "kind"),
    [("pptx", "presentation"), ("xlsx", "workbook"), ("odt", "OpenDocument"), ("epub", "book")],
)
def test_other_archives_are_named(format: str, kind: str) -> None:
    with pytest.raises(DataError, match=f"holds no {kind}"):
        echoed(archive(word__document_xml="<a/>"), format)
