"""A forecast of a training: the updates that its budget allows, and what as many gave before."""

from __future__ import annotations

import itertools
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from heedful.config import Config, read_toml
from heedful.data.corpus_spec import CorpusSpec
from heedful.data.pair_corpus import CorpusReader, corpus_paths
from heedful.data.text_file import file_form
from heedful.errors import UserError
from heedful.events import Event, Events, Metric
from heedful.pretrained.catalogue import models_at_hand
from heedful.train.run_settings import RunSettings

UPDATES = 20
"""Number of updates after which a training is foretold; the first few are slower than the rest."""

_FIRST = 5  # updates that are not counted: memory is allocated and kernels are chosen in them
_SHARE = 0.2  # share of the budget after which a training is foretold with fewer updates
_WARM_START = "--schedule.warmup-steps 20 --schedule.peak-learning-rate 0.0005"
"""Flags for a trained translator and few updates: en-de on Multi30k had BLEU 27.1 after 102 with
them, 18.7 with the schedule for random weights, and 16.3 before (benchmarks/results)."""

_FILE = resources.files("heedful.apps.planning") / "recorded_curves.toml"


class Curve(Config):
    """Validation scores of a recorded training, and the file that they are from."""

    source: str
    steps: tuple[int, ...]
    bleu: tuple[float, ...]

    def at(self, updates: float) -> float:
        """Return the best BLEU up to a number of updates, interpolated from 0 at the start."""
        # The best so far, as RUN/model holds the best model and not the latest.
        best = itertools.accumulate(self.bleu, max)
        points = [(0, 0.0), *zip(self.steps, best, strict=True)]
        for (start, low), (end, high) in itertools.pairwise(points):
            if updates <= end:
                return low + (high - low) * max(0.0, updates - start) / (end - start)
        return points[-1][1]

    def first_at(self, bleu: float) -> int:
        """Return the first recorded step with this BLEU or a better one."""
        return next(step for step, b in zip(self.steps, self.bleu, strict=True) if b >= bleu)


class RecordedTask(Config):
    """Preset, data and size of an update of the recorded trainings."""

    preset: str
    data: str
    tokens_per_update: int


class RecordedCurves(Config):
    """The recorded trainings, and the BLEU from which translations are readable."""

    readable_bleu: float
    task: RecordedTask
    curves: tuple[Curve, ...]

    def range_at(self, updates: float) -> tuple[float, float]:
        """Return the lowest and the highest BLEU of the recorded trainings after some updates."""
        scores = [curve.at(updates) for curve in self.curves]
        return min(scores), max(scores)

    @property
    def readable_from(self) -> int:
        """Number of updates after which all recorded trainings were readable."""
        return max(curve.first_at(self.readable_bleu) for curve in self.curves)


@cache
def recorded_curves() -> RecordedCurves:
    """Return the recorded trainings."""
    return RecordedCurves.parse(read_toml(Path(str(_FILE))), where=str(_FILE))


class Pace(NamedTuple):
    """The place and the speed of a training.

    Args:
        step: number of updates so far.
        seconds: time so far.
        seconds_per_update: time of an update.
        tokens_per_update: target tokens of an update.
    """

    step: int
    seconds: float
    seconds_per_update: float
    tokens_per_update: float

    def updates(self, max_steps: int, max_minutes: float | None) -> int:
        """Return the number of updates that fit into a budget; never fewer than were made."""
        if max_minutes is None:
            return max_steps
        left = max(0.0, 60 * max_minutes - self.seconds)
        return min(max_steps, self.step + round(left / max(self.seconds_per_update, 1e-9)))

    def minutes(self, updates: int) -> float:
        """Return the minutes, from the start on, that a number of updates takes."""
        return (self.seconds + (updates - self.step) * self.seconds_per_update) / 60


class Forecast:
    """A sink that foretells a training after about twenty updates, once.

    Args:
        settings: settings of the training run.
        events: receivers of the forecast.
    """

    def __init__(self, settings: RunSettings, events: Events) -> None:
        self.settings = settings
        self.events = events
        self._metrics: list[tuple[int, float, float]] = []
        self._is_done = False

    def handle(self, event: Event) -> None:
        """Count an update, and tell the forecast when there are enough."""
        if self._is_done or not isinstance(event, Metric) or event.kind != "train":
            return
        values: Any = event.values
        self._metrics.append((event.step, values["seconds"], values["tokens"]))
        if self._is_due(event.step, values["seconds"]):
            self._is_done = True
            for line in self.lines(self._pace()):
                self.events.note(line)

    def close(self) -> None:
        """Nothing to finish."""

    def _is_due(self, step: int, seconds: float) -> bool:
        made, minutes = len(self._metrics), self.settings.max_minutes
        spent = 0.0 if minutes is None else seconds / (60 * minutes)
        share = max(spent, step / self.settings.max_steps)
        # A budget that ends soon is foretold from less: that is where it matters most.
        return made >= UPDATES or (made >= 3 and share >= _SHARE)

    def _pace(self) -> Pace:
        counted = self._metrics[min(_FIRST, len(self._metrics) - 2) :]
        (first, begun, _), (step, seconds, _) = counted[0], counted[-1]
        tokens = sum(each for _, _, each in self._metrics) / len(self._metrics)
        return Pace(step, seconds, (seconds - begun) / (step - first), tokens)

    def lines(self, pace: Pace) -> list[str]:
        """Return the forecast, a sentence or two a line."""
        settings, recorded = self.settings, recorded_curves()
        updates = pace.updates(settings.max_steps, settings.max_minutes)
        took = f"An update takes {_seconds(pace.seconds_per_update)}"
        if settings.max_minutes is not None and updates < settings.max_steps:
            fits = f"about {updates:,} fit into max_minutes = {settings.max_minutes:g}"
        else:
            fits = f"max_steps = {updates:,} end after about {_minutes(pace.minutes(updates))}"
        lines = [f"{took}: {fits}, validations not counted"]
        if settings.task != "translation":
            return lines
        # A model that begins trained follows no curve of those that began with nothing.
        if settings.init is not None:
            warmup = settings.schedule.warmup_steps
            if updates < warmup:
                lines.append(
                    f"The learning rate rises until warmup_steps = {warmup:,}, past this budget: a "
                    f"trained model learns more in few updates with {_WARM_START}"
                )
            return lines
        # An update of fewer tokens teaches less; one of more is not known to teach more.
        size = pace.tokens_per_update / recorded.task.tokens_per_update
        size = size if size < 0.8 else 1.0  # batches of a few updates differ that much
        lines.append(_before(recorded, updates, size))
        needed = round(recorded.readable_from / size)
        if updates < needed:
            lines.append(
                f"Translations were readable from about {recorded.readable_from:,} such updates "
                f"on: expect that here after {_minutes(pace.minutes(needed))} or later, not within "
                "this budget"
            )
            if name := fitting_model(settings):
                instead = f" in place of --preset {settings.preset}" if settings.preset else ""
                flags = f"--init {name} {_WARM_START}{instead}"
                lines.append(f"To begin with a trained model, use {flags}")
        return lines


def _before(recorded: RecordedCurves, updates: int, size: float) -> str:
    """Return a sentence on the recorded trainings after as many updates of a relative size."""
    low, high = recorded.range_at(updates * size)
    first = min(curve.steps[0] for curve in recorded.curves)
    last = max(curve.steps[-1] for curve in recorded.curves)
    if updates * size < first:
        low, high = recorded.range_at(first)
        what = f"had BLEU {low:.0f} to {high:.0f} after their first {first:,} updates"
    elif updates * size > last:
        what = f"ended at BLEU {low:.0f} to {high:.0f} after {last:,} updates or fewer"
    else:
        what = f"had BLEU {low:.0f} to {high:.0f} after {round(updates * size):,} updates"
    smaller = "" if size == 1 else f" of {recorded.task.tokens_per_update:,} target tokens"
    return f"Recorded trainings of {recorded.task.preset} ({recorded.task.data}) {what}{smaller}"


def fitting_model(settings: RunSettings) -> str | None:
    """Return the name of a translator at hand for the languages of a run; None without one."""
    try:
        languages = corpus_languages(settings.data.train[0])
    except (UserError, OSError):
        return None  # the hint is a courtesy: nothing here may end a training
    for name, model in models_at_hand().items():
        card = model.card()
        if card.task == "translation" and card.languages == languages:
            return name
    return None


def corpus_languages(spec: CorpusSpec) -> tuple[str, ...]:
    """Return the languages of source and target, from the ends of file names or from the texts.

    Raises:
        UserError: when the files cannot be read, or no detector is installed.
    """
    paths = corpus_paths(spec)
    ends = [re.fullmatch(r"\.([a-z]{2})", file_form(path)) for path in paths]
    if len(paths) == 2 and all(ends):
        return tuple(end[1] for end in ends if end)
    from heedful.apps.language_detector import detect_languages

    pairs = list(itertools.islice(CorpusReader(spec), 100))
    sides = (" ".join(pair.source for pair in pairs), " ".join(pair.target for pair in pairs))
    return tuple(detected[0][0] for side in sides if (detected := detect_languages(side)))


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} seconds" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _minutes(minutes: float) -> str:
    """Format a time by the unit that fits it."""
    for unit, size in (("days", 60 * 24), ("hours", 60)):
        if minutes >= 2 * size:
            return f"{minutes / size:.0f} {unit}"
    rounded = max(1, round(minutes))
    return f"{rounded} minute{'' if rounded == 1 else 's'}"
