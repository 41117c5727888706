"""The elements of paragraphs in office formats: runs, texts, and other elements among them.

Names have the prefixes that the standards use (ECMA-376, OASIS OpenDocument); a document may
declare other prefixes for the same namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from heedful.apps.documents.xml_markup import Token

_OOXML = re.compile(
    r"http://(?:schemas\.openxmlformats\.org|purl\.oclc\.org/ooxml)/(\w+?)(?:/2006)?/(\w+)"
)
_OF_OOXML = {
    ("wordprocessingml", "main"): "w",
    ("drawingml", "main"): "a",
    ("drawingml", "chart"): "c",
    ("drawingml", "diagram"): "dgm",
    ("drawingml", "spreadsheetDrawing"): "xdr",
    ("presentationml", "main"): "p",
    ("spreadsheetml", "main"): "x",
}
_OTHERS = {
    "http://schemas.microsoft.com/office/drawing/2008/diagram": "dsp",
    "http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments": "xt",
    "http://schemas.microsoft.com/office/powerpoint/2018/8/main": "p188",
    "urn:oasis:names:tc:opendocument:xmlns:text:1.0": "text",
    "urn:oasis:names:tc:opendocument:xmlns:office:1.0": "office",
    "urn:oasis:names:tc:opendocument:xmlns:style:1.0": "style",
    "urn:oasis:names:tc:opendocument:xmlns:table:1.0": "table",
    "http://www.daisy.org/z3986/2005/ncx/": "ncx",
    "http://purl.org/dc/elements/1.1/": "dc",
}
_DECLARATION = re.compile(r"xmlns(?::([^\s=]+))?\s*=\s*[\"']([^\"']*)[\"']")


def standard_names(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the element name of each token with the standard prefix; "" for text.

    Args:
        tokens: tokens of a whole document.
    """
    scopes: list[dict[str, str]] = [{}]
    for token in tokens:
        if token.kind not in ("start", "empty", "end"):
            yield ""
            continue
        scope = scopes.pop() if token.kind == "end" else scopes[-1]
        if "xmlns" in token.attributes and token.kind != "end":
            declared = _DECLARATION.finditer(token.attributes)
            scope = scope | {match[1] or "": _standard(match[2], match[1]) for match in declared}
        if token.kind == "start":
            scopes.append(scope)
        prefix = scope.get(token.prefix, token.prefix)
        yield f"{prefix}:{token.name}" if prefix else token.name


def _standard(namespace: str, prefix: str | None) -> str:
    """Return the standard prefix of a namespace; the given one if no standard has the namespace."""
    if (match := _OOXML.fullmatch(namespace)) is not None:
        return _OF_OOXML.get((match[1], match[2]), prefix or "")
    return _OTHERS.get(namespace, prefix or "")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class ParagraphMarkup:
    """The elements of one kind of paragraph.

    Args:
        run: element of text with one formatting; if `text` is empty, an element around text that is
            directly in the paragraph.
        properties: element with the formatting of a run.
        text: element of a run that holds its text; "" if text is directly in the paragraph.
        text_attributes: attributes of a text element that keep spaces at its ends.
        edges: children of the paragraph that come before or after all runs.
        pairs: elements around runs.
        heads: children of `pairs` that come before the runs.
        content: child of `pairs` that holds the runs, if there is one.
        marks: elements that stand for a character.
        shown: elements that are kept whole and show text that is part of the sentence.
        folds: true if a line break in the text stands for a space.
    """

    run: str = ""
    properties: str = ""
    text: str = ""
    text_attributes: str = ""
    edges: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()
    heads: frozenset[str] = frozenset()
    content: str = ""
    marks: dict[str, str] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()
    folds: bool = True


_PRESERVE = ' xml:space="preserve"'
_PLAIN = ParagraphMarkup(folds=False)
_FOLDED = ParagraphMarkup()
_CELL = ParagraphMarkup(
    "x:r", "x:rPr", "x:t", _PRESERVE, edges=_names("x:rPh x:phoneticPr"), folds=False
)
_OPEN_DOCUMENT = ParagraphMarkup(
    "text:span",
    pairs=_names("text:a text:meta"),
    marks={"text:s": " ", "text:tab": "\t", "text:line-break": "\n"},
    shown=_names(
        "text:ruby text:page-number text:page-count text:date text:time text:sequence "
        "text:bookmark-ref text:reference-ref text:note-ref text:sequence-ref text:chapter "
        "text:variable-set text:variable-get text:user-field-get text:database-display "
        "text:author-name text:title text:subject text:expression text:placeholder"
    ),
)
PARAGRAPHS = {
    "w:p": ParagraphMarkup(
        "w:r",
        "w:rPr",
        "w:t",
        _PRESERVE,
        edges=_names("w:pPr"),
        pairs=_names("w:hyperlink w:ins w:moveTo w:smartTag w:sdt w:customXml w:dir w:bdo"),
        heads=_names("w:smartTagPr w:customXmlPr w:sdtPr w:sdtEndPr"),
        content="w:sdtContent",
        marks={
            "w:tab": "\t", "w:ptab": "\t", "w:br": "\n", "w:cr": "\n", "w:sym": " ",
            "w:noBreakHyphen": "-",
        },
        shown=_names("w:fldSimple w:ruby"),
    ),
    "a:p": ParagraphMarkup(
        "a:r",
        "a:rPr",
        "a:t",
        edges=_names("a:pPr a:endParaRPr"),
        marks={"a:br": "\n"},
        shown=_names("a:fld"),
    ),
    "x:si": _CELL,
    "x:is": _CELL,
    "x:text": _CELL,
    "x:si/x:t": _PLAIN,
    "x:is/x:t": _PLAIN,
    "x:text/x:t": _PLAIN,
    "xt:threadedComment/xt:text": _PLAIN,
    "p:cm/p:text": _PLAIN,
    "c:pt/c:v": _FOLDED,
    "c:tx/c:v": _FOLDED,
    "text:p": _OPEN_DOCUMENT,
    "text:h": _OPEN_DOCUMENT,
    "dc:title": _FOLDED,
    "ncx:text": _FOLDED,
}  # fmt: skip
"""Kinds of paragraphs by the name of the element, or by the names of its parent and the element."""

UNREAD = _names("c:numCache c:numLit text:tracked-changes")
"""Elements whose paragraphs are not translated: numbers and deleted text."""

_UNSEEN = re.compile(
    r"\s(?:lang|altLang|dirty|err|smtClean|noProof|bmk|\w+:rsid\w*|\w+:paragraph-rsid)=\"[^\"]*\""
    r"|\s(?:fo:language|fo:country|fo:script|style:(?:language|country|script|rfc-language-tag)"
    r"(?:-\w+)?)=\"[^\"]*\""
    r"|<(?:\w+:)?(?:lang|noProof)\b[^>]*/>"
)
"""Invisible properties of a run: language, spelling, and editing session."""
_EMPTY = re.compile(r"<([\w:-]+)\s*(?:/>|></\1>)")


def visible_look(properties: str) -> str:
    """Return the visible properties of a run; they are equal for runs that look the same.

    Args:
        properties: element with the properties, as XML.
    """
    seen = _UNSEEN.sub("", properties)
    return "" if _EMPTY.fullmatch(seen) else seen
