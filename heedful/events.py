"""Events of long work as plain data, and the sinks that receive them.

Code emits `Progress`, `Metric`, `Note` and `Warning` values through `Events`. Sinks show them on a
terminal, append them to `metrics.jsonl` or pass them to a tracker (`train/trackers.py`).
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from heedful.errors import RunError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

Value = float | int | str


@dataclass(frozen=True)
class Progress:
    """The progress of some work.

    Args:
        done: number of finished units.
        total: number of all units; None if unknown.
        label: name of the work, which has one bar.
        fields: figures to show beside the bar, in order.
        in_seconds: true if units are seconds, which are shown as times.
    """

    done: int
    total: int | None
    label: str
    fields: Mapping[str, Value] = field(default_factory=dict)
    in_seconds: bool = False

    @property
    def amount(self) -> str:
        """Finished and all units, such as `3/8` or `2:18/5:00`."""
        counts = [self.done, *([self.total] if self.total else [])]
        return "/".join(_duration(each) if self.in_seconds else str(each) for each in counts)


@dataclass(frozen=True)
class Metric:
    """Figures of one step of a run.

    Args:
        step: number of updates so far.
        values: figures by name.
        kind: `train`, `validation`, `nonfinite` or `summary`.
    """

    step: int
    values: Mapping[str, Value]
    kind: str = "train"


@dataclass(frozen=True)
class Sample:
    """The output of a model for a validation example.

    Args:
        source: source text.
        reference: reference translation.
        text: translation of the model.
    """

    source: str
    reference: str
    text: str


@dataclass(frozen=True)
class Samples:
    """Outputs of a model at a step, always for the same examples.

    Args:
        step: number of updates so far.
        items: output for each example.
        worst: the worst outputs of this validation, of whatever examples, worst first.
    """

    step: int
    items: tuple[Sample, ...]
    worst: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Note:
    """A sentence of information."""

    text: str


@dataclass(frozen=True)
class Warning:
    """A sentence about something that may need attention."""

    text: str


Event = Progress | Metric | Samples | Note | Warning


class Sink(Protocol):
    """A receiver of events."""

    def handle(self, event: Event) -> None:
        """Handle one event."""

    def close(self) -> None:
        """Finish; no event follows."""


class Events:
    """A source of events, which sends every event to every sink.

    Args:
        sinks: receivers of events; without any, events are dropped.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self.sinks = tuple(sinks)

    def emit(self, event: Event) -> None:
        """Send one event to all sinks."""
        for sink in self.sinks:
            sink.handle(event)

    def progress(self, done: int, total: int | None, label: str, **fields: Value) -> None:
        """Emit a `Progress`."""
        self.emit(Progress(done, total, label, fields))

    def metric(self, step: int, values: Mapping[str, Value], kind: str = "train") -> None:
        """Emit a `Metric`."""
        self.emit(Metric(step, dict(values), kind))

    def samples(self, step: int, items: Iterable[Sample], worst: Iterable[Sample] = ()) -> None:
        """Emit `Samples`, unless there are none."""
        if kept := tuple(items):
            self.emit(Samples(step, kept, tuple(worst)))

    def note(self, text: str) -> None:
        """Emit a `Note`."""
        self.emit(Note(text))

    def warn(self, text: str) -> None:
        """Emit a `Warning`."""
        self.emit(Warning(text))

    @contextmanager
    def ticking(self, label: str, every: float = 5.0) -> Iterator[None]:
        """A context for one long step, whose time is reported meanwhile.

        Args:
            label: name of the step.
            every: seconds from one report to the next.
        """
        started, finished = time.monotonic(), threading.Event()

        def tick() -> None:
            while True:
                seconds = round(time.monotonic() - started)
                is_last = finished.is_set()
                # The end has a total, which ends the step's bar.
                total = max(seconds, 1) if is_last else None
                done = seconds if total is None else total
                self.emit(Progress(done, total, label, in_seconds=True))
                if is_last:
                    return
                finished.wait(every)

        # The step itself has the calling thread, and may be one call of a compiler.
        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()

    # A copy: the caller's `Events` keeps its own sinks.
    def also(self, *sinks: Sink) -> Events:
        """Return a copy with more sinks."""
        return Events((*self.sinks, *sinks))

    def close(self) -> None:
        """Close all sinks."""
        for sink in self.sinks:
            sink.close()


class Recorder:
    """A sink that keeps events in a list, for tests and notebooks."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)

    def close(self) -> None:
        """Nothing to finish."""

    def texts(self, kind: type[Note] | type[Warning]) -> list[str]:
        """Texts of all notes or of all warnings."""
        return [event.text for event in self.events if isinstance(event, kind)]

    def metrics(self, kind: str = "train") -> list[Metric]:
        """Metrics of one kind."""
        return [e for e in self.events if isinstance(e, Metric) and e.kind == kind]


class MetricsFile:
    """A sink that appends metrics and samples to a file, one JSON object a line.

    Args:
        path: path of the file, created if it does not exist.
        after: last step of the lines to keep, so that the file of a resumed run equals that of an
            uninterrupted one; None keeps no line.

    Raises:
        RunError: when the file cannot be written.
    """

    def __init__(self, path: Path, after: int | None = None) -> None:
        self.path = path
        try:
            lines = [] if after is None else _lines_until(path, after)
            # Replaced atomically: a process killed here must not lose the metrics so far.
            partial = path.with_name(path.name + ".partial")
            partial.write_text("".join(lines), encoding="utf-8")
            os.replace(partial, path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise _cannot_write(path, error) from error

    def handle(self, event: Event) -> None:
        """Write a metric or samples; ignore other events."""
        record: dict[str, Any]
        if isinstance(event, Samples):
            record = {"step": event.step, "event": "samples"}
            record["samples"] = [asdict(item) for item in event.items]
            if event.worst:
                record["worst"] = [asdict(item) for item in event.worst]
        elif isinstance(event, Metric):
            # Lines of training, the most frequent ones, have no field for their kind.
            kind = {} if event.kind == "train" else {"event": event.kind}
            record = {"step": event.step} | kind | {k: _json(v) for k, v in event.values.items()}
        else:
            return
        try:
            self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
            self._file.flush()  # readers such as the studio follow the file
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Terminal:
    """A sink that shows events: as progress bars on a terminal, as few plain lines elsewhere.

    Args:
        stream: output stream; standard error if None.
        clock: function that returns seconds, for tests.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self._lines = _PlainLines(self.stream, clock)
        self._bars = _Bars(self.stream) if self.stream.isatty() else None

    def handle(self, event: Event) -> None:
        """Show the event, unless it is a metric."""
        if isinstance(event, Progress):
            (self._bars or self._lines).progress(event)
        elif isinstance(event, Note):
            (self._bars or self._lines).say(event.text)
        elif isinstance(event, Warning):
            (self._bars or self._lines).say(f"warning: {event.text}")

    def close(self) -> None:
        """Restore the terminal."""
        if self._bars is not None:
            self._bars.close()


class _PlainLines:
    """Plain progress lines by time: the first at once, then every 5 to 30 seconds, later rarer.

    Lines by count would say nothing for hours where the count is a limit that is never reached.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self.stream = stream
        self.clock = clock
        self.next_at: dict[str, float] = {}
        self.started: dict[str, tuple[float, int]] = {}

    def progress(self, event: Progress) -> None:
        now = self.clock()
        started, first = self.started.setdefault(event.label, (now, event.done))
        is_last = event.total is not None and event.done >= event.total
        if not is_last and now < self.next_at.get(event.label, now):
            return
        elapsed = now - started
        self.next_at[event.label] = now + min(max(5, min(elapsed, 30), elapsed / 20), 300)
        if is_last:
            # Work with this label may start again.
            del self.next_at[event.label], self.started[event.label]
        left = ""
        # A resumed run starts at `first`: its earlier units say nothing about the speed now.
        if event.total and first < event.done < event.total:
            left = (
                f", {_duration(elapsed * (event.total - event.done) / (event.done - first))} left"
            )
        figures = "".join(f", {_figure(k, v)}" for k, v in event.fields.items())
        self.say(f"{event.label} {event.amount}{figures}{left}")

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class _Bars:
    """Live progress bars, one for each label."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live: RichProgress | None = None
        self.tasks: dict[str, TaskID] = {}

    def progress(self, event: Progress) -> None:
        live = self._start()
        figures = "  ".join([event.amount, *(_figure(k, v) for k, v in event.fields.items())])
        if event.label not in self.tasks:
            task = live.add_task(event.label, total=event.total, figures=figures)
            self.tasks[event.label] = task
        task = self.tasks[event.label]
        live.update(task, completed=event.done, total=event.total, figures=figures)
        if event.total is not None and event.done >= event.total:
            live.remove_task(self.tasks.pop(event.label))

    def say(self, text: str) -> None:
        console = self._start().console
        # Markup is off: a name in brackets could vanish as a tag.
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
            self.tasks.clear()

    def _start(self) -> RichProgress:
        if self.live is None:
            # Loaded with the first bar: nothing else needs rich.
            from rich import progress
            from rich.console import Console

            self.live = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[figures]}"),
                progress.TimeRemainingColumn(),
                console=Console(file=self.stream),
                transient=True,
            )
            self.live.start()
        return self.live


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of a metrics file, without a last line that is half written.

    Raises:
        FileNotFoundError: when there is no such file.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _lines_until(path: Path, step: int) -> list[str]:
    """Return the complete lines of a metrics file up to a step, without the summary."""
    if not path.exists():
        return []
    lines = []
    # A killed process may have left half a character at the end, hence `replace`. The summary of a
    # finished run goes: the run that resumes it writes another one.
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # an unfinished line of a killed process
        if line.endswith("\n") and record["step"] <= step and record.get("event") != "summary":
            lines.append(line)
    return lines


def _json(value: Value) -> Value:
    # JSON has no infinity and no NaN; as text they can still be read.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _figure(name: str, value: Value) -> str:
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(
        f"Cannot be written: {error.strerror or error}",
        where=str(path),
        remedy="Free space or choose another directory, then resume",
    )
