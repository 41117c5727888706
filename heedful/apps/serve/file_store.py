"""Translated files, kept in a folder for a limited time."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from heedful.durable import whole

_NAME = re.compile(r"[\w-]{32}(?:\.[a-z]{1,8})?")


@dataclass(frozen=True)
class FileStore:
    """Files under unguessable names in a folder that several processes may share.

    Args:
        folder: folder that only this server reads and writes.
        seconds: time for which a file is kept.
        most_bytes: maximum size of all files in bytes; the oldest are deleted first.
    """

    folder: Path
    seconds: float = 600.0
    most_bytes: int = 1 << 28

    def put(self, content: bytes, suffix: str) -> str:
        """Keep a file, and return its name.

        Args:
            content: bytes of the file.
            suffix: suffix of the name, such as .html.
        """
        self._make_room(len(content))
        name = secrets.token_urlsafe(24) + suffix
        with whole(self.folder / name) as file:
            file.write(content)
        return name

    def get(self, name: str) -> bytes | None:
        """Return the content of a file; None if the name is unknown or the file has expired."""
        if _NAME.fullmatch(name) is None:
            return None
        self._make_room(0)
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def _make_room(self, size: int) -> None:
        """Delete expired files, and the oldest files if there are too many bytes."""
        files = []
        for path in self.folder.iterdir():
            try:
                files.append((path.stat().st_mtime, path.stat().st_size, path))
            except FileNotFoundError:  # another process deleted it
                continue
        size += sum(each for _, each, _ in files)
        for changed, each, path in sorted(files):
            if changed >= time.time() - self.seconds and size <= self.most_bytes:
                break
            path.unlink(missing_ok=True)
            size -= each
