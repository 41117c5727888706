"""Errors that a user can correct, with the problem, its place and a remedy; and warnings.

Every mistake of a user raises a `UserError`; the command line prints it as one paragraph without a
traceback and exits with its `exit_status`. A broken invariant of Heedful is an `assert`.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """A request that cannot be carried out.

    Args:
        what: description of the problem, a sentence without a final full stop.
        where: file, line, key or value of the problem.
        remedy: advice to the user, a sentence without a final full stop.
    """

    exit_status = 2  # the status of shells and argparse for wrong usage

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(what)
        # Kept apart, so that other surfaces than a terminal can arrange them.
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" {_sentence(self.remedy)}" if self.remedy else ""
        return f"{place}{_sentence(self.what)}{remedy}"

    def _render_traceback_(self) -> list[str]:
        # IPython asks for it: a notebook shows what to do, and not 200 lines of a traceback.
        return [f"{type(self).__name__}: {self}"]


def _sentence(text: str) -> str:
    return text if text.endswith(("?", "!")) else f"{text.rstrip('.')}."


class ConfigError(UserError):
    """A setting is unknown, of the wrong type, or contradicts another."""


class DataError(UserError):
    """A corpus, a line of text or a batch cannot be used."""


class ModelError(UserError):
    """A model directory, preset or tensor does not fit."""


class TorchMissing(ConfigError):
    """PyTorch is not installed, and something needs it.

    Args:
        what: the subject of the sentence: what needs PyTorch.
    """

    def __init__(self, what: str = "This command") -> None:
        super().__init__(
            f"{what} needs PyTorch, which is not installed: pip install 'heedful[torch]' adds it"
        )


def is_of_torch(error: BaseException) -> bool:
    """Return True for the error of an import that found no PyTorch."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return (name or "").split(".")[0] == "torch"


def lacks_torch() -> bool:
    """Return True if PyTorch is not installed, without loading it."""
    if sys.modules.get("torch") is not None:
        return False
    from importlib.util import find_spec  # which `--help` does not need

    try:
        return find_spec("torch") is None
    except ImportError:  # hidden on purpose, as in a test
        return True


class RunError(UserError):
    """A failure while running: a full disk, a diverged loss, a lost file."""

    exit_status = 1


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return a "Did you mean" remedy for a mistyped name, or a list of names if none is similar.

    Args:
        name: mistyped name.
        known: existing names.

    Returns:
        A sentence without a final full stop, or None without any names.
    """
    names = sorted(set(known))
    # 0.6 is the default of difflib: "widht" finds "width", unrelated names find nothing.
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    if names:
        return f"Known: {', '.join(names)}"
    return None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; the name of its class if the text is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Print warnings of Heedful as a sentence, and others as Python does.

    Args:
        message, category, filename, lineno, file, line: arguments of `warnings.showwarning`.
    """
    own = category.__module__.startswith("heedful.")
    text = f"{message}\n" if own else warnings.formatwarning(message, category, filename, lineno)
    sys.stderr.write(text)
