"""Trackers: TensorBoard, W&B, MLflow and registered ones get what metrics.jsonl gets."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful import registry
from heedful.errors import ConfigError
from heedful.events import Events, Recorder, Sample, Warning
from heedful.train import trackers
from heedful.train.run_settings import RunSettings
from heedful.train.trackers import (
    Mlflow,
    SafeTracker,
    TensorBoard,
    TrackedRun,
    Tracker,
    WeightsAndBiases,
    trackers_of,
)

SETTINGS = {"preset": "tiny", "model": {"width": 32}}


def chosen(*names: str) -> RunSettings:
    corpus = {"source": "a", "target": "b"}
    return RunSettings.parse({"data": {"train": [corpus]}, "trackers": names})


def feed(tracker: type[Tracker], folder: Path, after: int | None = None) -> None:
    """A run of four updates, resumed after two of them: the third and fourth come again."""
    sink = tracker(TrackedRun(folder, SETTINGS, after))
    events = Events([sink])
    for step in range(1 + (after or 0), 5):
        events.metric(step, {"loss": float(step), "place": "text is left out"})
    events.metric(4, {"bleu": 30.5}, "validation")
    events.samples(4, [Sample("a", "b", "c")])
    sink.close()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named_with_its_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"pip install 'heedful\[{name}\]'"):
        trackers_of(chosen(name))


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no tracker is called 'wandbb'.*tensorboard, wandb"):
        trackers_of(chosen("wandbb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    feed(TensorBoard, tmp_path)
    feed(TensorBoard, tmp_path, after=2)
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert found.Tags()["scalars"] == ["train/loss", "validation/bleu"]
    losses = [(e.step, e.value) for e in found.Scalars("train/loss")]
    assert losses == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


class StandIn:
    """The calls that `WeightsAndBiases` makes of `wandb`, written down."""

    id = "abc"

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.finished = 0

    def init(self, **how: Any) -> StandIn:
        self.begun.append(how)
        return self

    def log(self, values: dict[str, Any], step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1


def test_wandb_gets_the_numbers_and_the_same_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = StandIn()
    module: Any = types.ModuleType("wandb")
    module.init, module.Settings, module.Table = seen.init, dict, dict
    monkeypatch.setitem(sys.modules, "wandb", module)
    feed(WeightsAndBiases, tmp_path)
    feed(WeightsAndBiases, tmp_path, after=2)
    assert [how["id"] for how in seen.begun] == [None, "abc"]
    assert seen.begun[0]["config"] == SETTINGS
    assert seen.logged[:2] == [(1, {"train/loss": 1.0}), (2, {"train/loss": 2.0})]
    assert seen.logged[4] == (4, {"validation/bleu": 30.5})
    assert seen.logged[5][1]["samples"]["data"] == [["a", "b", "c"]]
    assert seen.finished == 2


def test_the_real_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    feed(WeightsAndBiases, tmp_path)
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = written.read_bytes()
    assert b"train/loss" in content
    assert b"validation/bleu" in content
    assert json.loads((tmp_path / "trackers.json").read_text())["wandb"] in written.name


@pytest.mark.filterwarnings("ignore")
def test_the_real_mlflow_keeps_one_value_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    feed(Mlflow, tmp_path)
    feed(Mlflow, tmp_path, after=2)
    number = json.loads((tmp_path / "trackers.json").read_text())["mlflow"]
    client = mlflow.MlflowClient()
    run = client.get_run(number)
    assert run.data.params == {"preset": "tiny", "model.width": "32"}
    assert run.info.status == "FINISHED"
    losses = [(each.step, each.value) for each in client.get_metric_history(number, "train/loss")]
    assert losses == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert run.data.metrics["validation/bleu"] == 30.5
    assert [each.path for each in client.list_artifacts(number, "samples")] == ["samples/4.json"]


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entries", {family: {} for family in registry.FAMILIES})


def test_a_service_that_cannot_begin_is_told(tmp_path: Path) -> None:
    class Locked(Tracker):
        name = "locked"

        def __init__(self, run: TrackedRun) -> None:
            raise PermissionError("no API key")

    with pytest.raises(ConfigError, match="locked cannot begin: no API key"):
        SafeTracker(Locked, TrackedRun(tmp_path, {}), Events())


class Counter(Tracker):
    """A tracker from outside the package, whose service goes away at the third update."""

    name = "counter"
    steps: list[int] = []  # noqa: RUF012

    def numbers(self, step: int, values: Any) -> None:
        if step == 3:
            raise ConnectionError("the service is away")
        self.steps.append(step)


@pytest.mark.usefixtures("clean")
def test_a_registered_tracker_and_one_that_fails(tmp_path: Path) -> None:
    heedful.register(Counter)
    (found,) = trackers_of(chosen("counter"))
    recorder = Recorder()
    sink = SafeTracker(found, TrackedRun(tmp_path, {}), Events([recorder]))
    for step in range(1, 5):
        Events([sink]).metric(step, {"loss": 1.0})
    sink.close()
    assert Counter.steps == [1, 2]
    assert recorder.texts(Warning) == ["counter gets no more metrics: the service is away"]
    assert trackers.TRACKERS.keys() == {"tensorboard", "wandb", "mlflow"}
