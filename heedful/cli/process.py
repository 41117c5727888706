"""The command line as a process of its own, which ends at once when its work is done."""

from __future__ import annotations

import atexit
import os
import sys

from heedful.cli.main import main


def run() -> int:
    """Run the words after `heedful`; what the installed command calls.

    Returns:
        The exit status, as of `main`; the process must end with it.
    """
    leaving = _Leaving()
    leaving.status = main()
    return leaving.status


class _Leaving:
    """Ends the process without taking apart what the system takes back as a whole.

    To free every object that PyTorch's modules consist of takes a sixth of a second. Made before
    those are loaded, so that it comes after all others that have something to do at exit.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self.status is None:  # something else ends it, which Python is to tell
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except (OSError, ValueError):  # which Python tells, too
            return
        os._exit(self.status)
