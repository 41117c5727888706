"""Word documents (DOCX): the paragraphs of their XML, with the formatting of each word.

A paragraph is a sequence of runs, pieces of text with uniform formatting. The formatting of most of
its characters is its main one. A run with other formatting is markup around the corresponding words
of the translation, and the text between such runs gets the main formatting.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from heedful.apps.documents.document import Document, MarkedText
from heedful.apps.documents.document_encoding import Charset, decode, xml_encoding, xml_reference
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.passage import (
    ADDRESSES,
    Passage,
    PassagePart,
    Surroundings,
    make_passage,
    protected,
)
from heedful.apps.documents.xml_markup import Token, encode_xml, xml_text, xml_tokens
from heedful.errors import DataError

_TEXTS = re.compile(r"word/(?:document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
_AROUND_RUNS = frozenset(("hyperlink", "ins", "smartTag", "sdt"))
_OF_TEXT = frozenset(("rPr", "t", "lastRenderedPageBreak"))
"""Elements of a run that holds only text."""
_BREAKS = frozenset(("br", "cr", "tab", "ptab"))
_MOST_BYTES = 1 << 28
"""Most bytes of an unpacked document."""
_MOST_FILES = 10_000


def open_docx(data: bytes, settings: DocumentSettings, name: str) -> Document:
    """Read a document of Word.

    Args:
        data: bytes of the document.
        settings: settings of the document.
        name: name of the document, for messages.

    Raises:
        DataError: when the archive is no Word document, is encrypted, or unpacks to too many bytes.
    """
    files = _unpacked(data, name)
    if "word/document.xml" not in files:
        raise DataError(
            "The archive holds no document of Word",
            where=name,
            remedy="A Word document has a file word/document.xml",
        )
    texts: dict[str, MarkedText] = {}
    charsets: dict[str, Charset] = {}
    for path in files:
        if _TEXTS.fullmatch(path):
            where = f"{name}: {path}"
            text, charsets[path] = decode(files[path], where, xml_encoding(files[path]))
            texts[path] = MarkedText(text, _paragraphs(text, where), settings)

    def pack(written: Sequence[str]) -> bytes:
        changed = {
            path: charsets[path].encode(text, name, xml_reference)
            for path, text in zip(texts, written, strict=True)
        }
        return _packed(data, files, changed)

    return Document(list(texts.values()), pack)


def _unpacked(data: bytes, name: str) -> dict[str, bytes]:
    """Return the files of an archive, at most as many bytes as a document may have."""
    too_large = DataError(
        f"The document is larger than {_MOST_BYTES >> 20} MB when unpacked", where=name
    )
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > _MOST_FILES or _size(entries) > _MOST_BYTES:
                raise too_large
            for entry in entries:
                if entry.flag_bits & 1:
                    raise DataError(
                        "The document is encrypted", where=name, remedy="Save it without a password"
                    )
                # zipfile reads no more of an entry than the size in its header.
                files[entry.filename] = archive.read(entry)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"The document is no whole archive: {error}", where=name, remedy="Save it again"
        ) from None
    return files


def _size(entries: Sequence[zipfile.ZipInfo]) -> int:
    return sum(entry.file_size for entry in entries)


def _packed(data: bytes, files: Mapping[str, bytes], changed: Mapping[str, bytes]) -> bytes:
    """Return an archive with the same files in the same order, some of them changed."""
    if all(files[path] == content for path, content in changed.items()):
        return data
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as archive,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as result,
    ):
        result.comment = archive.comment
        for entry in archive.infolist():
            content = changed.get(entry.filename, files[entry.filename])
            result.writestr(entry, content, compress_type=entry.compress_type)
    return stream.getvalue()


def _paragraphs(text: str, name: str) -> Iterator[Passage]:
    """Yield the paragraphs of a part of the document, also those in text boxes, as passages."""
    tokens = list(xml_tokens(text, name))
    starts: list[int] = []
    for number, token in enumerate(tokens):
        if token.name == "p" and text.startswith(("<w:p", "</w:p"), token.start):
            if token.kind == "start":
                starts.append(number)
            elif token.kind == "end":
                yield from _Paragraph(text, tokens[starts.pop() + 1 : number]).passages()


class _Paragraph:
    """A paragraph of runs.

    Args:
        text: text of the document.
        tokens: tokens of the paragraph's content.
    """

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.parts: list[PassagePart] = []
        self.looks: list[str] = []  # formatting of the opened runs, in order

    def passages(self) -> Iterator[Passage]:
        """Yield the passages of the paragraph, which line breaks and tabs end."""
        number = 0
        while number < len(self.tokens):
            token, after = self.tokens[number], self._after(number)
            end = self.tokens[after - 1].end
            if token.name == "pPr":  # properties come first and stay first
                pass
            elif token.kind == "start" and token.name in _AROUND_RUNS:
                after = self._content(number, after)
                self.parts.append(PassagePart(token.start, self.tokens[after - 1].end, "open"))
            elif token.kind == "end" and token.name in _AROUND_RUNS:
                self.parts.append(PassagePart(token.start, end, "close"))
            elif (field_end := self._field_end(number)) is not None:
                end, after = self.tokens[field_end - 1].end, field_end
                self.parts.append(
                    PassagePart(token.start, end, "single", self._shown(number, after))
                )
            elif token.name == "r" and token.kind == "start":
                yield from self._run(number, after)
            elif token.kind not in ("text", "end"):
                self.parts.append(PassagePart(token.start, end, "single"))
            number = after
        yield from self._flush()

    def _run(self, first: int, last: int) -> Iterator[Passage]:
        """Add a run; a line break or a tab in it ends the passage."""
        inside = self._children(first + 1, last - 1)
        names = [self.tokens[start].name for start, _ in inside]
        texts = [(start, end) for start, end in inside if self.tokens[start].name == "t"]
        if _BREAKS.isdisjoint(names) and len(texts) == 1 and set(names) <= _OF_TEXT:
            (start, end), run_end = texts[0], self.tokens[last - 1].end
            if self.tokens[start].kind == "start":
                opening = self.tokens[start].end
                closing = self.tokens[end - 1].start
                self.looks.append(self._look(inside))
                self.parts.append(
                    PassagePart(self.tokens[first].start, opening, "open", is_container=True)
                )
                self.parts += self._words(start, end)
                self.parts.append(PassagePart(closing, run_end, "close"))
                return
        if not texts and _BREAKS.isdisjoint(names):
            self.parts.append(
                PassagePart(self.tokens[first].start, self.tokens[last - 1].end, "single")
            )
            return
        yield from self._flush()
        for start, end in texts:
            yield from make_passage(self._words(start, end), encode_xml)

    def _flush(self) -> Iterator[Passage]:
        """Yield the passage collected so far."""
        parts, looks = self.parts, iter(self.looks)
        self.parts, self.looks = [], []
        sizes, look_of = Counter[str](), list[str]()
        look = ""
        for part in parts:
            look = next(looks) if part.is_container else look
            look_of.append(look)
            sizes[look] += len(part.text)
        own = max(sizes, key=sizes.__getitem__, default="")
        kept = [
            part
            for number, part in enumerate(parts)
            if not (part.is_container and look_of[number] == own)
            if not (self._closes_run(part) and look_of[number] == own)
        ]
        inner = protected(kept, ADDRESSES)
        if not any(part.kind == "text" and any(map(str.isalpha, part.text)) for part in inner):
            return

        def encode(words: str, place: Surroundings) -> str:
            is_inside = place.parent is not None and place.parent.is_container
            return encode_xml(words, place) if is_inside else f"\1{encode_xml(words, place)}\2"

        def wrap(written: str) -> str:
            # XML cannot hold \1 and \2: they mark the ends of runs, to join adjacent ones.
            written = written.replace("\2\1", "")
            opening = f'<w:r>{own}<w:t xml:space="preserve">'
            return written.replace("\1", opening).replace("\2", "</w:t></w:r>")

        yield Passage(parts[0].start, parts[-1].end, inner, encode, wrap, copies=False)

    def _closes_run(self, part: PassagePart) -> bool:
        return part.kind == "close" and self.text.startswith("</w:t", part.start)

    def _look(self, inside: Sequence[tuple[int, int]]) -> str:
        """Return the properties of a run as XML."""
        for start, end in inside:
            if self.tokens[start].name == "rPr":
                return self.text[self.tokens[start].start : self.tokens[end - 1].end]
        return ""

    def _words(self, first: int, last: int) -> list[PassagePart]:
        return [
            part
            for token in self.tokens[first:last]
            if token.kind in ("text", "cdata")
            for part in xml_text(self.text, token, folds=False)
        ]

    def _shown(self, first: int, last: int) -> str:
        """Return the text that a field shows."""
        shown, is_text = "", False
        for token in self.tokens[first:last]:
            if token.name == "t":
                is_text = token.kind == "start"
            elif token.kind == "text" and is_text:
                shown += "".join(p.text for p in xml_text(self.text, token, folds=False))
        return " ".join(shown.split())

    def _field_end(self, first: int) -> int | None:
        """Return the index of the token after a field that begins in this run."""
        depth = 0
        for number in range(first, len(self.tokens)):
            token = self.tokens[number]
            if token.name == "fldChar" and token.kind != "end":
                kind = token.attribute("w:fldCharType")
                depth += (kind == "begin") - (kind == "end")
            if number == first and token.name != "r":
                return None
            if token.name == "r" and token.kind == "end" and depth <= 0:
                return number + 1 if self._has_field(first, number) else None
        return len(self.tokens) if depth > 0 else None

    def _has_field(self, first: int, last: int) -> bool:
        return any(token.name == "fldChar" for token in self.tokens[first:last])

    def _content(self, first: int, last: int) -> int:
        """Return the index of the token after the tags that open an element around runs."""
        if self.tokens[first].name != "sdt":
            return first + 1
        for number in range(first, last):
            if self.tokens[number].name == "sdtContent":
                return number + 1
        return last

    def _children(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges of sibling elements in a range of tokens."""
        found: list[tuple[int, int]] = []
        number = first
        while number < last:
            after = self._after(number)
            if self.tokens[number].kind in ("start", "empty"):
                found.append((number, after))
            number = after
        return found

    def _after(self, first: int) -> int:
        """Return the index of the token after an element, or after a single other token."""
        depth = 0
        for number in range(first, len(self.tokens)):
            token = self.tokens[number]
            depth += (token.kind == "start") - (token.kind == "end")
            if depth <= 0:
                return number + 1
        return len(self.tokens)
