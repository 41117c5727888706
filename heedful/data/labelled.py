"""Texts with a label each, out of .tsv or .jsonl files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from heedful.data.documents import Document
from heedful.data.files import TextFile
from heedful.data.spec import CorpusSpec
from heedful.errors import DataError

_TSV_REMEDY = "Each line must be a text, a tab and its label"
_JSONL_REMEDY = 'Each line must be an object like {"text": "…", "label": "…"}'


class Example(NamedTuple):
    """One text, its label, and the number of its line, counted from 1."""

    line: int
    text: str
    label: str


@dataclass(frozen=True)
class LabelledReader:
    """The texts of one file; reads it anew each time. Empty lines are left out.

    Args:
        path: `.tsv` or `.jsonl`, plain or gzip.
    """

    path: Path

    def examples(self) -> Iterator[Example]:
        """The texts with their labels.

        Raises:
            DataError: naming file and line, for what is not a text and a label.
        """
        file = TextFile(self.path)
        split = _from_json if _kind(self.path) == ".jsonl" else _from_columns
        for line in file:
            if line.strip():
                text, label = split(line, f"{self.path}:{file.lines}")
                yield Example(file.lines, text, label)

    def __iter__(self) -> Iterator[Document]:
        """The texts alone.

        Raises:
            DataError: as `examples`, or when there is no text.
        """
        empty = True
        for line, text, _ in self.examples():
            empty = False
            yield Document(line, text)
        if empty:
            raise DataError(
                "The file holds no text",
                where=str(self.path),
                remedy="Check that it is the right one",
            )

    def content_hash(self) -> str:
        """SHA-256, in hexadecimal, of the file's bytes and of how it is read.

        Raises:
            DataError: when the file is missing or unreadable.
        """
        TextFile(self.path)  # for its error messages
        with self.path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        return hashlib.sha256(content + f"labelled {_kind(self.path)}".encode()).hexdigest()


def labelled_reader(spec: CorpusSpec) -> LabelledReader:
    """The reader of a corpus of labelled texts.

    Raises:
        DataError: when the corpus is one of sentence pairs, or of another kind of file.
    """
    if spec.file is None or _kind(Path(spec.file)) not in (".tsv", ".jsonl"):
        raise DataError(
            "A classifier is trained on single files of texts with labels",
            where=spec.file or f"{spec.source} and {spec.target}",
            remedy='Give .tsv files of "text<TAB>label" or .jsonl files with text and label',
        )
    return LabelledReader(Path(spec.file))


def _kind(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix


def _from_columns(line: str, where: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise DataError(
            f"The line has {len(columns) - 1} tabs instead of 1", where=where, remedy=_TSV_REMEDY
        )
    return _checked(columns[0], columns[1], where, _TSV_REMEDY)


def _from_json(line: str, where: str) -> tuple[str, str]:
    try:
        item = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(
            f"The line is not JSON: {error}", where=where, remedy=_JSONL_REMEDY
        ) from None
    text, label = (item.get("text"), item.get("label")) if isinstance(item, dict) else (None, None)
    if type(label) is int:  # a common way to write them; True and False are not numbers
        label = str(label)
    if not isinstance(text, str) or not isinstance(label, str):
        raise DataError(
            "There is no text under 'text' or no label under 'label'",
            where=where,
            remedy=_JSONL_REMEDY,
        )
    return _checked(text, label, where, _JSONL_REMEDY)


def _checked(text: str, label: str, where: str, remedy: str) -> tuple[str, str]:
    label = label.strip()
    for name, content in (("text", text.strip()), ("label", label)):
        if not content:
            raise DataError(f"The {name} is empty", where=where, remedy=remedy)
    return text, label
