from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from heedful.events import Events, Note, Recorder
from heedful.train.checkpoint_contents import WholeTensors
from heedful.train.checkpoints import CheckpointStore, average_checkpoints
from heedful.train.model_weights import MovingAverage, load_weights, using, weights_of
from heedful.train.run import run_training
from heedful.train.run_settings import CheckpointSettings

from .conftest import MakeSettings


def test_moving_average_is_that_of_numpy() -> None:
    draw = np.random.default_rng(0)
    points = draw.normal(size=(40, 3)).astype(np.float32)
    average = MovingAverage({"w": torch.from_numpy(points[0])}, 0.8)
    expected = points[0].astype(np.float64)
    for step in range(1, 40):
        average.update({"w": torch.from_numpy(points[step])}, step)
        decay = min(0.8, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * points[step]
    np.testing.assert_allclose(average.tensors["w"].numpy(), expected, rtol=1e-5)
    assert (1 + 39) / (10 + 39) > 0.8  # both branches of the decay were used


def test_moving_average_does_not_alias_the_weights() -> None:
    weights = {"w": torch.zeros(2)}
    average = MovingAverage(weights, 0.5)
    weights["w"] += 1
    assert average.tensors["w"].tolist() == [0, 0]


def test_average_of_checkpoints_is_the_mean(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, CheckpointSettings(average_count=3))
    store.open()
    draw = np.random.default_rng(1)
    points = draw.normal(size=(5, 4)).astype(np.float32)
    for step, point in enumerate(points, start=1):
        tensors = {"w": torch.from_numpy(point), "count": torch.tensor([step])}
        store.save(step, WholeTensors(tensors, {}), {"regular": True, "score": None})
    average = average_checkpoints(store.window())
    np.testing.assert_allclose(average["w"].numpy(), points[2:].mean(0), rtol=1e-6)
    assert average["w"].dtype == torch.float32
    assert average["count"].tolist() == [5]


def test_best_window_is_chosen_by_score(tmp_path: Path) -> None:
    settings = CheckpointSettings(average="best", average_count=2)
    store = CheckpointStore(tmp_path, settings)
    store.open()
    for step, score in enumerate([3.0, 9.0, None, 8.0, 1.0, 2.0], start=1):
        store.save(step, WholeTensors({"w": torch.zeros(1)}, {}), {"regular": True, "score": score})
    assert [c.step for c in store.window()] == [2, 4]
    assert [c.resumable for c in store.window()] == [False, False]


def test_using_restores_the_weights_exactly() -> None:
    model = nn.Linear(2, 2)
    before = {name: t.clone() for name, t in weights_of(model).items()}

    def interrupted() -> None:
        with using(model, {n: t * 2 for n, t in before.items()}):
            assert torch.equal(model.weight, before["weight"] * 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(torch.equal(t, before[name]) for name, t in weights_of(model).items())


def test_tied_weights_are_stored_once() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    assert list(weights_of(model)) == ["a.weight"]
    load_weights(model, {"a.weight": torch.ones(2, 2)})
    assert model["b"].weight.sum() == 4


@pytest.mark.parametrize(("steps", "written"), [(3, 0), (5, 1)])
def test_a_run_that_is_too_short_says_why_nothing_is_averaged(
    tmp_path: Path, make_settings: MakeSettings, steps: int, written: int
) -> None:
    recorder = Recorder()
    run_training(tmp_path / "run", make_settings(max_steps=steps), events=Events([recorder]))
    (told,) = [note for note in recorder.texts(Note) if "average" in note]
    assert f"takes 2 checkpoints, and there are {written} (one every 4 updates" in told
    assert "checkpoint.every_steps" in told
