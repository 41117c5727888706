"""Trackers: sinks that pass the metrics of a run on to TensorBoard, W&B, MLflow or another service.

One from outside the package is a subclass of `Tracker`, which `heedful.register` makes known.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from heedful.errors import ConfigError
from heedful.events import Event, Events, Metric, Sample, Samples
from heedful.registry import find
from heedful.train.run_settings import RunSettings

_IDS_FILE = "trackers.json"


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker follows.

    Args:
        directory: run directory.
        settings: settings of the run as nested plain data.
        after: step of the checkpoint from which the run resumes; None for a new run.
    """

    directory: Path
    settings: Mapping[str, Any]
    after: int | None = None

    def id_of(self, tracker: str) -> str | None:
        """Return the name that a service gave to this run before it was resumed, if it did."""
        return self._ids().get(tracker) if self.after is not None else None

    def keep_id(self, tracker: str, name: str) -> None:
        """Write down the name that a service gave to this run."""
        text = json.dumps(self._ids() | {tracker: name})
        (self.directory / _IDS_FILE).write_text(text + "\n", encoding="utf-8")

    def _ids(self) -> dict[str, str]:
        path = self.directory / _IDS_FILE
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


class Tracker:
    """A sink that passes numbers and translations of a run on.

    Attributes:
        name: name in the setting `trackers`.
        package: module that has to be installed; "" for none.
        install: what `pip install` is given for it.
    """

    family: ClassVar[str] = "tracker"
    name: ClassVar[str]
    package: ClassVar[str] = ""
    install: ClassVar[str] = ""

    def __init__(self, run: TrackedRun) -> None:
        """Begin, or go on with, the record of a run."""

    @classmethod
    def known_as(cls) -> str:
        """Return the name in settings."""
        return cls.name

    @classmethod
    def check(cls) -> None:
        """Check that the package is installed.

        Raises:
            ConfigError: when it is not.
        """
        if cls.package and importlib.util.find_spec(cls.package) is None:
            raise ConfigError(
                f"The {cls.package} package is not installed",
                where=f"trackers = {cls.name}",
                remedy=f"Install it with: pip install '{cls.install}'",
            )

    def handle(self, event: Event) -> None:
        """Pass on a metric or samples; ignore other events."""
        if isinstance(event, Samples):
            self.samples(event.step, event.items)
        elif isinstance(event, Metric):
            values = {f"{event.kind}/{k}": v for k, v in event.values.items()}
            self.numbers(event.step, {k: v for k, v in values.items() if not isinstance(v, str)})

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Pass on figures of a step; names are `KIND/NAME`, such as `validation/bleu`."""

    def samples(self, step: int, items: Sequence[Sample]) -> None:
        """Pass on translations of validation examples."""

    def close(self) -> None:
        """Finish; no event follows."""


class TensorBoard(Tracker):
    """Event files for TensorBoard in RUN/tensorboard."""

    name = "tensorboard"
    package = "tensorboard"
    install = "heedful[tensorboard]"

    def __init__(self, run: TrackedRun) -> None:
        self.check()  # PyTorch's own error does not say how to install the package
        from torch.utils.tensorboard import SummaryWriter

        # Events after the checkpoint are written again by the resumed run.
        purge = None if run.after is None else run.after + 1
        self._writer: Any = SummaryWriter(str(run.directory / "tensorboard"), purge_step=purge)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def samples(self, step: int, items: Sequence[Sample]) -> None:
        for number, item in enumerate(items, 1):
            self._writer.add_text(f"samples/{number}", item.text, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Tracker):
    """A run of W&B; its environment variables choose project, entity and mode (WANDB_MODE)."""

    name = "wandb"
    package = "wandb"
    install = "heedful[wandb]"

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._wandb: Any = wandb
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "heedful"),
            name=run.directory.name,
            dir=str(run.directory),
            config=dict(run.settings),
            # Steps that W&B knows already are left out by it: a resumed run repeats their values.
            id=run.id_of(self.name),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        run.keep_id(self.name, self._run.id)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def samples(self, step: int, items: Sequence[Sample]) -> None:
        rows = [[item.source, item.reference, item.text] for item in items]
        table = self._wandb.Table(columns=["source", "reference", "translation"], data=rows)
        self._run.log({"samples": table}, step=step)

    def close(self) -> None:
        self._run.finish()


class Mlflow(Tracker):
    """A run of MLflow; its environment variables choose server and experiment."""

    name = "mlflow"
    package = "mlflow"
    install = "heedful[mlflow]"

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        # A client of its own, since `mlflow.log_metric` writes into whatever run is active.
        self._client: Any = MlflowClient()
        known = run.id_of(self.name)
        self._after = run.after or 0
        if known is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "heedful")
            experiment = self._client.get_experiment_by_name(name)
            number = self._client.create_experiment(name) if experiment is None else None
            number = experiment.experiment_id if number is None else number
            known = self._client.create_run(number, run_name=run.directory.name).info.run_id
            for key, value in _leaves(run.settings):
                self._client.log_param(known, key, value)
        else:
            self._client.update_run(known, status="RUNNING")
        self._id = known
        run.keep_id(self.name, known)
        self._last: dict[str, int] = {}

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            # MLflow keeps both of two values of a step, and a resumed run repeats some.
            if name not in self._last:
                history = self._client.get_metric_history(self._id, name) if self._after else []
                self._last[name] = max((each.step for each in history), default=-1)
            if step > self._last[name]:
                self._client.log_metric(self._id, name, value, step=step)

    def samples(self, step: int, items: Sequence[Sample]) -> None:
        columns = {
            "source": [item.source for item in items],
            "reference": [item.reference for item in items],
            "translation": [item.text for item in items],
        }
        self._client.log_dict(self._id, columns, f"samples/{step}.json")

    def close(self) -> None:
        self._client.set_terminated(self._id)


TRACKERS: dict[str, type[Tracker]] = {
    each.name: each for each in (TensorBoard, WeightsAndBiases, Mlflow)
}
"""The package's own trackers, by name."""


def trackers_of(settings: RunSettings) -> list[type[Tracker]]:
    """Return the trackers of a run, each once, the package's own or registered ones.

    Raises:
        ConfigError: when a package is not installed.
    """
    own = ("tensorboard",) if settings.tensorboard else ()
    trackers = []
    for name in dict.fromkeys((*own, *settings.trackers)):
        tracker = TRACKERS.get(name) or find("tracker", name, tuple(TRACKERS))
        tracker.check()
        trackers.append(tracker)
    return trackers


class SafeTracker:
    """A sink that gives events to a tracker until it fails: no run ends because a service is away.

    Args:
        tracker: class of the tracker.
        run: run that it follows.
        events: receivers of the warning.

    Raises:
        ConfigError: when the tracker cannot begin.
    """

    def __init__(self, tracker: type[Tracker], run: TrackedRun, events: Events) -> None:
        self._events = events
        self._name = tracker.name
        try:
            self._tracker: Tracker | None = tracker(run)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{tracker.name} cannot begin: {error}",
                where="trackers",
                remedy="Log in or start its server as its own pages say, or leave it out",
            ) from error

    def handle(self, event: Event) -> None:
        """Pass an event on; the first error ends the tracking, with a warning."""
        if self._tracker is None:
            return
        try:
            self._tracker.handle(event)
        except Exception as error:
            self._tracker = None
            self._events.warn(f"{self._name} gets no more metrics: {error}")

    def close(self) -> None:
        """Finish the tracking."""
        if self._tracker is not None:
            try:
                self._tracker.close()
            except Exception as error:
                self._events.warn(f"{self._name} could not be finished: {error}")


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings by their dotted names, as texts."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)[:_PARAMETER]


_PARAMETER = 500  # characters; servers before MLflow 2.12 refuse longer ones
