"""Base class of trackers from outside the package: receivers of a run's events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from heedful.events import Event


class RegisteredTracker:
    """Base class of trackers for `heedful.register`, which are sinks of events.

    A subclass sets `name` and implements `handle`. It is made for each run that names it in
    `trackers`, in the first of its processes, once all settings and the data have been checked. If
    it fails later, the run warns and goes on without it.

    Args:
        run_dir: directory of the run.
        settings: settings of the run, as plain data.
        step: step of the checkpoint from which the run goes on; None for a new run. Later events
            are sent again.

    Attributes:
        name: name in settings.
    """

    family: ClassVar[str] = "tracker"
    name: ClassVar[str]

    def __init__(self, run_dir: Path, settings: Mapping[str, Any], step: int | None) -> None:
        self.run_dir = run_dir
        self.settings = settings
        self.step = step

    @classmethod
    def known_as(cls) -> str:
        """Return its name in settings."""
        return cls.name

    @classmethod
    def check(cls) -> None:
        """Refuse runs before any work where something is missing.

        Raises:
            ConfigError: when a library or an account is not there.
        """

    def handle(self, event: Event) -> None:
        """Handle one event; `Metric` has the figures."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish; no event follows."""


class SafeTracker:
    """A sink that passes events to a tracker until it fails: no server must end a night's run.

    Args:
        tracker: tracker of the run.
        warn: function that gets the warning that it failed.
    """

    def __init__(self, tracker: RegisteredTracker, warn: Callable[[str], None]) -> None:
        self._tracker = tracker
        self._warn = warn
        self._has_failed = False

    def handle(self, event: Event) -> None:
        """See `RegisteredTracker`."""
        self._attempt(lambda: self._tracker.handle(event))

    def close(self) -> None:
        """See `RegisteredTracker`."""
        self._attempt(self._tracker.close)

    def _attempt(self, action: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            action()
        except Exception as error:
            self._has_failed = True
            what = f"{type(error).__name__}: {error}"
            self._warn(f"The tracker {self._tracker.name} fails and gets no more events: {what}")
