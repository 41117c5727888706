"""Safe files: atomic writing, refusal of special files, locks, and decoding of lines."""

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
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, content: bytes) -> None:
    """Replace a file atomically: at any moment it has either the old or the new content."""
    partial = path.with_name(path.name + ".partial")
    # Synced before the rename: otherwise a power cut could leave the new name on an empty file.
    write_synced(partial, content)
    os.replace(partial, path)
    sync(path.parent)  # the new name is part of the directory, not of the file


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears when it is completely written, or not at all.

    The target of a symbolic link is replaced, and the link stays. A device or a named pipe is
    written to directly, since replacing it would remove it.

    Raises:
        OSError: when the file cannot be written, with its path.
    """
    is_kept = path.exists() and not (path.is_file() or path.is_dir())
    path = path if is_kept else Path(os.path.realpath(path))
    # The name is hidden and contains the process id, as two processes can write the same file.
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
        # The user knows the file, not the partial one beside it.
        if error.filename is None or Path(os.fsdecode(error.filename)) == partial:
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make a folder that appears when it is completely written, or not at all.

    Args:
        path: path of the new folder; an existing one is never replaced.

    Yields:
        A temporary folder beside `path` to write into.

    Raises:
        OSError: when a file or the folder cannot be written, with its path.
    """
    # A process id is not enough: processes of two machines that share the disk may have the same
    # one.
    partial = path.with_name(f".{path.name}.{os.urandom(8).hex()}.partial")
    try:
        partial.mkdir()
        yield partial
        # Files first, then the names in the folder, then the name of the folder: each step is
        # useless if the one before it is lost.
        for file in partial.iterdir():
            sync(file)
        sync(partial)
        # Checked at the end, too: `rename` would silently replace an empty folder.
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
    """Lock an open file for this process; the system releases the lock when the process ends.

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
    """Wait until a file's content, or the names in a directory, are on the disk."""
    if os.name == "nt" and path.is_dir():  # directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading bytes; refuse named pipes, sockets and devices.

    Raises:
        OSError: when the file is missing, unreadable, a directory, or no regular file.
    """
    check_regular(path)
    return path.open("rb")


def check_regular(path: Path) -> None:
    """Refuse named pipes, sockets and devices.

    Opening a pipe without a writer blocks forever, and the content of a pipe cannot be read twice.

    Raises:
        OSError: when the file is missing or special.
    """
    mode = path.stat().st_mode
    for is_kind, name in _SPECIAL_FILES:
        # The null device is an empty file for all purposes, and people name it as one.
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
    """Decode a line, without a carriage return at its end and a byte order mark.

    Args:
        line: bytes of the line without its line feed.
        number: number of the line, from 1.
        where: name of the file in errors.

    Raises:
        DataError: when the line is not UTF-8 or holds a NUL byte, with its number.
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
    # Only one carriage return is part of a line end.
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
