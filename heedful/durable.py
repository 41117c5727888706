"""Writing so that a kill or a full disk never leaves half a file under a final name."""

from __future__ import annotations

import os
from pathlib import Path


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


def sync(path: Path) -> None:
    """Wait until the disk has a file's content, or the names in a directory."""
    if os.name == "nt" and path.is_dir():  # directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
