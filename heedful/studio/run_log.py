"""The record of a run: its settings and the lines of `metrics.jsonl` so far."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heedful.config import read_toml
from heedful.train.run_settings import RunSettings

SETTINGS_FILE = "config.toml"
METRICS_FILE = "metrics.jsonl"

Points = list[tuple[int, float]]


class RunLog:
    """The record of one run; each call reads only the lines that were added since the last.

    Args:
        path: the run directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._read = 0
        self._file: tuple[int, int] | None = None
        self._events: list[dict[str, Any]] = []

    def settings(self) -> RunSettings:
        """Read the run's settings.

        Raises:
            ConfigError: when they cannot be read.
        """
        path = self.path / SETTINGS_FILE
        return RunSettings.parse(read_toml(path), where=str(path))

    def events(self) -> Sequence[dict[str, Any]]:
        """Return every whole line so far, in order."""
        with self._lock:
            try:
                with (self.path / METRICS_FILE).open("rb") as file:
                    self._catch_up(file)
            except FileNotFoundError:
                self._forget()
            return tuple(self._events)

    def figures(self) -> dict[str, list[str]]:
        """Return the names of the numbers in training and in validation."""
        figures: dict[str, dict[str, None]] = {"train": {}, "validation": {}}
        for event in self.events():
            names = figures.get(event.get("event", "train"))
            if names is not None:
                names.update(dict.fromkeys(k for k, v in event.items() if _is_number(v)))
        return {kind: [name for name in names if name != "step"] for kind, names in figures.items()}

    def points(self, figure: str, kind: str = "train") -> Points:
        """Return the steps and numbers of one figure."""
        return [
            (event["step"], float(event[figure]))
            for event in self.events()
            if event.get("event", "train") == kind and _is_number(event.get(figure))
        ]

    def _catch_up(self, file: Any) -> None:
        import os

        facts = os.fstat(file.fileno())
        identity = (facts.st_dev, facts.st_ino)
        if identity != self._file or facts.st_size < self._read:  # a resumed run begins anew
            self._forget()
            self._file = identity
        file.seek(self._read)
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1]  # a line may be half written
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a line that a kill cut short
            if isinstance(event, dict) and isinstance(event.get("step"), int):
                self._events.append(event)

    def _forget(self) -> None:
        self._read, self._file, self._events = 0, None, []


def thinned(points: Points, most: int) -> Points:
    """Thin a curve to about `most` points: of each stretch the lowest and the highest.

    Args:
        points: in the order of their steps.
        most: number of points.
    """
    if len(points) <= most:
        return points
    stretch = math.ceil(2 * len(points) / most)
    curve: Points = [points[0]]
    for start in range(1, len(points) - 1, stretch):
        part = points[start : min(start + stretch, len(points) - 1)]
        lowest, highest = min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])
        curve += sorted({lowest, highest})
    return [*curve, points[-1]]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
