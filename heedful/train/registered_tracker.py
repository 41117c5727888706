"""Base class of trackers from outside the package: receivers of a run's events."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from heedful.events import Event


class RegisteredTracker:
    """Base class of trackers for `heedful.register`, which are sinks of events.

    A subclass sets `name` and implements `handle`. It is made for each run that names it in
    `trackers`, in the first of its processes, once all settings and the data have been checked.

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
