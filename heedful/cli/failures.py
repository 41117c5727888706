"""What people see when something goes wrong: one paragraph on standard error, and a status.

A traceback is for those who mend Heedful: set HEEDFUL_DEBUG=1 to see it.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from heedful.errors import RunError, UserError

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def guarded(work: Callable[[], int | None], verb: str = "") -> int:
    """Run a verb and say what went wrong, if anything did.

    Args:
        work: the verb, ready to run; it may return a status of its own.
        verb: its name, to point at its help.

    Returns:
        The exit status.
    """
    try:
        status = work()
        sys.stdout.flush()
        return DONE if status is None else status
    except KeyboardInterrupt:
        return _tell("Interrupted.", INTERRUPTED)
    except BrokenPipeError:
        _forget_standard_output()
        return FAILED
    except Exception as error:
        if _is_misuse(error):
            help_command = " ".join(word for word in ("heedful", verb, "--help") if word)
            return _tell(f"{_one_line(str(error))} See: {help_command}", WRONG)
        return _explain(error)


def _is_misuse(error: Exception) -> bool:
    """Whether it comes from the library that takes words apart, which need not have been loaded."""
    library = sys.modules.get("cyclopts.exceptions")
    return library is not None and isinstance(error, library.CycloptsError)


def _explain(error: Exception) -> int:
    known = as_user_error(error)
    if os.environ.get("HEEDFUL_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    if known is not None:
        return _tell(_one_line(str(known)), known.exit_status)
    return _tell(
        f"Heedful failed in a way it should not: {type(error).__name__}: {_one_line(str(error))} "
        "Please report it, with the command and what it prints when HEEDFUL_DEBUG=1 is set.",
        FAILED,
    )


def as_user_error(error: Exception) -> UserError | None:
    """The error as something a person can mend, or None when it is a fault of ours."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError):
        return _from_system(error)
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return RunError(
            "There is not enough memory",
            remedy="Make batches smaller (--batch-tokens, or --data.batch-tokens for training), "
            "or take a smaller model",
        )
    return None


def _from_system(error: OSError) -> UserError:
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
    reason = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return RunError(
            f"Cannot be written: {reason}", where=where, remedy="Free some space and try again"
        )
    if error.errno in _REFUSED:
        remedy = "Choose a place you may use, or change its permissions"
        return UserError(f"Refused by the system: {reason}", where=where, remedy=remedy)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return UserError(reason, where=where, remedy="Check the path")
    return RunError(f"The system reports: {reason}", where=where)


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch's own errors; told by name and text, so that torch need not be imported."""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)


def _forget_standard_output() -> None:
    """The reader has gone; what is still buffered must not raise again when the process ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):  # a stand-in without a file descriptor
        pass
    finally:
        os.close(null)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tell(text: str, status: int) -> int:
    print(text, file=sys.stderr, flush=True)
    return status


def refuse_missing_folder(path: Path) -> None:
    """Check before long work that a file can be written there.

    Raises:
        UserError: when its folder is missing, or the path is a folder.
    """
    if path.is_dir():
        raise UserError("This is a directory", where=str(path), remedy="Name a file")
    if not path.parent.is_dir():
        raise UserError(
            "No such directory", where=str(path.parent), remedy="Make it, or choose another place"
        )
    if not os.access(path.parent, os.W_OK):
        raise UserError(
            "This directory cannot be written to",
            where=str(path.parent),
            remedy="Choose a place you may use, or change its permissions",
        )
