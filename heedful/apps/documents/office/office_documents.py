"""Office documents and books: archives of XML files (DOCX, PPTX, XLSX, OpenDocument, EPUB)."""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from heedful.apps.documents.document import Document, MarkedText
from heedful.apps.documents.document_encoding import Charset, decode, xml_encoding, xml_reference
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.html_text import read_html
from heedful.apps.documents.office.document_archive import packed, unpacked
from heedful.apps.documents.office.paragraph_markup import standard_names
from heedful.apps.documents.office.paragraph_runs import read_runs
from heedful.apps.documents.passage import Passage
from heedful.apps.documents.xml_markup import first_tag, xml_tokens
from heedful.errors import DataError

_Read = Callable[[str, str], tuple[str, list[Passage]]]
"""Function from a file's text and name to the text in its regular form, and the passages."""

_HEAD = 1 << 14
"""Number of bytes that contain the first tag of a file, with its many namespaces."""
_SHEET = "x:worksheet"
_COLUMN = re.compile(
    r"<(?:\w+:)?(?:tableColumn|cacheField)\b[^<>]*?\s(?:name|totalsRowLabel)=\"([^\"]*)\""
)
_FORMULA = re.compile(r"<(?:\w+:)?(?:f|formula[12]?)(?:\s[^<>]*)?>([^<]*\"[^<]*|[^<]*&quot;[^<]*)<")
_GRAPHICS = ("c:chartSpace", "dgm:dataModel", "dsp:drawing")


@dataclass(frozen=True)
class OfficeFormat:
    """A format of office documents.

    Files are recognised by their first element, since programs may choose names freely.

    Args:
        kind: noun for messages.
        main: first element of the main file.
        others: first elements of other files with paragraphs.
    """

    kind: str
    main: str
    others: tuple[str, ...]

    def open(self, data: bytes, settings: DocumentSettings, name: str) -> Document:
        """Read a document.

        Args:
            data: bytes of the document.
            settings: settings of the document.
            name: name of the document, for messages.

        Raises:
            DataError: when the archive holds no such document, is encrypted or too large, or one of
                its files is not XML.
        """
        files = unpacked(data, name)
        roots = {path: _root(content) for path, content in files.items()}
        if self.main not in roots.values():
            raise DataError(
                f"The archive holds no {self.kind}",
                where=name,
                remedy="Its suffix may be wrong: name its format (--format)",
            )
        read = partial(read_runs, untranslated=frozenset(_called(files, roots, name)))
        chosen = [path for path, root in roots.items() if root in (self.main, *self.others)]
        # Sheets are large, and most hold no text; in UTF-16 letters have NUL bytes.
        chosen = [
            path
            for path in chosen
            if roots[path] != _SHEET or b"inlineStr" in files[path].replace(b"\0", b"")
        ]
        return _document(data, files, dict.fromkeys(chosen, read), settings, name)


DOCX = OfficeFormat(
    "document of Word",
    "w:document",
    ("w:hdr", "w:ftr", "w:footnotes", "w:endnotes", "w:comments", *_GRAPHICS),
)
PPTX = OfficeFormat(
    "presentation",
    "p:presentation",
    ("p:sld", "p:notes", "p:cmLst", "p188:cmLst", *_GRAPHICS),
)
XLSX = OfficeFormat(
    "workbook",
    "x:workbook",
    ("x:sst", _SHEET, "x:comments", "xt:ThreadedComments", "xdr:wsDr", *_GRAPHICS),
)
ODT = OfficeFormat("OpenDocument", "office:document-content", ("office:document-styles",))


def open_epub(data: bytes, settings: DocumentSettings, name: str) -> Document:
    """Read a book: its pages, its title, and the labels of its table of contents.

    Arguments and errors are those of `OfficeFormat.open`.
    """
    files = unpacked(data, name)
    parts: dict[str, _Read] = {}
    for package in _values(files, "META-INF/container.xml", "rootfile", "full-path", name):
        parts[package] = read_runs
        items = zip(
            _values(files, package, "item", "href", name),
            _values(files, package, "item", "media-type", name),
            strict=True,
        )
        for href, media_type in items:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(href)))
            if path in files and media_type == "application/xhtml+xml":
                parts[path] = partial(_page, settings)
            elif path in files and media_type == "application/x-dtbncx+xml":
                parts[path] = read_runs
    return _document(data, files, parts, settings, name)


def _page(settings: DocumentSettings, text: str, where: str) -> tuple[str, list[Passage]]:
    return text, list(read_html(text, settings, where))


def _values(
    files: Mapping[str, bytes], path: str, element: str, attribute: str, name: str
) -> list[str]:
    """Return an attribute of all elements with a name, from a file of a book."""
    if path not in files:
        raise DataError(
            f"The archive holds no book: {path} is missing",
            where=name,
            remedy="Its suffix may be wrong: name its format (--format)",
        )
    where = f"{name}: {path}"
    text, _ = decode(files[path], where, xml_encoding(files[path]))
    return [
        token.attribute(attribute) or ""
        for token in xml_tokens(text, where)
        if token.name == element and token.kind != "end"
    ]


def _document(
    data: bytes,
    files: Mapping[str, bytes],
    parts: Mapping[str, _Read],
    settings: DocumentSettings,
    name: str,
) -> Document:
    texts: dict[str, MarkedText] = {}
    charsets: dict[str, Charset] = {}
    for path, read in parts.items():
        where = f"{name}: {path}"
        text, charsets[path] = decode(files[path], where, xml_encoding(files[path]))
        texts[path] = MarkedText(*read(text, where), settings)

    def pack(written: Sequence[str]) -> bytes:
        changed = {
            path: charsets[path].encode(text, name, xml_reference)
            for path, text in zip(texts, written, strict=True)
        }
        return packed(data, files, changed)

    return Document(list(texts.values()), pack)


def _root(content: bytes) -> str:
    """Return the name of a file's first element, with the prefix that the standards use."""
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    root = first_tag(content[:_HEAD].decode(encoding, "ignore"))
    return "" if root is None else next(standard_names([root]))


def _called(files: Mapping[str, bytes], roots: Mapping[str, str], name: str) -> Iterator[str]:
    """Yield texts of cells that must stay, since other parts of a workbook refer to them.

    These are column names of tables (Excel reports damage if the header cell has another text), and
    texts that formulas and lists of valid values compare cells with.
    """
    for path, root in roots.items():
        if root not in (_SHEET, "x:table", "x:pivotCacheDefinition"):
            continue
        text, _ = decode(files[path], f"{name}: {path}", xml_encoding(files[path]))
        for match in _COLUMN.finditer(text) if root != _SHEET else ():
            column = html.unescape(match[1])
            yield re.sub("_x([0-9A-Fa-f]{4})_", lambda m: chr(int(m[1], 16)), column)
        for match in _FORMULA.finditer(text) if root == _SHEET else ():
            for literal in re.findall('"((?:[^"]|"")*)"', html.unescape(match[1])):
                yield literal.replace('""', '"')
                yield from literal.split(",")
