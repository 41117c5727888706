"""Corpora of single files: their form, their lines and their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from heedful.data.corpus_spec import CorpusSpec
from heedful.data.record_fields import LABEL_FIELDS
from heedful.data.table_file import FORMATS, open_lines, table_parts
from heedful.data.text_file import TextFile, content_digest, file_form, shards_not_read
from heedful.errors import DataError

T = TypeVar("T")


_BINARY = [form for form, kind in FORMATS.items() if kind.is_binary]


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus, read anew in every iteration; its suffix decides its form.

    Args:
        path: path of the file, plain, gzip or zstd, or of a folder of tables.
    """

    path: Path

    @property
    def form(self) -> str:
        """Suffix of the file's name without `.gz`, such as `.jsonl`."""
        return file_form(table_parts(self.path)[0])

    @property
    def is_jsonl(self) -> bool:
        """True if the lines are JSON: those of .jsonl files, and rows of tables."""
        return self.opened().is_json

    def opened(self) -> TextFile:
        """Open the file as lines; tables that are no text are lines of JSON."""
        # A .csv or .json file may as well be a text for a language model.
        return open_lines(self.path, LABEL_FIELDS, _BINARY)

    def filled_lines(self) -> Iterator[tuple[int, str, str]]:
        """Yield the lines that are not blank: number, location as "file:line", and text."""
        file = self.opened()
        for line in file:
            if line.strip():
                yield file.lines, f"{self.path}:{file.lines}", line

    def at_least_one(self, items: Iterable[T], name: str) -> Iterator[T]:
        """Yield the items; raise an error if there is none.

        Args:
            items: items read from the file.
            name: noun for one item.

        Raises:
            DataError: when there is no item.
        """
        # Items are yielded one by one, as those of a large file may not fit in memory.
        empty = True
        for item in items:
            empty = False
            yield item
        if empty:
            raise DataError(
                f"The file holds no {name}",
                where=str(self.path),
                remedy="Check that it is the right one",
            )

    def hash_with(self, reading: str) -> str:
        """Return the SHA-256, in hexadecimal, of the file's bytes and of the way they are read.

        Args:
            reading: name of the way the file is read.

        Raises:
            DataError: when the file is missing or unreadable.
        """
        content = b"".join(map(content_digest, table_parts(self.path)))
        return hashlib.sha256(content + reading.encode()).hexdigest()


def check_filled(where: str, remedy: str, **texts: str) -> None:
    """Refuse empty texts and texts of white space.

    Args:
        where: file and line, for the error message.
        remedy: expected form of the line.
        **texts: texts by their names in the message.

    Raises:
        DataError: when a text is empty, with the name of the first.
    """
    for name, text in texts.items():
        if not text.strip():
            raise DataError(f"The {name} is empty", where=where, remedy=remedy)


def single_file(spec: CorpusSpec, message: str) -> Path:
    """Return the path of a corpus that is one file.

    Args:
        spec: files of the corpus.
        message: error message for a corpus of pairs.

    Raises:
        DataError: when the corpus is one of sentence pairs, or a folder of shards.
    """
    if spec.shards is not None:
        raise shards_not_read(spec.shards)
    if spec.file is None:
        raise DataError(
            message,
            where=f"{spec.source} and {spec.target}",
            remedy="Give each file for itself",
        )
    return Path(spec.file)
