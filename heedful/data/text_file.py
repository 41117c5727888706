"""Reading of text files by line: UTF-8, plain, gzip or zstd, with errors that name the line.

A line ends only at a line feed. Splitting at the other line breaks of Unicode, as `str.splitlines`
does, would misalign the two files of a corpus.
"""

from __future__ import annotations

import codecs
import errno
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from heedful.durable import decode_line, open_regular
from heedful.errors import ConfigError, DataError

T = TypeVar("T")

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
# Files that people take for text, by their first bytes.
_FOREIGN = {
    b"PK\x03\x04": "a ZIP archive, as .xlsx, .docx and .npz files are",
    b"\xd0\xcf\x11\xe0": "a document of Microsoft Office",
    b"%PDF-": "a PDF",
    b"PAR1\x15": "Parquet, whose name should end in .parquet",
    b"ARROW1\0\0": "Arrow, whose name should end in .arrow",
    b"\xfd7zXZ\0": "compressed with xz, not with gzip or zstd",
    b"BZh91AY&SY": "compressed with bzip2, not with gzip or zstd",
    b"\x89HDF\r\n": "HDF5",
    b"SQLite f": "a database of SQLite",
}
_REPLACEMENT = "\ufffd"
_EXAMPLES = 5  # places in a message; more would hide the rest of it


@dataclass
class FileFacts:
    """Facts about the encoding of a file, gathered while it is read.

    Args:
        compressed: flag that the file is gzip.
        table: kind of table that the lines were rows of, such as Parquet; "" for lines of text.
        header: flag that the first line names the columns, and was left out.
        byte_order_mark: flag that the file began with a byte order mark, which was left out.
        carriage_returns: number of lines that ended in a carriage return, which was left out.
        replaced: number of lines with U+FFFD, the sign of an earlier wrong conversion.
        replaced_examples: numbers of the first such lines.
    """

    compressed: bool = False
    table: str = ""
    header: bool = False
    byte_order_mark: bool = False
    carriage_returns: int = 0
    replaced: int = 0
    replaced_examples: list[int] = field(default_factory=list)

    def describe(self) -> str:
        """Describe the facts in a part of a sentence."""
        parts = [self.table or "UTF-8"]
        if self.header:
            parts.append("the first line names the columns")
        if self.byte_order_mark:
            parts.append("with a byte order mark")
        if self.compressed:
            parts.append("gzip")
        if self.carriage_returns:
            lines = _count_lines(self.carriage_returns)
            parts.append(f"carriage return at the end of {lines}")
        if self.replaced:
            where = ", ".join(map(str, self.replaced_examples))
            lines = _count_lines(self.replaced)
            parts.append(f"U+FFFD, damage done earlier, in {lines} (first: {where})")
        return ", ".join(parts)


def _count_lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


class TextFile:
    """The lines of one file, read lazily.

    Args:
        path: path of the file, plain, gzip or zstd (recognised by its content).

    Attributes:
        facts: facts about the encoding, complete after the last line.
        lines: number of lines read so far.
        bytes_done: bytes of the file read so far, compressed ones for gzip.
        bytes_total: size of the file in bytes.

    Raises:
        DataError: when the file is missing, a directory, a pipe, unreadable or no text.
    """

    is_text = True
    """False for subclasses that read binary files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.facts = FileFacts()
        self.lines = 0
        self._raw: IO[bytes] | None = None
        # Opened once to check it, so that errors come before any work is done.
        with self._open() as raw:
            self.bytes_total = raw.seek(0, os.SEEK_END)
            raw.seek(0)
            start = raw.read(16)
        self.facts.compressed = start.startswith(_GZIP)
        self._is_zstd = start.startswith(_ZSTD)
        for magic, what in _FOREIGN.items():
            if start.startswith(magic) and self.is_text:
                raise self._wrong(
                    f"This is no text: it is {what}", "Name another file, or convert it"
                )
        # Reading it as plain text would work, and hide that a download was broken.
        for suffix, is_packed in ((".gz", self.facts.compressed), (".zst", self._is_zstd)):
            if self.path.suffix == suffix and not is_packed:
                tool = "gzip" if suffix == ".gz" else "zstd"
                raise self._wrong(
                    f"Named {suffix} but not compressed with {tool}", "Rename or compress the file"
                )

    @property
    def is_json(self) -> bool:
        """True if every line is a value of JSON."""
        return file_form(self.path) == ".jsonl"

    @property
    def bytes_done(self) -> int:
        if self._raw is None:
            return 0
        # A closed file has no position; it was read to its end.
        return self.bytes_total if self._raw.closed else self._raw.tell()

    def __iter__(self) -> Iterator[str]:
        """Yield the lines without their line ends.

        Raises:
            DataError: when a line is not UTF-8 or holds a NUL, or gzip is damaged, with the line.
        """
        for line in self.raw_lines():
            yield self.decode(line)

    def raw_lines(self) -> Iterator[bytes]:
        """Yield the lines as bytes with their line ends; `lines` is the number of the last one.

        Raises:
            DataError: when gzip is damaged.
        """
        try:
            with self.opened() as content:
                # Iterating over bytes splits at line feeds only.
                for line in content:
                    self.lines += 1
                    yield line
        except (EOFError, zlib.error, OSError) as error:
            raise self._wrong(
                f"Cannot be read past line {self.lines}: {error}",
                "The file is cut short or damaged; fetch it again",
            ) from None

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """A context of the open, decompressed content."""
        with self._open() as raw:
            self._raw = raw
            yield self._content(raw)

    def _content(self, raw: IO[bytes]) -> IO[bytes]:
        """Return the decompressed content of the open file."""
        if self._is_zstd:
            arrow = require_pyarrow(str(self.path))
            # Buffered: pyarrow's own `readline` asks the system for every byte.
            return io.BufferedReader(arrow.CompressedInputStream(raw, "zstd"), 1 << 16)
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if self.facts.compressed else raw

    def _open(self) -> IO[bytes]:
        try:
            return open_regular(self.path)
        except FileNotFoundError:
            raise self._wrong("No such file", "Check the path") from None
        except IsADirectoryError:
            raise self._wrong(
                "This is a directory, not a file",
                "Name a file in it; a folder of shards would have an index.json",
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            # `open_regular` refuses pipes with EINVAL: a corpus is hashed first and then read.
            remedy = (
                "Write the text to a file and name that: it is read more than once"
                if error.errno == errno.EINVAL
                else "Check its permissions"
            )
            raise self._wrong(f"Cannot be opened: {reason}", remedy) from None

    def decode(self, line: bytes) -> str:
        """Decode the last line of `raw_lines`.

        Args:
            line: bytes of the line, with its line end.

        Raises:
            DataError: when the line is not UTF-8 or holds a NUL, with its location.
        """
        line = line.removesuffix(b"\n")
        if self.lines == 1:
            self.facts.byte_order_mark = line.startswith(codecs.BOM_UTF8)
        # Windows' line ends are accepted, but reported.
        self.facts.carriage_returns += line.endswith(b"\r")
        text = decode_line(line, self.lines, str(self.path))
        if _REPLACEMENT in text:
            self.facts.replaced += 1
            if len(self.facts.replaced_examples) < _EXAMPLES:
                self.facts.replaced_examples.append(self.lines)
        return text

    def _wrong(self, what: str, remedy: str) -> DataError:
        return DataError(what, where=str(self.path), remedy=remedy)


class BinaryFile(TextFile):
    """A file that is no text, such as one of Parquet."""

    is_text = False


LONGEST_WORD = 20_000
"""Maximum number of characters of a word on which a tokenizer is trained.

Time grows faster than the length: a word of 100,000 characters takes 20 seconds in a unigram model,
and one of a million ends the process.
"""

_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


class LongWords:
    """A filter of words too long for training a tokenizer, which remembers their locations.

    Args:
        tokenizer: kind of the tokenizer; `characters` accepts words of any length.
    """

    def __init__(self, tokenizer: str) -> None:
        self.are_harmless = tokenizer == "characters"
        self.places: dict[str, int] = {}

    def without(self, text: str, place: str) -> str:
        """Return the text without words of more than `LONGEST_WORD` characters.

        Args:
            text: text on which a tokenizer is trained.
            place: location of the text, such as "file:line".
        """
        # The cheap test comes first: nearly every text is shorter than one such word.
        if self.are_harmless or len(text) <= LONGEST_WORD or _LONG_WORD.search(text) is None:
            return text
        self.places[place] = max(map(len, _LONG_WORD.findall(text)))
        return _LONG_WORD.sub("", text)

    def describe(self) -> str | None:
        """Describe the removed words in a sentence; None if there were none."""
        if not self.places:
            return None
        first = [f"{place} ({size:,} characters)" for place, size in self.places.items()]
        more = f" and {len(first) - _EXAMPLES:,} more" * (len(first) > _EXAMPLES)
        return (
            f"Words of more than {LONGEST_WORD:,} characters are left out where the tokenizer is "
            f"trained: {', '.join(first[:_EXAMPLES])}{more}"
        )


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of at most `size` items."""
    rest = iter(items)
    while chunk := list(itertools.islice(rest, size)):
        yield chunk


def plain_name(path: Path) -> str:
    """Return a file's name without `.gz` or `.zst`."""
    return path.name.removesuffix(".gz").removesuffix(".zst")


def file_form(path: Path) -> str:
    """Return the suffix of a file's plain name, such as `.tsv`."""
    return Path(plain_name(path)).suffix


def require_pyarrow(where: str) -> Any:
    """Return the module `pyarrow`.

    Args:
        where: file that needs it, for the error message.

    Raises:
        ConfigError: when it is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise ConfigError(
            "pyarrow, which reads this file, is not installed",
            where=where,
            remedy="Install it with: pip install 'heedful[tables]'",
        ) from None
    return pyarrow


def content_digest(path: Path) -> bytes:
    """Return the SHA-256 of a file's bytes.

    Raises:
        DataError: when the file is missing or unreadable.
    """
    BinaryFile(path)  # raises the errors of an unreadable file
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def shards_not_read(folder: str) -> DataError:
    """Return the error for a folder of shards where only files can be read."""
    return DataError(
        "A folder of shards is read by translators and language models in training only",
        where=folder,
        remedy="Name the files that it was made from, or one of its shards, a .jsonl.gz file",
    )


def parse_json(text: str, where: str, remedy: str, name: str = "The line") -> Any:
    """Parse a JSON value.

    Args:
        text: text to parse.
        where: file and line, for the error message.
        remedy: expected form.
        name: noun for the text, for the error message.

    Raises:
        DataError: when the text is not JSON.
    """
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:  # deeply nested brackets recurse
        raise DataError(f"{name} is not JSON: {error}", where=where, remedy=remedy) from None
