"""Requests to stop: signals that let training end in order, within seconds."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_active: StopRequest | None = None  # handlers of signals belong to the whole process as well


class Stopped(BaseException):
    """The end of interruptible work at a request to stop.

    No `Exception`, so that nothing that handles errors takes it for one.
    """


class StopRequest:
    """A context in which SIGTERM and SIGINT request a stop instead of killing the process.

    A second Ctrl-C aborts at once with `KeyboardInterrupt`. Outside the main thread, where Python
    cannot handle signals, a stop can only be requested by `ask`.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._raises = False
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.name is not None

    def ask(self, name: str) -> None:
        """Request a stop; `name` is the requester in messages."""
        self.name = name

    def __enter__(self) -> Self:
        global _active
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)
            self._outer, _active = _active, self
        return self

    def __exit__(self, *exception: object) -> None:
        global _active
        # Callers of the library get their own handlers back.
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            _active = self._outer
        self._before.clear()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        if self:
            raise Stopped
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # After a second Ctrl-C, the user does not want to wait for the checkpoint.
        if number == signal.SIGINT and self.name is not None:
            raise KeyboardInterrupt
        self.name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        # A pass of a large batch, or a validation, may take minutes. It has no effect before it
        # ends, so it is given up.
        if self._raises:
            self._raises = False
            raise Stopped


@contextmanager
def interruptible() -> Iterator[None]:
    """A context for work without effect before its end, which a request to stop breaks off.

    Raises:
        Stopped: when a stop is requested, or has been.
    """
    # Signals reach the main thread only: work in another one goes on to its end.
    if _active is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    with _active._interruptible():
        yield
