"""Texts out of files: whole files, paragraphs, lines or JSONL; and texts with a label each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from heedful.data.corpus_spec import CorpusSpec
from heedful.data.text_file import CorpusFile, TextFile, file_form, parse_json, single_file
from heedful.errors import DataError

Unit = Literal["file", "paragraph", "line"]

_TEXT_REMEDY = 'Each line must be an object like {"text": "…"}'
_COLUMNS_REMEDY = "Each line must be a text, a tab and its label"
_LABELLED_REMEDY = 'Each line must be an object like {"text": "…", "label": "…"}'


class Document(NamedTuple):
    """One text and the number of the line it begins at, counted from 1."""

    line: int
    text: str


class Example(NamedTuple):
    """One text, its label, and the number of its line, counted from 1."""

    line: int
    text: str
    label: str


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
class DocumentReader(CorpusFile):
    """The texts of one file; empty ones are left out.

    Args:
        path: plain or gzip; `.jsonl` holds one text a line.
        unit: what one text is in any other file. Line ends within it are kept.
    """

    unit: Unit

    def __iter__(self) -> Iterator[Document]:
        """The texts.

        Raises:
            DataError: naming file and line, for what is not UTF-8 text, or when there is no text.
        """
        texts = (document for document in self._read() if document.text.strip())
        return self.at_least_one(texts, "text")

    def content_hash(self) -> str:
        """See `TextReader`."""
        return self.hash_with("jsonl" if self.is_jsonl else self.unit)

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


@dataclass(frozen=True)
class LabelledReader(CorpusFile):
    """The labelled texts of one file; empty lines are left out.

    Args:
        path: `.tsv` or `.jsonl`, plain or gzip.
    """

    def examples(self) -> Iterator[Example]:
        """The texts with their labels.

        Raises:
            DataError: naming file and line, for what is not a text and a label.
        """
        file = TextFile(self.path)
        for line in file:
            if line.strip():
                where = f"{self.path}:{file.lines}"
                text, label = _from_object(line, where) if self.is_jsonl else _split(line, where)
                yield Example(file.lines, text, label)

    def __iter__(self) -> Iterator[Document]:
        """The texts alone.

        Raises:
            DataError: as `examples`, or when there is no text.
        """
        texts = (Document(line, text) for line, text, _ in self.examples())
        return self.at_least_one(texts, "text")

    def content_hash(self) -> str:
        """See `TextReader`."""
        return self.hash_with(f"labelled {self.form}")


def document_reader(spec: CorpusSpec, unit: Unit) -> DocumentReader:
    """The reader of a corpus of texts.

    Raises:
        DataError: when the corpus is one of sentence pairs.
    """
    message = "A language model is trained on single files of text, not on pairs"
    return DocumentReader(single_file(spec, message), unit)


def labelled_reader(spec: CorpusSpec) -> LabelledReader:
    """The reader of a corpus of labelled texts.

    Raises:
        DataError: when the corpus is one of sentence pairs, or of another kind of file.
    """
    if spec.file is None or file_form(Path(spec.file)) not in (".tsv", ".jsonl"):
        raise DataError(
            "A classifier is trained on single files of texts with labels",
            where=spec.file or f"{spec.source} and {spec.target}",
            remedy='Give .tsv files of "text<TAB>label" or .jsonl files with text and label',
        )
    return LabelledReader(Path(spec.file))


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
    item = parse_json(line, where, _TEXT_REMEDY)
    text = item.get("text") if isinstance(item, dict) else None
    if not isinstance(text, str):
        raise DataError("There is no text under the key 'text'", where=where, remedy=_TEXT_REMEDY)
    return text


def _split(line: str, where: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise DataError(
            f"The line has {len(columns) - 1} tabs instead of 1",
            where=where,
            remedy=_COLUMNS_REMEDY,
        )
    return _checked(columns[0], columns[1], where, _COLUMNS_REMEDY)


def _from_object(line: str, where: str) -> tuple[str, str]:
    item = parse_json(line, where, _LABELLED_REMEDY)
    text, label = (item.get("text"), item.get("label")) if isinstance(item, dict) else (None, None)
    if type(label) is int:  # a common way to write them; True and False are not numbers
        label = str(label)
    if not isinstance(text, str) or not isinstance(label, str):
        raise DataError(
            "There is no text under 'text' or no label under 'label'",
            where=where,
            remedy=_LABELLED_REMEDY,
        )
    return _checked(text, label, where, _LABELLED_REMEDY)


def _checked(text: str, label: str, where: str, remedy: str) -> tuple[str, str]:
    label = label.strip()
    for name, content in (("text", text.strip()), ("label", label)):
        if not content:
            raise DataError(f"The {name} is empty", where=where, remedy=remedy)
    return text, label
