"""Document formats, and the translation of a whole document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from heedful.apps.documents import document_encoding as encodings
from heedful.apps.documents.document import Document, MarkedText, Place
from heedful.apps.documents.document_settings import SETTINGS, DocumentSettings
from heedful.apps.documents.document_structure import (
    STRUCTURES,
    StructurePart,
    archive_structure,
    difference,
)
from heedful.apps.documents.line_up import TranslatedSentence
from heedful.apps.documents.office.office_documents import DOCX, ODT, PPTX, XLSX, open_epub
from heedful.apps.documents.readers import READERS
from heedful.errors import DataError
from heedful.pipelines.text_splitting import Translation


class DocumentTranslator(Protocol):
    """A translator of sentences, as `translate_document` calls it."""

    def translate(
        self, texts: Sequence[str], *, alignment: bool
    ) -> Sequence[TranslatedSentence] | Sequence[Translation]:
        """Translate sentences; return one translation for each, in the same order.

        Args:
            texts: lines of text.
            alignment: true to return word alignments; without alignments markup keeps its order.
        """
        ...


@dataclass(frozen=True)
class WrittenDocument:
    """A translated document.

    Args:
        data: bytes of the document.
        left_out: place, text and reason of each passage that was not translated.
    """

    data: bytes
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Format:
    """A format of documents.

    Args:
        name: value of `--format`.
        suffixes: suffixes of file names.
        open: function that reads a document from its bytes, settings and name.
        structure: function with the same arguments that yields the structure of a document.
    """

    name: str
    suffixes: tuple[str, ...]
    open: Callable[[bytes, DocumentSettings, str], Document]
    structure: Callable[[bytes, DocumentSettings, str], Iterator[StructurePart]] = archive_structure

    def write(
        self,
        document: Document,
        translations: Sequence[TranslatedSentence],
        source: bytes,
        settings: DocumentSettings,
        name: str,
        *,
        lenient: bool,
    ) -> WrittenDocument:
        """Write a translated document, and compare its structure with that of its source.

        The structure is read by independent code, see `document_structure`.

        Args:
            document: document that was opened.
            translations: translations of its sentences, in their order.
            source: bytes of the document.
            settings: settings of the document.
            name: name of the document, for messages.
            lenient: true to leave passages unchanged if their translation would change the
                structure.

        Raises:
            DataError: naming the passage whose translation would change the structure.
        """
        parts: list[StructurePart] = []

        def before() -> Iterator[StructurePart]:
            if not parts:  # read once, since a search by halving compares many times
                parts.extend(self.structure(source, settings, name))
            yield from parts

        def problem(left: Iterable[Place]) -> str | None:
            written = document.write(translations, frozenset(left))
            return difference(before(), self.structure(written, settings, name))

        written = document.write(translations)
        found = None
        if written != source:
            found = difference(before(), self.structure(written, settings, name))
        if found is None:
            return WrittenDocument(written, document.left_out)
        every = document.places
        culprits = [] if problem(every) else _culprits(every, problem, most=None if lenient else 1)
        if not culprits or not lenient:
            where = document.described(culprits[0], found) if culprits else found
            raise DataError(
                f"The translation would change the structure of the document at {where}",
                where=name,
                remedy="Nothing was written; leave such passages as they are with --lenient",
            )
        written = document.write(translations, frozenset(culprits))
        reason = "its translation would change the structure"
        left = tuple(document.described(each, reason) for each in culprits)
        return WrittenDocument(written, (*document.left_out, *left))


def _culprits(
    every: Sequence[Place], problem: Callable[[Iterable[Place]], str | None], most: int | None
) -> list[Place]:
    """Find the passages whose translations cause the problem, by halving.

    Args:
        every: all passages.
        problem: function that returns the problem that remains if some passages stay unchanged.
        most: maximum number of passages to find; None for all.
    """
    left = set(every)
    culprits: list[Place] = []
    waiting = [list(every)]
    while waiting and (most is None or len(culprits) < most):
        some = waiting.pop()
        if problem(left.difference(some)) is None:
            left.difference_update(some)
        elif len(some) == 1:
            culprits += some
        else:
            half = len(some) // 2
            waiting += [some[half:], some[:half]]
    return culprits


def translate_document(
    data: bytes,
    translator: DocumentTranslator,
    *,
    format: str,
    settings: DocumentSettings = SETTINGS,
    name: str = "document",
    lenient: bool = False,
) -> bytes:
    """Translate a document; all bytes that are not text stay the same.

    Args:
        data: bytes of the document.
        translator: translator of sentences, such as `heedful.load` returns; called once with all
            sentences, or twice if only some need alignments.
        format: name of one of the `FORMATS`.
        settings: settings of the document.
        name: name of the document, for messages.
        lenient: true to leave passages unchanged if their translation would change the structure.

    Raises:
        DataError: when the document is damaged or has another format, or its translation would
            change its structure.
        ConfigError: when the format is unknown, or a library for it is missing.
    """
    document = open_document(data, format=format, settings=settings, name=name)
    found: dict[str, TranslatedSentence] = {}
    for alignment in (False, True):
        texts = [each.text for each in document.sentences if each.alignment == alignment]
        if texts:
            answers = translator.translate(texts, alignment=alignment)
            found |= zip(texts, map(_sentence, answers), strict=True)
    translations = [found[sentence.text] for sentence in document.sentences]
    chosen = FORMATS[format]
    return chosen.write(document, translations, data, settings, name, lenient=lenient).data


def _sentence(answer: TranslatedSentence | Translation) -> TranslatedSentence:
    if isinstance(answer, TranslatedSentence):
        return answer
    return TranslatedSentence(str(answer), answer.alignment)


def open_document(
    data: bytes,
    *,
    format: str,
    settings: DocumentSettings = SETTINGS,
    name: str = "document",
) -> Document:
    """Read a document: find its sentences.

    Arguments and errors are those of `translate_document`.
    """
    return FORMATS[format].open(data, settings, name)


def format_of(path: PurePath) -> str:
    """Return the name of the format for a file's suffix.

    Raises:
        DataError: when the suffix is unknown.
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
    name: str,
    suffixes: str,
    declared: Callable[[bytes], str | None] | None = None,
    escape: Callable[[str], str] | None = None,
) -> Format:
    """Return a format that is a single text.

    Args:
        name: name of the format.
        suffixes: suffixes of file names.
        declared: function that finds the encoding which a document declares.
        escape: function that writes a character which the document's encoding lacks.
    """

    def open_text(data: bytes, settings: DocumentSettings, where: str) -> Document:
        encoding = settings.encoding or (declared(data) if declared is not None else None)
        text, charset = encodings.decode(data, where, encoding)
        marked = MarkedText(text, READERS[name](text, settings, where), settings)
        return Document([marked], lambda texts: charset.encode(texts[0], where, escape))

    def structure(data: bytes, settings: DocumentSettings, where: str) -> Iterator[StructurePart]:
        encoding = settings.encoding or (declared(data) if declared is not None else None)
        text, _ = encodings.decode(data, where, encoding)
        return STRUCTURES[name](text, settings)

    return Format(name, tuple(suffixes.split()), open_text, structure)


def _xml_format(name: str, suffixes: str) -> Format:
    return _text_format(name, suffixes, encodings.xml_encoding, encodings.xml_reference)


FORMATS = {
    format.name: format
    for format in (
        _text_format("text", ".txt .text"),
        _text_format("html", ".html .htm .xhtml", encodings.html_encoding, encodings.xml_reference),
        _text_format("markdown", ".md .markdown"),
        _text_format("srt", ".srt"),
        _text_format("vtt", ".vtt"),
        _text_format("po", ".po .pot", encodings.po_encoding),
        _xml_format("xliff", ".xliff .xlf"),
        _text_format("json", ".json .jsonl .ndjson", escape=encodings.json_escape),
        _text_format("yaml", ".yaml .yml"),
        _xml_format("android", ".xml"),
        _xml_format("resx", ".resx .resw"),
        _text_format("strings", ".strings"),
        _text_format("xcstrings", ".xcstrings", escape=encodings.json_escape),
        _xml_format("tmx", ".tmx"),
        _xml_format("tbx", ".tbx"),
        Format("docx", (".docx", ".docm", ".dotx"), DOCX.open),
        Format("pptx", (".pptx", ".pptm", ".ppsx", ".potx"), PPTX.open),
        Format("xlsx", (".xlsx", ".xlsm", ".xltx"), XLSX.open),
        Format("odt", (".odt", ".ott", ".odp"), ODT.open),
        Format("epub", (".epub",), open_epub),
        _text_format("csv", ".csv"),
        _text_format("tsv", ".tsv .tab"),
    )
}
