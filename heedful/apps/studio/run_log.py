"""The metrics file of a run while it is written: curves, state, and texts of its model."""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, get_args

from heedful.config import read_toml
from heedful.inspect.drawings import curve
from heedful.train.run_settings import RunSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
    """Positions on an axis, in order, and the value at each."""


SETTINGS_FILE = "config.toml"
METRICS_FILE = "metrics.jsonl"

Axis = Literal["step", "seconds", "total_tokens"]
Kind = Literal["train", "validation"]
AXES: tuple[Axis, ...] = get_args(Axis)
KINDS: tuple[Kind, ...] = get_args(Kind)

PATIENCE = 120.0
"""Seconds without a new line after which a run with frequent lines counts as stopped."""
GAPS = 5.0
"""Number of intervals between lines after which a run with rare lines counts as stopped."""


class _Figures:
    """Columns of the metrics of one kind of event, and the position of each event."""

    def __init__(self) -> None:
        self.places = {axis: array("d") for axis in AXES}
        self.columns: dict[str, tuple[array[int], array[float]]] = {}

    def add(self, event: dict[str, Any], place: dict[Axis, float]) -> None:
        row = len(self.places["step"])
        for axis, column in self.places.items():
            column.append(place[axis])
        columns = self.columns
        for name, value in event.items():
            if not _is_number(value):
                continue
            if name not in columns:
                columns[name] = (array("q"), array("d"))
            rows, values = columns[name]
            rows.append(row)
            values.append(value)


@dataclass
class RunState:
    """The state of a run according to its metrics file.

    Args:
        step: number of updates so far.
        training: newest line of training; empty before the first.
        validations: all validations so far.
        samples: step and texts of each validation with texts.
        worst: step and worst texts of the newest validation that recorded them; None without one.
        summary: last line of a finished run; None during training, or after it was killed.
        gap: seconds between the two newest lines of training.
        written: time of the last write, in seconds since 1970; None without a file.
        lines: number of lines so far.
    """

    step: int = 0
    training: dict[str, Any] = field(default_factory=dict)
    validations: list[dict[str, Any]] = field(default_factory=list)
    samples: list[tuple[int, list[dict[str, str]]]] = field(default_factory=list)
    worst: tuple[int, list[dict[str, str]]] | None = None
    summary: dict[str, Any] | None = None
    gap: float = 0.0
    written: float | None = None
    lines: int = 0

    def is_training(self, now: float) -> bool:
        """Return True if lines are still being written.

        Args:
            now: present time in seconds since 1970.
        """
        if self.summary is not None or self.written is None:
            return False
        return now - self.written < max(PATIENCE, GAPS * self.gap)


class RunLog:
    """The metrics file of a run, of which each call reads only the new lines.

    Args:
        path: run directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: tuple[int, int] | None = None
        self._state = RunState()
        self._forget()

    @property
    def has_settings(self) -> bool:
        """False while the run still makes its tokenizers."""
        return (self.path / SETTINGS_FILE).is_file()

    def settings(self) -> RunSettings:
        """Read the run's settings.

        Raises:
            ConfigError: when they cannot be read.
        """
        path = self.path / SETTINGS_FILE
        return RunSettings.parse(read_toml(path), where=str(path))

    def state(self) -> RunState:
        """Return the present state of the run."""
        with self._lock:
            self._read_on()
            state = self._state
            return replace(state, validations=list(state.validations), samples=list(state.samples))

    def progress(self) -> dict[str, Any]:
        """Return the last step, its loss, and the seconds since that step, as JSON data.

        `ended` tells a run that came to its end from one that is silent for another reason.
        """
        state, now = self.state(), time.time()
        return {
            "step": state.step,
            "loss": state.training.get("loss"),
            "seconds_ago": None if state.written is None else max(0.0, now - state.written),
            "ended": state.summary is not None,
            "active": state.is_training(now),
        }

    def _repr_html_(self) -> str:
        """The curve of the loss, for a notebook."""
        steps, losses = self.curve("loss")
        points = thin_curve((steps, losses), 400)
        title = f"{self.path.name}: loss by step"
        return curve([x for x, _ in points], [y for _, y in points], title)

    def figures(self) -> dict[Kind, list[str]]:
        """Return the names of metrics in training and in validation."""
        with self._lock:
            self._read_on()
            return {
                kind: [name for name in figures.columns if name != "step"]
                for kind, figures in self._figures.items()
            }

    def curve(self, figure: str, kind: Kind = "train", axis: Axis = "step") -> Curve:
        """Return the values of one metric, each with its position on an axis.

        Args:
            figure: name of the metric.
            kind: kind of event.
            axis: steps, seconds of training, or target tokens trained on. A validation has the
                position of the preceding training event.
        """
        import numpy as np

        with self._lock:
            self._read_on()
            figures = self._figures[kind]
            rows, values = figures.columns.get(figure, (array("q"), array("d")))
            places = np.array(figures.places[axis])[np.array(rows, dtype=np.int64)]
            numbers = np.array(values, dtype=np.float64)
        placed = ~np.isnan(places)
        return places[placed], numbers[placed]

    def _read_on(self) -> None:
        try:
            with (self.path / METRICS_FILE).open("rb") as file:
                self._catch_up(file)
        except FileNotFoundError:
            self._forget()

    def _catch_up(self, file: IO[bytes]) -> None:
        facts = os.fstat(file.fileno())
        identity = (facts.st_dev, facts.st_ino)
        # A resumed run replaces the file, or cuts it to its checkpoint.
        if identity != self._file or facts.st_size < self._read:
            self._forget()
            self._file = identity
        file.seek(self._read)
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1]  # the last line may be incomplete
        self._read += len(whole)
        for event in _events(whole):
            self._add(event)
        self._state.written = facts.st_mtime

    def _add(self, event: dict[str, Any]) -> None:
        state = self._state
        state.step = event["step"]
        state.lines += 1
        before = self._place["seconds"]
        for axis in self._place:
            if _is_number(event.get(axis)):
                self._place[axis] = float(event[axis])
        kind = event.get("event", "train")
        if kind in self._figures:
            self._figures[kind].add(event, self._place)
        if kind == "train":
            state.gap = max(0.0, self._place["seconds"] - before) if state.training else 0.0
            state.training, state.summary = event, None
        elif kind == "validation":
            state.validations.append(event)
        elif kind == "summary":
            state.summary = event
        elif kind == "samples" and isinstance(event.get("samples"), list):
            state.samples.append((event["step"], [s for s in event["samples"] if _is_sample(s)]))
            if isinstance(event.get("worst"), list):
                state.worst = event["step"], [s for s in event["worst"] if _is_sample(s)]

    def _forget(self) -> None:
        self._read = 0
        self._file = None
        self._state = RunState()
        self._figures: dict[Kind, _Figures] = {kind: _Figures() for kind in KINDS}
        self._place: dict[Axis, float] = dict.fromkeys(AXES, math.nan)


def stretch_of(curve: Curve, low: float | None, high: float | None) -> Curve:
    """Return the part of a curve from `low` to `high`, with one more point at each end.

    Args:
        curve: whole curve.
        low: lower end; None for the first point.
        high: upper end; None for the last point.
    """
    import numpy as np

    places, values = curve
    ascending = np.maximum.accumulate(places)
    first = 0 if low is None else max(0, int(np.searchsorted(ascending, low)) - 1)
    last = len(places) if high is None else int(np.searchsorted(ascending, high, "right")) + 1
    return places[first:last], values[first:last]


def smooth_curve(curve: Curve, smooth: float) -> Curve:
    """Return an exponential moving average: each point weighs `smooth` times the next one.

    The average is divided by the sum of the weights so far, so that the first points are not biased
    to 0.

    Args:
        curve: points of the curve.
        smooth: decay of weights, from 0, which changes nothing, to below 1.
    """
    import numpy as np

    places, values = curve
    sums = itertools.accumulate(values.tolist(), lambda total, value: smooth * total + value)
    weights = (1 - smooth ** np.arange(1, len(values) + 1)) / (1 - smooth)
    return places, np.fromiter(sums, np.float64, len(values)) / weights


def thin_curve(curve: Curve, most: int, *, log: bool = False) -> list[tuple[float, float]]:
    """Thin a curve to about `most` points: the lowest and the highest point of each stretch.

    Args:
        curve: points of the curve.
        most: approximate number of points.
        log: true for stretches of equal width on a logarithmic axis.
    """
    import numpy as np

    places, values = curve
    kept: Sequence[int] = range(len(places))
    if len(places) > most:
        ascending = np.maximum.accumulate(places)
        if log and ascending[-1] > 0:
            first = max(ascending[0], float(ascending[ascending > 0][0]))
            edges = np.geomspace(first, ascending[-1], most // 2 + 1)[1:-1]
        else:
            edges = np.linspace(ascending[0], ascending[-1], most // 2 + 1)[1:-1]
        bounds = np.unique([0, *np.searchsorted(ascending, edges), len(places)]).tolist()
        found = {0, len(places) - 1}
        for start, end in itertools.pairwise(bounds):
            part = values[start:end]
            found |= {start + int(part.argmin()), start + int(part.argmax())}
        kept = sorted(found)
    return [(float(places[i]), float(values[i])) for i in kept]


def _events(text: bytes) -> Iterator[dict[str, Any]]:
    """Parse complete lines, all at once if all are valid, which is twice as fast."""
    lines = [line for line in text.split(b"\n") if line.strip()]
    found: Sequence[Any]
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        found = [_event(line) for line in lines]
    for event in found:
        if isinstance(event, dict) and isinstance(event.get("step"), int):
            yield event


def _event(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # an incomplete line of a killed process
        return None


def _is_number(value: Any) -> bool:
    kind = type(value)  # not isinstance: it is slower, and a bool is not a number here
    return kind is int or (kind is float and math.isfinite(value))


def _is_sample(sample: Any) -> bool:
    return isinstance(sample, dict) and all(
        isinstance(sample.get(name), str) for name in ("source", "reference", "text")
    )
