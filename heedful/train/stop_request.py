"""Signals that make a run save a checkpoint and stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class StopRequest:
    """A context in which SIGTERM and SIGINT request a stop instead of killing the process.

    A second Ctrl-C aborts at once with `KeyboardInterrupt`. Outside the main thread, where Python
    cannot handle signals, a stop can only be requested by `ask`.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.name is not None

    def ask(self, name: str) -> None:
        """Request a stop; `name` is the requester in messages."""
        self.name = name

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        # Callers of the library get their own handlers back.
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # A second Ctrl-C: the person does not want to wait for the checkpoint.
        if number == signal.SIGINT and self.name is not None:
            raise KeyboardInterrupt
        self.name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
