"""One process at a time in a run directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heedful.durable import try_lock
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
        if not try_lock(descriptor):
            raise UserError(
                "Another process is training in this run directory",
                where=str(directory),
                remedy="Wait for it or name another directory",
            )
        yield
    finally:
        os.close(descriptor)
