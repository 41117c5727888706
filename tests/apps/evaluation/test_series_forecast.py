"""Forecasts by a model of series, in the units of the series."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from heedful.apps.evaluation.series_forecast import forecast
from heedful.cli.main import main
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


def test_generate_writes_quantiles_for_each_series(run: Path, tmp_path: Path) -> None:
    series, out = tmp_path / "sales.csv", tmp_path / "out.jsonl"
    series.write_text("shop,café\n" + "1,20\n2,30\n3,10\n" * 3)
    flags = ["-i", str(series), "-o", str(out), "--sampling", "--n-best", "20", "--seed", "3"]
    main(["generate", str(run), *flags])
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [line["series"].split("column ")[1] for line in lines] == ["shop", "café"]
    np.testing.assert_allclose(
        [line["0.5"] for line in lines], [[1, 2, 3], [20, 30, 10]], rtol=0.13
    )
    futures = forecast(run, [[1, 2, 3] * 3, [20, 30, 10] * 3], samples=20, seed=3)
    for line, drawn in zip(lines, futures, strict=True):
        for name in ("0.1", "0.5", "0.9"):
            np.testing.assert_allclose(line[name], np.quantile(drawn, float(name), axis=0))


def test_generate_names_the_column_that_is_too_short(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    series = tmp_path / "sales.csv"
    series.write_text("shop,café\n" + "1,20\n" * 3)
    assert main(["generate", str(run), "-i", str(series)]) == 2
    assert "column shop: The series has 3 values, and the model reads 7" in capsys.readouterr().err


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
