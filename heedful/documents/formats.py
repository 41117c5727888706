"""The formats of documents, and the way from bytes to bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from heedful.documents import document_encoding as encodings
from heedful.documents.document import Document, MarkedText
from heedful.documents.document_settings import SETTINGS, DocumentSettings
from heedful.documents.line_up import TranslatedSentence
from heedful.documents.passage import Passage
from heedful.errors import DataError

Reader = Callable[[str, DocumentSettings, str], Iterator[Passage]]
"""Finds the passages of a text; called with the text, settings and the document's name."""


class DocumentTranslator(Protocol):
    """A translator of sentences, as `translate_document` calls it."""

    def translate(self, texts: Sequence[str], *, alignment: bool) -> Sequence[TranslatedSentence]:
        """Translate sentences: one translation for each, in their order.

        Args:
            texts: lines.
            alignment: whether alignments are needed; without them markup keeps its order.
        """
        ...


@dataclass(frozen=True)
class Format:
    """A format of documents.

    Args:
        name: that `--format` takes.
        suffixes: of files.
        open: reads a document; called with its bytes, settings and name.
    """

    name: str
    suffixes: tuple[str, ...]
    open: Callable[[bytes, DocumentSettings, str], Document]


def translate_document(
    data: bytes,
    translator: DocumentTranslator,
    *,
    format: str,
    settings: DocumentSettings = SETTINGS,
    name: str = "document",
) -> bytes:
    """Translate a document; all that is not text stays as it is, byte by byte.

    Args:
        data: the document.
        translator: of its sentences; called with all of them at once, or twice where some need
            alignments and others do not.
        format: name of one of the `FORMATS`.
        settings: of the document.
        name: what to call it in messages.

    Raises:
        DataError: when it is damaged or no document of that format.
        ConfigError: when there is no such format, or a library for it is missing.
    """
    document = open_document(data, format=format, settings=settings, name=name)
    found: dict[str, TranslatedSentence] = {}
    for alignment in (False, True):
        texts = [each.text for each in document.sentences if each.alignment == alignment]
        if texts:
            answers = translator.translate(texts, alignment=alignment)
            found |= zip(texts, answers, strict=True)
    return document.write([found[sentence.text] for sentence in document.sentences])


def open_document(
    data: bytes,
    *,
    format: str,
    settings: DocumentSettings = SETTINGS,
    name: str = "document",
) -> Document:
    """Read a document: find its sentences.

    Args and errors are those of `translate_document`.
    """
    return FORMATS[format].open(data, settings, name)


def format_of(path: PurePath) -> str:
    """Return the name of the format that a file's suffix says.

    Raises:
        DataError: when it says none.
    """
    suffix = path.suffix.lower()
    for format in FORMATS.values():
        if suffix in format.suffixes:
            return format.name
    raise DataError(
        f"The suffix {suffix!r} is of no known format" if suffix else "The name has no suffix",
        where=str(path),
        remedy=f"Say which format it is: --format {'|'.join(FORMATS)}",
    )


def _text_format(
    read: Callable[[], Reader],
    declared: Callable[[bytes], str | None] | None = None,
    escape: Callable[[str], str] | None = None,
) -> Callable[[bytes, DocumentSettings, str], Document]:
    """Return what opens a format that is a single text.

    Args:
        read: loads the format's reader.
        declared: finds the encoding that a document declares.
        escape: writes a character that the document's encoding lacks.
    """

    def open_text(data: bytes, settings: DocumentSettings, name: str) -> Document:
        encoding = settings.encoding or (declared(data) if declared is not None else None)
        text, charset = encodings.decode(data, name, encoding)
        marked = MarkedText(text, read()(text, settings, name), settings)
        return Document([marked], lambda texts: charset.encode(texts[0], name, escape))

    return open_text


def _plain_text() -> Reader:
    from heedful.documents.plain_text import read_plain_text

    return read_plain_text


def _srt() -> Reader:
    from heedful.documents.subtitles import read_srt

    return read_srt


def _vtt() -> Reader:
    from heedful.documents.subtitles import read_vtt

    return read_vtt


def _json() -> Reader:
    from heedful.documents.json_strings import read_json

    return read_json


def _csv() -> Reader:
    from heedful.documents.table_cells import read_csv

    return read_csv


def _tsv() -> Reader:
    from heedful.documents.table_cells import read_tsv

    return read_tsv


def _html() -> Reader:
    from heedful.documents.html_text import read_html

    return read_html


def _markdown() -> Reader:
    from heedful.documents.markdown_text import read_markdown

    return read_markdown


FORMATS = {
    format.name: format
    for format in (
        Format("text", (".txt", ".text"), _text_format(_plain_text)),
        Format(
            "html",
            (".html", ".htm", ".xhtml"),
            _text_format(_html, encodings.html_encoding, encodings.xml_reference),
        ),
        Format("markdown", (".md", ".markdown"), _text_format(_markdown)),
        Format("srt", (".srt",), _text_format(_srt)),
        Format("vtt", (".vtt",), _text_format(_vtt)),
        Format(
            "json",
            (".json", ".jsonl", ".ndjson"),
            _text_format(_json, escape=encodings.json_escape),
        ),
        Format("csv", (".csv",), _text_format(_csv)),
        Format("tsv", (".tsv", ".tab"), _text_format(_tsv)),
    )
}
