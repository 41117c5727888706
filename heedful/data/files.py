"""Text files line by line: UTF-8, plain or gzip, with errors that name the line.

A line ends at a line feed and nowhere else; splitting at the other characters that Unicode calls
line breaks would put the files of a corpus out of step.
"""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from heedful.errors import DataError

_GZIP = b"\x1f\x8b"
_OTHER_ENCODINGS = {
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_REPLACEMENT = "\ufffd"
_EXAMPLES = 5


@dataclass
class FileFacts:
    """What was noticed about the encoding of a file while it was read.

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
        DataError: when it is missing, a directory or unreadable.
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
        with self._open() as raw:
            self._raw = raw
            content = gzip.GzipFile(fileobj=raw) if self.facts.compressed else raw
            try:
                for line in content:
                    self.lines += 1
                    yield self._text(line)
            except (EOFError, zlib.error, OSError) as error:
                raise self._wrong(
                    f"Cannot be read past line {self.lines}: {error}",
                    "The file is cut short or damaged; fetch it again",
                ) from None

    def _open(self) -> IO[bytes]:
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            raise self._wrong("No such file", "Check the path") from None
        except IsADirectoryError:
            raise self._wrong("This is a directory, not a file", "Name a file in it") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise self._wrong(f"Cannot be opened: {reason}", "Check its permissions") from None

    def _text(self, line: bytes) -> str:
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


def decode_line(line: bytes, number: int, where: str) -> str:
    """The text of a line, without a carriage return at its end or a byte order mark.

    Args:
        line: without its line feed.
        number: of the line, from 1.
        where: what to call the file.

    Raises:
        DataError: naming the line, for bytes that are not UTF-8, NUL bytes and UTF-16.
    """
    if number == 1:
        for mark, name in _OTHER_ENCODINGS.items():
            if line.startswith(mark):
                raise DataError(
                    f"Line 1 begins with a byte order mark of {name}",
                    where=where,
                    remedy=f"Convert the file to UTF-8, for example: iconv -f {name} -t UTF-8",
                )
        line = line.removeprefix(codecs.BOM_UTF8)
    line = line.removesuffix(b"\r")
    if b"\x00" in line:
        raise DataError(
            f"Line {number} holds a NUL byte (byte {line.index(0) + 1} of the line)",
            where=where,
            remedy="The file is binary or UTF-16; convert it to UTF-8 text",
        )
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"Line {number} is not UTF-8 (byte {error.start + 1} of the line is "
            f"0x{line[error.start]:02x})",
            where=where,
            remedy="Convert the file, for example: iconv -f ISO-8859-1 -t UTF-8",
        ) from None
