"""Texts out of files, for language models: whole files, paragraphs, lines, or JSONL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from heedful.data.files import TextFile
from heedful.data.spec import CorpusSpec
from heedful.errors import DataError

Unit = Literal["file", "paragraph", "line"]

_REMEDY = 'Each line must be an object like {"text": "…"}'


class Document(NamedTuple):
    """One text and the number of the line it begins at, counted from 1."""

    line: int
    text: str


class TextReader(Protocol):
    """The texts of one file."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    def __iter__(self) -> Iterator[Document]:
        """The texts, read anew each time."""
        ...

    def content_hash(self) -> str:
        """Changes when the texts do."""
        ...


@dataclass(frozen=True)
class DocumentReader:
    """The texts of one file; reads it anew each time. Empty ones are left out.

    Args:
        path: plain or gzip; `.jsonl` holds one text a line.
        unit: what one text is in any other file. Line ends within it are kept.
    """

    path: Path
    unit: Unit

    def __iter__(self) -> Iterator[Document]:
        """The texts.

        Raises:
            DataError: naming file and line, for what is not UTF-8 text, or when there is no text.
        """
        empty = True
        for document in self._read():
            if document.text.strip():
                empty = False
                yield document
        if empty:
            raise DataError(
                "The file holds no text",
                where=str(self.path),
                remedy="Check that it is the right one",
            )

    @property
    def is_jsonl(self) -> bool:
        """Whether the file's name says that it is JSONL."""
        return self.path.name.removesuffix(".gz").endswith(".jsonl")

    def content_hash(self) -> str:
        """SHA-256, in hexadecimal, of the file's bytes and of how it is read.

        Raises:
            DataError: when the file is missing or unreadable.
        """
        TextFile(self.path)  # for its error messages
        with self.path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        form = "jsonl" if self.is_jsonl else self.unit
        return hashlib.sha256(content + form.encode()).hexdigest()

    def _read(self) -> Iterator[Document]:
        file = TextFile(self.path)
        if self.is_jsonl:
            for line in file:
                yield Document(file.lines, _text_of(line, f"{self.path}:{file.lines}"))
        elif self.unit == "line":
            for line in file:
                yield Document(file.lines, line)
        else:
            yield from _gathered(file, at_empty=self.unit == "paragraph")


def document_reader(spec: CorpusSpec, unit: Unit) -> DocumentReader:
    """The reader of a corpus of texts.

    Raises:
        DataError: when the corpus is one of sentence pairs.
    """
    if spec.file is None:
        raise DataError(
            "A language model is trained on single files of text, not on pairs",
            where=f"{spec.source} and {spec.target}",
            remedy="Give each file for itself",
        )
    return DocumentReader(Path(spec.file), unit)


def _gathered(file: TextFile, *, at_empty: bool) -> Iterator[Document]:
    """Lines joined to texts that end at empty lines, or at the end of the file only."""
    lines: list[str] = []
    first = 1
    for line in file:
        if at_empty and not line.strip():
            if lines:
                yield Document(first, "\n".join(lines))
            lines = []
            continue
        if not lines:
            first = file.lines
        lines.append(line)
    if lines:
        # A file's last line ends like the others.
        yield Document(first, "\n".join(lines) + ("" if at_empty else "\n"))


def _text_of(line: str, where: str) -> str:
    try:
        item = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"The line is not JSON: {error}", where=where, remedy=_REMEDY) from None
    text = item.get("text") if isinstance(item, dict) else None
    if not isinstance(text, str):
        raise DataError("There is no text under the key 'text'", where=where, remedy=_REMEDY)
    return text
