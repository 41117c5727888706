"""Files: whole or not at all, opened only if reading comes to an end, locked by one process."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO


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

    Raises:
        OSError: naming the file, when it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
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
