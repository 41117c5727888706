"""Text in and out: lines as they come, whole files or none."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from heedful.data.files import TextFile, decode_line
from heedful.durable import whole

STANDARD_INPUT = "standard input"

_READ = 1 << 16


def is_standard(path: Path | None) -> bool:
    """Whether a path stands for standard input or output: none at all, or `-`."""
    return path is None or str(path) == "-"


def chunks(path: Path | None, size: int) -> Iterator[list[str]]:
    """The lines of a file or of standard input, in lists of at most `size`.

    Args:
        path: plain or gzip; standard input if it is none or `-`.
        size: lines in a list.

    Raises:
        DataError: when there is no such file, or naming the line that is not text.
    """
    if path is None or is_standard(path):
        yield from stream_chunks(sys.stdin.buffer, STANDARD_INPUT, size)
        return
    lines = iter(TextFile(path))
    while chunk := list(islice(lines, size)):
        yield chunk


def read_lines(path: Path) -> list[str]:
    """All lines of a file, plain or gzip.

    Raises:
        DataError: when there is no such file, or naming the line that is not text.
    """
    return list(TextFile(path))


def stream_chunks(stream: BinaryIO, name: str, size: int) -> Iterator[list[str]]:
    """The lines of a stream in lists of at most `size`, without waiting for more than are there.

    Whoever types or sends a line and waits gets an answer; a file comes in full lists.

    Args:
        stream: bytes; a file, a pipe or a terminal.
        name: what to call it in messages.
        size: lines in a list.

    Raises:
        DataError: naming the line that is not text.
    """
    ready: list[str] = []
    number = 0
    for line in _raw_lines(stream):
        if line is not None:
            number += 1
            ready.append(decode_line(line, number, name))
        if ready and (line is None or len(ready) == size):
            yield ready
            ready = []
    if ready:
        yield ready


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """A text file that appears whole, when everything in it is written, or not at all.

    Raises:
        OSError: naming the file, when it cannot be written.
    """
    with whole(path) as file:
        stream = TextIOWrapper(file, encoding="utf-8", newline="\n")
        try:
            yield stream
            stream.flush()
        finally:
            stream.detach()


@contextmanager
def output_to(path: Path | None) -> Iterator[TextIO]:
    """A file, or standard output."""
    if path is None or is_standard(path):
        yield sys.stdout
    else:
        with writing(path) as stream:
            yield stream


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a whole text file."""
    with writing(path) as stream:
        stream.writelines(f"{line}\n" for line in lines)


def _raw_lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Lines without their newline; None where the next bytes are not there yet."""
    rest = bytearray()
    while True:
        if not _has_more(stream):
            yield None
        block = _read_some(stream)
        if not block:
            break
        start = len(rest)
        rest += block
        newline = rest.rfind(b"\n", start)
        if newline >= 0:
            yield from bytes(rest[:newline]).split(b"\n")
            del rest[: newline + 1]
    if rest:
        yield bytes(rest)


def _read_some(stream: BinaryIO) -> bytes:
    """What is there, at least a byte; nothing at the end."""
    read1 = getattr(stream, "read1", None)
    block: bytes | None = read1(_READ) if read1 else stream.read(_READ)
    return block or b""


def _has_more(stream: BinaryIO) -> bool:
    """Whether bytes are there now, or the end is; unknown counts as yes."""
    try:
        return bool(select.select([stream], [], [], 0)[0])
    except (OSError, ValueError, TypeError):  # no file descriptor, or none to wait for
        return True
