"""DOCX: paragraphs change, all other files and the look of words stay. The reference is lxml."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

import heedful.apps.documents.office.document_archive as document_archive
from heedful.apps.documents.formats import open_document, translate_document
from heedful.errors import DataError

from .translators import Dictionary, Shouting, Shuffling, echoed

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
    page = docx(PAGE)  # once: an archive has the time at which it was made
    assert echoed(page, "docx") == page


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
    monkeypatch.setattr(document_archive, "_MOST_BYTES", 1 << 19)
    with pytest.raises(DataError, match="larger than"):
        echoed(data, "docx")
    lying = data.replace((1 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    with pytest.raises(DataError, match="no whole archive"):
        echoed(lying, "docx")
    monkeypatch.setattr(document_archive, "_MOST_FILES", 3)
    with pytest.raises(DataError, match="larger than"):
        echoed(docx(PAGE), "docx")


def test_damage_is_named() -> None:
    with pytest.raises(DataError, match="no whole archive"):
        echoed(docx(PAGE).replace(b"PK\3\4", b"", 1), "docx")  # the first file is out of its place
    with pytest.raises(DataError, match="no whole archive"):
        echoed(b"PK\3\4 and no more", "docx")
    with pytest.raises(DataError, match="encrypted, or of a format from before 2007"):
        echoed(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(504), "docx")
    with pytest.raises(DataError, match="no whole archive"):
        echoed(docx(PAGE)[:-40], "docx")
    stream = io.BytesIO()
    zipfile.ZipFile(stream, "w").close()
    with pytest.raises(DataError, match="holds no document of Word"):
        echoed(stream.getvalue(), "docx")
    with pytest.raises(DataError, match=r"word/document.xml: Line 2, column \d+ is no XML"):
        echoed(docx("<w:p>"), "docx")


def sentence_and_body(*pieces: str) -> tuple[list[str], str]:
    data = docx(f"<w:p>{''.join(pieces)}</w:p>")
    return sentences(data), body(shouted(data))


def test_neighbouring_runs_of_one_look_are_one() -> None:
    """Marks of spelling, comments and bookmarks, languages and sessions do not part them."""
    session = '<w:rPr><w:b/><w:lang w:val="en-GB"/></w:rPr>'
    for between in (
        "",
        '<w:proofErr w:type="spellEnd"/>',
        '<w:bookmarkStart w:id="3" w:name="x"/>',
    ):
        data = docx(
            f"<w:p>{run('The ')}{run('red ho', BOLD)}{between}{run('use', session)}"
            f"{run(' is old.')}</w:p>"
        )
        known = {"The red house is old.": ("Alt ist das rote Haus.", (4, 3, 0, 1, 2))}
        found = translate_document(data, Dictionary(known), format="docx")
        assert looks(found) == [("Alt ist das ", False), ("rote Haus", True), (".", False)]
        assert body(found).count("<w:proofErr") == body(data).count("<w:proofErr")


@pytest.mark.parametrize("own_run", [False, True])
@pytest.mark.parametrize(
    ("mark", "read"),
    [
        ("<w:noBreakHyphen/>", "The well-known man sleeps."),
        ("<w:softHyphen/>", "The wellknown man sleeps."),
        ("<w:lastRenderedPageBreak/>", "The wellknown man sleeps."),
        ('<w:sym w:font="Wingdings" w:char="F0E0"/>', "The well known man sleeps."),
        ("<w:tab/>", "The well known man sleeps."),
        ("<w:br/>", "The well known man sleeps."),
    ],
)
def test_marks_stay_at_their_place(mark: str, read: str, own_run: bool) -> None:
    apart = f"</w:t></w:r><w:r>{mark}</w:r><w:r><w:t>" if own_run else f"</w:t>{mark}<w:t>"
    found, written = sentence_and_body(f"<w:r><w:t>The well{apart}known man sleeps.</w:t></w:r>")
    assert found == [read]
    pieces = re.sub(r"</?w:(?:r|t|p)(?: [^>]*)?>", "", written)
    assert pieces == f"THE WELL{mark}KNOWN MAN SLEEPS."
    assert_content_model(etree.fromstring(f'<w:body xmlns:w="{W}">{written}</w:body>'))


def test_a_word_may_lose_its_hyphen() -> None:
    page = docx("<w:p><w:r><w:t>well</w:t><w:noBreakHyphen/><w:t>known</w:t></w:r></w:p>")
    found = translate_document(page, Dictionary({"well-known": ("bekannt", (0,))}), format="docx")
    assert looks(found) == [("bekannt", False)]


def test_breaks_between_lines_part_sentences() -> None:
    """A page break does, and what stands before the first word stays before it."""
    page = (
        "<w:r><w:lastRenderedPageBreak/><w:t>the end</w:t>"
        '<w:br w:type="page"/><w:t>of it</w:t></w:r>'
    )
    found, written = sentence_and_body(page)
    assert found == ["the end", "of it"]
    assert re.findall(r"<w:(\w+)[^>]*/>|>([A-Z ]+)<", written) == [
        ("lastRenderedPageBreak", ""), ("", "THE END"), ("br", ""), ("", "OF IT"),
    ]  # fmt: skip


def test_kept_parts_are_runs_of_their_look() -> None:
    found = translate_document(
        docx(f"<w:p>{run('Please see https://example.org/page for more.', BOLD)}</w:p>"),
        Dictionary(
            {
                "Please see https://example.org/page for more.": (
                    "Mehr auf https://example.org/page bitte.", (4, 3, 2, 0)
                )
            }
        ),
        format="docx",
    )  # fmt: skip
    written = [("Mehr auf ", BOLD), ("https://example.org/page", BOLD), (" bitte.", BOLD)]
    assert body(found) == f"<w:p>{''.join(run(*each) for each in written)}</w:p>"


def test_a_kept_part_over_several_runs_keeps_them() -> None:
    """In a link, and where its runs look different."""
    address = run("https://exam", BOLD) + run("ple.org/page")
    link = '<w:hyperlink r:id="r1" xmlns:r="u">'
    for before, after in ((link, "</w:hyperlink>"), ("", "")):
        found, written = sentence_and_body(
            before, run("See https://exam", BOLD), run("ple.org/page now"), after, run(" and then.")
        )
        assert found == ["See https://example.org/page now and then."]
        assert address in written
        assert written.count("<w:hyperlink") == written.count("</w:hyperlink>") == bool(before)


def test_fields_that_are_links_are_translated() -> None:
    """Also a table of contents, whose field begins in its first paragraph and ends in its last."""

    def field(kind: str) -> str:
        return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'

    code = '<w:r><w:instrText xml:space="preserve"> {} "u" </w:instrText></w:r>'
    link = field("begin") + code.format("HYPERLINK") + field("separate")
    data = docx(
        f"<w:p>{run('See ')}{link}{run('this page', BOLD)}{field('end')}{run(' now.')}</w:p>"
        f"<w:p>{field('begin')}{code.format('TOC')}{field('separate')}{run('Chapter one')}</w:p>"
        f"<w:p>{run('Chapter two')}{field('end')}</w:p>"
    )
    assert sentences(data) == ["See this page now.", "Chapter one", "Chapter two"]
    found = body(shouted(data))
    assert f"{link}{run('THIS PAGE', BOLD)}{field('end')}" in found
    assert found.count("fldChar") == body(data).count("fldChar")


def test_elements_around_runs_stay_whole() -> None:
    control = "<w:sdt><w:sdtPr><w:id w:val='1'/></w:sdtPr><w:sdtContent>{}</w:sdtContent></w:sdt>"
    formula = '<m:oMath xmlns:m="u"><m:r><m:t>x</m:t></m:r></m:oMath>'
    ruby = (
        "<w:r><w:ruby><w:rubyPr/><w:rt><w:r><w:t>kan</w:t></w:r></w:rt>"
        "<w:rubyBase><w:r><w:t>K</w:t></w:r></w:rubyBase></w:ruby></w:r>"
    )
    found, written = sentence_and_body(
        control.format(run("A cat") + formula), f"<w:ins w:id='2'>{run(' sits ')}</w:ins>", ruby
    )
    assert found == ["A cat sits K"]
    assert control.format(run("A CAT") + formula) in written
    assert re.search(r"<w:ins w:id='2'><w:r><w:t[^>]*> ?SITS ?</w:t></w:r></w:ins>", written)
    assert ruby in written


def test_a_bookmark_starts_before_it_ends() -> None:
    start, end = '<w:bookmarkStart w:id="7" w:name="b"/>', '<w:bookmarkEnd w:id="7"/>'
    data = docx(f"<w:p>{run('I ')}{start}{run('saw ')}{end}{run('you today.')}</w:p>")
    known = {"I saw you today.": ("Heute dich gesehen habe ich.", (3, 2, 1, None, 0))}
    found = body(translate_document(data, Dictionary(known), format="docx"))
    assert found.index(start) < found.index(end)


def test_what_stands_at_an_edge_stays_there() -> None:
    """A picture before the first word and a note after the last do not follow these words."""
    picture, note = "<w:r><w:drawing/></w:r>", '<w:r><w:footnoteReference w:id="1"/></w:r>'
    data = docx(f"<w:p>{picture}{run('I see ')}{run('you', BOLD)}{run('.')}{note}</w:p>")
    known = {"I see you.": ("Dich sehe ich.", (2, 1, 0))}
    found = body(translate_document(data, Dictionary(known), format="docx"))
    assert found.startswith(f"<w:p>{picture}{run('Dich', BOLD)}")
    assert found.endswith(f"{run(' sehe ich.')}{note}</w:p>")


def test_parts_are_known_by_their_content() -> None:
    """The main part may have any name and prefix; charts have texts of their own."""
    stream = io.BytesIO()
    chart = (
        '<c:chartSpace xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" '
        'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><c:rich><a:p><a:r><a:t>'
        "Sold</a:t></a:r><a:endParaRPr/></a:p></c:rich><c:strCache><c:pt><c:v>East</c:v></c:pt>"
        "</c:strCache><c:numCache><c:pt><c:v>1e3</c:v></c:pt></c:numCache></c:chartSpace>"
    )
    strict = "http://purl.oclc.org/ooxml/wordprocessingml/main"
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(
            "text/main.part",
            f'<document xmlns="{strict}"><body><p><pPr/><r><t>Dogs bark</t><tab/></r></p></body>'
            "</document>",
        )
        archive.writestr("a/plot", chart)
    data = stream.getvalue()
    assert sentences(data) == ["Dogs bark", "Sold", "East"]
    found = contents(shouted(data))
    assert (
        b'<r><t xml:space="preserve">DOGS BARK</t></r><r><tab/></r></p>' in found["text/main.part"]
    )
    assert found["a/plot"].decode() == chart.replace("Sold", "SOLD").replace("East", "EAST")


def test_deep_nesting_is_refused() -> None:
    """An attack could exhaust the stack with it."""
    for name, depth in (("w:p", 20), ("w:hyperlink", 300)):
        inner = f"<w:p>{run('deep')}</w:p>"
        with pytest.raises(DataError, match=r"word/document\.xml: More than .* nested"):
            sentences(docx(f"<{name}>" * depth + inner + f"</{name}>" * depth))


RUN_LEVEL = {"t", "tab", "br", "noBreakHyphen", "softHyphen", "sym", "rPr", "lastRenderedPageBreak"}


def assert_content_model(root: etree._Element) -> None:
    """Word's schema: properties first, runs of run content, no text outside of `w:t`."""
    for element in root.iter():
        names = [etree.QName(child).localname for child in element]
        name = etree.QName(element).localname
        if name in ("p", "hyperlink", "ins"):
            assert not RUN_LEVEL & set(names), names
        if name in ("p", "hyperlink", "ins", "r"):
            assert not any(
                text.strip() for text in [element.text or "", *[c.tail or "" for c in element]]
            )
        if name == "r":
            assert set(names) <= RUN_LEVEL
            assert "rPr" not in names[1:]
        if name == "p":
            assert "pPr" not in names[1:]


LINK = f"<w:hyperlink>{run('to a')}{run('b', BOLD)}</w:hyperlink>"
PIECES = st.one_of(
    TEXTS.map(lambda text: run(text.replace("&", "&amp;").replace("<", "&lt;"))),
    TEXTS.map(lambda text: run(text.replace("&", "&amp;").replace("<", "&lt;"), BOLD)),
    st.sampled_from(
        [
            "<w:proofErr/>",
            "<w:r><w:tab/></w:r>",
            f"<w:r>{BOLD}<w:t>a</w:t><w:br/><w:t>b c</w:t></w:r>",
            "<w:r><w:t>x</w:t><w:noBreakHyphen/></w:r>",
            run("https://a.org/b"),
            run("a@b.org", BOLD),
            run(" {name} "),
            LINK,
            f"<w:ins>{run('In it.', BOLD)}<w:r><w:softHyphen/></w:r></w:ins>",
        ]
    ),
)


@settings(max_examples=40)
@given(st.lists(PIECES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_translation_is_valid(pieces: list[str], random: Random) -> None:
    """Words in any order, as they are or changed: each element stays, and none is torn."""
    data = docx(f"<w:p><w:pPr/>{''.join(pieces)}</w:p>")
    assert echoed(data, "docx") == data
    for change in (str, str.swapcase):
        found = translate_document(data, Shuffling(random, change), format="docx")
        root = etree.fromstring(contents(found)["word/document.xml"])
        assert_content_model(root)
        kept = r"<w:(?!r>|t[ >]|rPr|b/|i/|noBreakHyphen)[^>]*>"
        assert sorted(re.findall(kept, body(found))) == sorted(re.findall(kept, body(data)))
