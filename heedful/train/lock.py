"""One process at a time in a run directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heedful.errors import UserError


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """A context that holds the run directory; the system frees it also when the process is killed.

    Raises:
        UserError: when another process holds it, or nothing can be written there.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(
            f"Cannot write in the run directory: {error.strerror}",
            where=str(directory),
            remedy="Make it writable or name another one",
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "Another process is training in this run directory",
                where=str(directory),
                remedy="Wait for it or name another directory",
            ) from None
        yield
    finally:
        os.close(descriptor)
