"""Files: written whole or not at all, opened only if regular, locked; lines of text in them."""

from __future__ import annotations

import codecs
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from heedful.errors import DataError


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, content: bytes) -> None:
    """Replace a file so that at any moment either the old or the new content is there."""
    partial = path.with_name(path.name + ".partial")
    write_synced(partial, content)
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears when everything in it is written, or not at all.

    A symbolic link stays one: the file that it points to is replaced. A device or a named pipe is
    written to as it is, since a file in its place would take it away.

    Raises:
        OSError: naming the file, when it cannot be written.
    """
    is_kept = path.exists() and not (path.is_file() or path.is_dir())
    path = path if is_kept else Path(os.path.realpath(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if is_kept:
            with path.open("wb") as file:
                yield file
            return
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if error.filename is None or Path(os.fsdecode(error.filename)) == partial:
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make a folder that appears when everything in it is written, or not at all.

    Args:
        path: still to be made; what is there already is never replaced.

    Yields:
        The folder to write into, beside `path`.

    Raises:
        OSError: naming the file or the folder, when it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.mkdir()
        yield partial
        for file in partial.iterdir():
            sync(file)
        sync(partial)
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        os.rename(partial, path)
        sync(path.parent)
    except OSError as error:
        name = path if error.filename is None else Path(os.fsdecode(error.filename))
        error.filename = str(path / name.relative_to(partial) if partial in name.parents else path)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process; the system frees it when the process ends.

    Returns:
        False when another process holds the lock.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync(path: Path) -> None:
    """Wait until the disk has a file's content, or the names in a directory."""
    if os.name == "nt" and path.is_dir():  # directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes; refuse named pipes, sockets and devices.

    Raises:
        OSError: when it is missing, unreadable, a directory, or no regular file.
    """
    check_regular(path)
    return path.open("rb")


def check_regular(path: Path) -> None:
    """Refuse named pipes, sockets and devices in the place of a file.

    Opening a pipe that nobody writes to waits for ever, and what is read from one cannot be read a
    second time.

    Raises:
        OSError: when it is one, or missing.
    """
    mode = path.stat().st_mode
    for is_kind, name in _SPECIAL_FILES:
        if is_kind(mode) and str(path) != os.devnull:
            raise OSError(errno.EINVAL, f"It is {name}, no regular file", str(path))


_SPECIAL_FILES = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


_OTHER_ENCODINGS = {
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


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
