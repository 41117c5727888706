"""Forecasts by a model of series, in the units of the series."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from heedful.apps.evaluation.series_forecast import forecast
from heedful.errors import DataError, ModelError

SETTINGS = {
    "model": {"width": 32, "decoder_layers": 1, "num_heads": 2, "feedforward": 64},
    "tokens": {"reader": "series", "bins": 32, "bin_limit": 2.0, "context": 7, "horizon": 3},
    "schedule": {"warmup_steps": 10, "peak_learning_rate": 0.01},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of series that go up and down, each in a unit of its own."""
    run = tmp_path_factory.mktemp("series") / "run"
    waves = [np.roll(np.tile([1.0, 2.0, 3.0], 5), phase) for phase in range(3)]
    series = [unit * wave for unit in (0.01, 1, 70) for wave in waves]
    heedful.train(series, run, task="tokens", settings=SETTINGS, max_steps=60, callbacks=[])
    return run


def test_futures_follow_the_past_in_its_units(run: Path) -> None:
    past = np.tile([2.0, 3.0, 1.0], 3)
    futures = forecast(run, [past, 1024 * past], samples=5, seed=3)
    assert futures.shape == (2, 5, 3)
    # A bin is 4 / 32 of the mean wide, which is 2; its middle is at most half of that away.
    np.testing.assert_allclose(np.median(futures[0], axis=0), [2, 3, 1], atol=0.125)
    np.testing.assert_allclose(np.median(futures[1], axis=0), [2048, 3072, 1024], atol=128)
    (again,) = forecast(heedful.load(run), [past], samples=5, seed=3)
    assert (again == futures[0]).all()


def test_the_guide_forecasts(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/beyond-text.md").read_text("utf-8")
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", guide, re.S) if "forecast" in c]
    monkeypatch.chdir(tmp_path)
    run.rename("sales")
    Path("sales.csv").write_text("shop,café\n" + "1,20\n2,30\n3,10\n" * 3)
    names: dict[str, Any] = {}
    try:
        exec(code, names)
    finally:
        Path("sales").rename(run)
    np.testing.assert_allclose(names["median"], [[1, 2, 3], [20, 30, 10]], rtol=0.13)
    assert (names["low"] <= names["high"]).all()


def test_a_past_that_does_not_fit_is_named(run: Path) -> None:
    with pytest.raises(DataError, match=r"series 2: The series has 5 values.* 7"):
        forecast(run, [range(1, 8), range(5)])
    with pytest.raises(DataError, match=r"series 1: The value 3 is missing"):
        forecast(run, [[1, 2, float("nan"), 4, 5, 6, 7]])
    with pytest.raises(ModelError, match="not trained on time series"):
        forecast("english", [range(6)])


def test_a_model_of_series_is_scored_on_series(run: Path) -> None:
    good, bad = [np.tile([1.0, 2.0, 3.0], 4)], [np.arange(12.0)]
    scores = [heedful.evaluate(run, each)["nats_per_value"] for each in (good, bad)]
    assert scores[0] < scores[1]
