"""Errors that the user can correct: what is wrong, where, and what to do next.

Every mistake of a user ends in a `UserError`; the command line prints it as one paragraph, without
a traceback, and exits with its `exit_status`. A broken invariant of ours is an `assert`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A request that cannot be carried out.

    Args:
        what: what is wrong, a sentence without a final full stop.
        where: the file, line, key or value at fault.
        remedy: what to do next, a sentence without a final full stop.
    """

    exit_status = 2

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" {_sentence(self.remedy)}" if self.remedy else ""
        return f"{place}{_sentence(self.what)}{remedy}"


def _sentence(text: str) -> str:
    return text if text.endswith(("?", "!")) else f"{text.rstrip('.')}."


class ConfigError(UserError):
    """A setting is unknown, of the wrong type, or contradicts another."""


class DataError(UserError):
    """A corpus, a line of text or a batch cannot be used."""


class ModelError(UserError):
    """A model directory, preset or tensor does not fit."""


class RunError(UserError):
    """A failure while running: a full disk, a diverged loss, a lost file."""

    exit_status = 1


def suggest(name: str, known: Iterable[str]) -> str | None:
    """A "Did you mean" remedy for a mistyped name, or the list of names when nothing is close.

    Args:
        name: the mistyped name.
        known: existing names.

    Returns:
        A sentence without a final full stop, or None when there are no names at all.
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    if names:
        return f"Known: {', '.join(names)}"
    return None
