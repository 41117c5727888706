"""Decoding and encoding of documents: byte order marks and declared encodings."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass

from heedful.errors import DataError

_MARKS = (  # UTF-32 first, because its mark begins with the mark of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_HTML_DECLARATION = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE
)
_XML_DECLARATION = re.compile(rb"<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]+)")
_PO_DECLARATION = re.compile(rb"Content-Type:[^\"\n]*charset=([\w.:-]+)", re.IGNORECASE)
_HTML_PRESCAN = 1024
"""Number of first bytes of a page that must declare its encoding (WHATWG HTML, 13.2.3.2)."""
_FEWEST_NULS = 8  # NUL is one of the two bytes of an ASCII letter in UTF-16
_LATIN = {"ascii", "iso8859-1"}
"""Names that mean windows-1252 in pages (WHATWG Encoding, 4.2)."""


_NO_CHARSETS = {"idna", "punycode", "undefined"}
"""Python codecs that are no encodings of documents, and that raise errors of other types."""


@dataclass(frozen=True)
class Charset:
    """An encoding of a document.

    Args:
        name: name of Python's codec.
        mark: byte order mark at the beginning of the document.
    """

    name: str
    mark: bytes

    def encode(self, text: str, where: str, escape: Callable[[str], str] | None = None) -> bytes:
        """Return the bytes of a document.

        Args:
            text: text of the document.
            where: name of the document, for messages.
            escape: function that writes a character which the encoding lacks.

        Raises:
            DataError: when the encoding lacks a character.
        """
        try:
            return self.mark + text.encode(self.name)
        except UnicodeEncodeError as error:
            if escape is None:
                raise DataError(
                    f"The translation has {text[error.start]!r}, which the document's encoding "
                    f"({self.name}) lacks",
                    where=where,
                    remedy="Convert the document to UTF-8 first, for example: iconv -t UTF-8",
                ) from None
        lacking = {c for c in set(text) if not self._has(c)}
        escaped = "".join(escape(c) if c in lacking else c for c in text)
        return self.mark + escaped.encode(self.name)

    def _has(self, character: str) -> bool:
        try:
            character.encode(self.name)
        except UnicodeEncodeError:
            return False
        return True


def decode(data: bytes, where: str, declared: str | None) -> tuple[str, Charset]:
    """Return the characters of a document and their encoding.

    Args:
        data: bytes of the document.
        where: name of the document, for messages.
        declared: declared encoding; UTF-8 if None. A byte order mark has precedence.

    Raises:
        DataError: naming the first byte that is invalid in the encoding, or when the text is UTF-16
            without a byte order mark.
    """
    mark, name = next(
        ((mark, name) for mark, name in _MARKS if data.startswith(mark)),
        (b"", declared or "utf-8"),
    )
    try:
        codec = codecs.lookup(name)
        if codec.name in _NO_CHARSETS:
            raise LookupError
        text = data[len(mark) :].decode(name)
    except LookupError:
        raise DataError(
            f"The document says that its encoding is {name!r}, which is unknown",
            where=where,
            remedy="Name it with --encoding",
        ) from None
    except UnicodeDecodeError as error:
        offset = error.start + len(mark)
        line = data[:offset].count(b"\n") + 1
        raise DataError(
            f"Byte {offset} (line {line}) is 0x{data[offset]:02x}, which is not {codec.name}",
            where=where,
            remedy="Name the document's encoding, for example: --encoding windows-1252",
        ) from None
    if order := _order_of_pairs(data[len(mark) :]) if codec.name == "utf-8" else None:
        raise DataError(
            "It seems to be UTF-16 without a byte order mark",
            where=where,
            remedy=f"Name the document's encoding, for example: --encoding utf-16-{order}",
        )
    if text.encode(name) != data[len(mark) :]:
        raise DataError(
            f"The same characters would be written as other bytes in {codec.name}",
            where=where,
            remedy="Convert the document to UTF-8 first, for example: iconv -t UTF-8",
        )
    return text, Charset(name, mark)


def _order_of_pairs(data: bytes) -> str | None:
    """Return `le` or `be` for bytes that look like UTF-16: half of the pairs have one NUL."""
    seconds, firsts = data[1::2].count(0), data[::2].count(0)
    for order, here, there in (("le", seconds, firsts), ("be", firsts, seconds)):
        if here >= _FEWEST_NULS and not there and 4 * here > len(data):
            return order
    return None


def html_encoding(data: bytes) -> str | None:
    """Return the encoding that a page declares."""
    match = _HTML_DECLARATION.search(data[:_HTML_PRESCAN]) or _XML_DECLARATION.match(data)
    if match is None:
        return None
    name = match[1].decode("ascii", "replace")
    try:
        return "windows-1252" if codecs.lookup(name).name in _LATIN else name
    except LookupError:
        return name


def xml_encoding(data: bytes) -> str | None:
    """Return the encoding that an XML document declares."""
    match = _XML_DECLARATION.match(data)
    return None if match is None else match[1].decode("ascii", "replace")


def po_encoding(data: bytes) -> str | None:
    """Return the encoding that a gettext catalogue declares; templates may declare none."""
    match = _PO_DECLARATION.search(data)
    name = "" if match is None else match[1].decode("ascii", "replace")
    return None if name in ("", "CHARSET") else name


def xml_reference(character: str) -> str:
    """Return the character reference of a character in XML and HTML."""
    return f"&#{ord(character)};"


def json_escape(character: str) -> str:
    """Return a character as JSON escapes it."""
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
