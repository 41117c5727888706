"""Writing so that a kill or a full disk never leaves half a file under a final name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old or the new content is there, whole."""
    partial = path.with_name(path.name + ".partial")
    write_synced(partial, content)
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file that appears when everything in it is written, or not at all.

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


def sync(path: Path) -> None:
    """Wait until the disk has a file's content, or the names in a directory."""
    if os.name == "nt" and path.is_dir():  # directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
