"""Text files line by line: UTF-8, plain or gzip, with errors that name the line.

A line ends at a line feed and nowhere else; splitting at the other characters that Unicode calls
line breaks would put the files of a corpus out of step.
"""

from __future__ import annotations

import codecs
import errno
import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from heedful.durable import decode_line, open_regular
from heedful.errors import DataError

if TYPE_CHECKING:
    from heedful.data.corpus_spec import CorpusSpec

T = TypeVar("T")

_GZIP = b"\x1f\x8b"
_REPLACEMENT = "\ufffd"
_EXAMPLES = 5


@dataclass
class FileFacts:
    """Facts about the encoding of a file, noticed while it was read.

    Args:
        compressed: whether it is gzip.
        byte_order_mark: whether it begins with a byte order mark, which was left out.
        carriage_returns: lines that ended in a carriage return, which was left out.
        replaced: lines holding U+FFFD, which a conversion leaves for what it could not read.
        replaced_examples: numbers of the first such lines.
    """

    compressed: bool = False
    byte_order_mark: bool = False
    carriage_returns: int = 0
    replaced: int = 0
    replaced_examples: list[int] = field(default_factory=list)

    def describe(self) -> str:
        """The facts as a part of a sentence."""
        parts = ["UTF-8"]
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
    """The lines of one file, read as they are asked for.

    Args:
        path: the file, plain or gzip (told by its content).

    Attributes:
        facts: complete after the last line.
        lines: lines read so far.
        bytes_done: bytes of the file (compressed, if it is) read so far.
        bytes_total: bytes of the file.

    Raises:
        DataError: when it is missing, a directory, a pipe or unreadable.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.facts = FileFacts()
        self.lines = 0
        self._raw: IO[bytes] | None = None
        with self._open() as raw:
            self.bytes_total = raw.seek(0, os.SEEK_END)
            raw.seek(0)
            self.facts.compressed = raw.read(len(_GZIP)) == _GZIP
        if self.path.suffix == ".gz" and not self.facts.compressed:
            raise self._wrong(
                "Named .gz but not compressed with gzip", "Rename or compress the file"
            )

    @property
    def bytes_done(self) -> int:
        if self._raw is None:
            return 0
        return self.bytes_total if self._raw.closed else self._raw.tell()

    def __iter__(self) -> Iterator[str]:
        """The lines, without their ends.

        Raises:
            DataError: naming the line, for bytes that are not UTF-8, NUL bytes and damaged gzip.
        """
        for line in self.raw_lines():
            yield self.decode(line)

    def raw_lines(self) -> Iterator[bytes]:
        """The lines as bytes, with their ends; `lines` is the number of the last one.

        Raises:
            DataError: for damaged gzip.
        """
        with self._open() as raw:
            self._raw = raw
            content = gzip.GzipFile(fileobj=raw) if self.facts.compressed else raw
            try:
                for line in content:
                    self.lines += 1
                    yield line
            except (EOFError, zlib.error, OSError) as error:
                raise self._wrong(
                    f"Cannot be read past line {self.lines}: {error}",
                    "The file is cut short or damaged; fetch it again",
                ) from None

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
            remedy = (
                "Write the text to a file and name that: it is read more than once"
                if error.errno == errno.EINVAL
                else "Check its permissions"
            )
            raise self._wrong(f"Cannot be opened: {reason}", remedy) from None

    def decode(self, line: bytes) -> str:
        """The text of the last line of `raw_lines`.

        Args:
            line: as read.

        Raises:
            DataError: naming the line, for bytes that are not UTF-8 and NUL bytes.
        """
        line = line.removesuffix(b"\n")
        if self.lines == 1:
            self.facts.byte_order_mark = line.startswith(codecs.BOM_UTF8)
        self.facts.carriage_returns += line.endswith(b"\r")
        text = decode_line(line, self.lines, str(self.path))
        if _REPLACEMENT in text:
            self.facts.replaced += 1
            if len(self.facts.replaced_examples) < _EXAMPLES:
                self.facts.replaced_examples.append(self.lines)
        return text

    def _wrong(self, what: str, remedy: str) -> DataError:
        return DataError(what, where=str(self.path), remedy=remedy)


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus, read anew each time; its name says what form it has.

    Args:
        path: plain or gzip.
    """

    path: Path

    @property
    def form(self) -> str:
        """The end of the file's name, such as `.jsonl`, before a `.gz`."""
        return file_form(self.path)

    @property
    def is_jsonl(self) -> bool:
        return self.form == ".jsonl"

    def filled_lines(self) -> Iterator[tuple[int, str, str]]:
        """Lines with something in them: number, place as "file:line", and text."""
        file = TextFile(self.path)
        for line in file:
            if line.strip():
                yield file.lines, f"{self.path}:{file.lines}", line

    def at_least_one(self, items: Iterable[T], name: str) -> Iterator[T]:
        """The items, or an error that the file holds none.

        Args:
            items: read from the file.
            name: of one of them.

        Raises:
            DataError: when there is none.
        """
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
        """SHA-256, in hexadecimal, of the file's bytes and of how it is read.

        Raises:
            DataError: when the file is missing or unreadable.
        """
        return hashlib.sha256(content_digest(self.path) + reading.encode()).hexdigest()


LONGEST_WORD = 20_000
"""Characters of a word that a tokenizer is trained on at most. Time grows with more than their
number: 100,000 take 20 seconds in a unigram model, and a million end the process."""

_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


class LongWords:
    """Takes words out of texts that a tokenizer cannot be trained on, and says where they were.

    Args:
        tokenizer: its kind; one of characters is trained on words of any length.
    """

    def __init__(self, tokenizer: str) -> None:
        self.are_harmless = tokenizer == "characters"
        self.places: dict[str, int] = {}

    def without(self, text: str, place: str) -> str:
        """The text without words of more than `LONGEST_WORD` characters.

        Args:
            text: to train a tokenizer on.
            place: of the text, such as "file:line".
        """
        if self.are_harmless or len(text) <= LONGEST_WORD or _LONG_WORD.search(text) is None:
            return text
        self.places[place] = max(map(len, _LONG_WORD.findall(text)))
        return _LONG_WORD.sub("", text)

    def describe(self) -> str | None:
        """A sentence about the words taken out; None where there were none."""
        if not self.places:
            return None
        first = [f"{place} ({size:,} characters)" for place, size in self.places.items()]
        more = f" and {len(first) - _EXAMPLES:,} more" * (len(first) > _EXAMPLES)
        return (
            f"Words of more than {LONGEST_WORD:,} characters are left out where the tokenizer is "
            f"trained: {', '.join(first[:_EXAMPLES])}{more}"
        )


def check_filled(where: str, remedy: str, **texts: str) -> None:
    """Refuse texts of nothing but white space.

    Args:
        where: file and line, for the error message.
        remedy: the form that is expected.
        **texts: by the name that the message gives them.

    Raises:
        DataError: naming the first that is empty.
    """
    for name, text in texts.items():
        if not text.strip():
            raise DataError(f"The {name} is empty", where=where, remedy=remedy)


def file_form(path: Path) -> str:
    """The end of a file's name, such as `.tsv`, before a `.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix


def content_digest(path: Path) -> bytes:
    """SHA-256 of a file's bytes.

    Raises:
        DataError: when the file is missing or unreadable.
    """
    TextFile(path)  # for its error messages
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def single_file(spec: CorpusSpec, message: str) -> Path:
    """The path of a corpus that is one file.

    Args:
        spec: of the corpus.
        message: says that pairs cannot be used.

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


def shards_not_read(folder: str) -> DataError:
    """The error that a folder of shards stands where files are read."""
    return DataError(
        "A folder of shards is read by translators and language models in training only",
        where=folder,
        remedy="Name the files that it was made from, or one of its shards, a .jsonl.gz file",
    )


def parse_json(text: str, where: str, remedy: str, name: str = "The line") -> Any:
    """The JSON value that a text holds.

    Args:
        text: to parse.
        where: file and line, for the error message.
        remedy: the form that is expected.
        name: of the text, for the error message.

    Raises:
        DataError: when it is not JSON.
    """
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{name} is not JSON: {error}", where=where, remedy=remedy) from None
