"""The record of a run, read while it is written, and what is drawn of it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.studio.run_log import RunLog, smooth_curve, stretch_of, thin_curve


def append(path: Path, text: str) -> None:
    with (path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(text)


def points(log: RunLog, *which: Any, **axis: Any) -> list[tuple[float, float]]:
    places, values = log.curve(*which, **axis)
    return list(zip(places.tolist(), values.tolist(), strict=True))


def steps(log: RunLog) -> list[float]:
    """Steps of the events of training, which all have a number."""
    return points(log, "step") and [step for step, _ in points(log, "step")]


def curve(values: list[float], places: list[float] | None = None) -> tuple[Any, Any]:
    return np.arange(len(values), dtype=float) if places is None else np.array(places), np.array(
        values, dtype=float
    )


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    assert steps(log) == []
    append(tmp_path, '{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    assert steps(log) == [1]
    append(tmp_path, 'ss": 2.0}\n')
    assert points(log, "loss") == [(1, 2.5), (2, 2.0)]


def test_what_is_no_event_is_passed_over(tmp_path: Path) -> None:
    append(
        tmp_path, '{"step": 1, "loss": "nan"}\nnonsense\n[]\n{"loss": 3}\n{"step": 4, "loss": 1}\n'
    )
    log = RunLog(tmp_path)
    assert steps(log) == [1, 4]
    assert points(log, "loss") == [(4, 1.0)]


def test_validation_stands_apart(tmp_path: Path) -> None:
    append(tmp_path, '{"step": 1, "loss": 2}\n{"step": 1, "event": "validation", "bleu": 9}\n')
    log = RunLog(tmp_path)
    assert points(log, "loss") == [(1, 2.0)]
    assert points(log, "bleu", "validation") == [(1, 9.0)]
    assert log.figures() == {"train": ["loss"], "validation": ["bleu"]}


def test_a_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    """As when a run is resumed from before its last line."""
    append(tmp_path, "".join(json.dumps({"step": i, "loss": i}) + "\n" for i in range(5)))
    log = RunLog(tmp_path)
    assert steps(log) == [0, 1, 2, 3, 4]
    fresh = tmp_path / "partial"
    fresh.write_text("".join(json.dumps({"step": i, "loss": 9}) + "\n" for i in range(7)))
    fresh.replace(tmp_path / "metrics.jsonl")
    assert points(log, "loss") == [(i, 9.0) for i in range(7)]
    (tmp_path / "metrics.jsonl").unlink()
    assert steps(log) == []


@given(st.integers(0, 400), st.integers(10, 100), st.integers(0, 1000))
def test_thinned_curves_keep_their_shape(count: int, most: int, seed: int) -> None:
    source = random.Random(seed)
    values = [source.uniform(-1, 1) for _ in range(count)]
    whole = list(enumerate(values))
    kept = thin_curve(curve(values), most)
    assert kept == sorted(set(kept) & set(whole))
    assert len(kept) <= most + 3
    assert kept[:1] + kept[-1:] == whole[:1] + whole[-1:]
    if values:
        found = [value for _, value in kept]
        assert (min(found), max(found)) == (min(values), max(values))


def test_points_stand_on_other_axes(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "loss": 3.0, "seconds": 0.5, "total_tokens": 100},
        {"step": 2, "loss": 2.0, "seconds": 1.5, "total_tokens": 180},
        {"step": 2, "event": "validation", "bleu": 7.0},
        {"step": 3, "loss": 1.0},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    log = RunLog(tmp_path)
    assert points(log, "loss", axis="seconds") == [(0.5, 3.0), (1.5, 2.0), (1.5, 1.0)]
    assert points(log, "bleu", "validation", axis="total_tokens") == [(180, 7.0)]
    assert points(log, "bleu", "validation") == [(2, 7.0)]


def test_early_points_stay_on_a_logarithmic_axis() -> None:
    """On an even axis the first of 250 stretches would swallow the first 400 steps."""
    places = list(range(1, 100_001))
    kept = thin_curve(curve([1.0 / p for p in places], [float(p) for p in places]), 400, log=True)
    for power in range(5):
        decade = [x for x, _ in kept if 10**power <= x < 10 ** (power + 1)]
        assert len(decade) >= min(9 * 10**power, 40)


@given(st.lists(st.floats(-5, 5), max_size=60), st.sampled_from([0.0, 0.3, 0.9, 0.999]), st.data())
def test_a_smoothed_point_is_the_weighted_mean_so_far(
    values: list[float], smooth: float, data: st.DataObject
) -> None:
    places, means = smooth_curve(curve(values), smooth)
    assert len(places) == len(values) == len(means)
    if values:
        i = data.draw(st.integers(0, len(values) - 1))
        weights = [smooth ** (i - j) for j in range(i + 1)]
        expected = sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights)
        assert abs(means[i] - expected) < 1e-9


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(-5, 60), st.integers(-5, 60))
def test_a_stretch_has_its_points_and_a_neighbour_on_each_side(
    given_places: list[int], low: int, high: int
) -> None:
    places = [float(place) for place in sorted(given_places)]
    part, _ = stretch_of(curve(places, places), low, high)
    before = [p for p in places if p < low][-1:]
    after = [p for p in places if p > high][:1]
    inside = [p for p in places if low <= p <= high]
    if low <= high:
        assert part.tolist() == before + inside + after
    assert stretch_of(curve(places, places), None, None)[0].tolist() == places


def test_a_run_is_live_while_its_lines_come(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    now = time.time()
    assert not log.state().is_training(now)
    append(tmp_path, '{"step": 1, "loss": 2, "seconds": 100}\n')
    written = log.state().written
    assert written is not None
    assert log.state().is_training(written + 60)
    assert not log.state().is_training(written + 3000)
    append(tmp_path, '{"step": 2, "loss": 2, "seconds": 1100}\n')  # slow: 1,000 seconds a line
    assert log.state().is_training(written + 3000)
    append(tmp_path, '{"step": 2, "event": "summary", "reason": "max_steps = 2 reached"}\n')
    assert not log.state().is_training(written)
    append(tmp_path, '{"step": 3, "loss": 1, "seconds": 1200}\n')  # more steps were asked for
    assert log.state().is_training(written)


def test_a_run_that_ended_is_told_from_one_that_trains(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    append(tmp_path, '{"step": 7, "loss": 2, "seconds": 100}\n')
    found = log.progress()
    assert (found["step"], found["ended"], found["active"]) == (7, False, True)
    append(tmp_path, '{"step": 7, "event": "summary", "reason": "max_steps = 7 reached"}\n')
    found = log.progress()
    assert (found["step"], found["ended"], found["active"]) == (7, True, False)


def test_samples_are_read_and_what_is_none_is_passed_over(tmp_path: Path) -> None:
    sample = {"source": "a", "reference": "b", "text": "c"}
    for samples in ([sample, {"source": "a"}, 3], "none", [sample]):
        line = {"step": 5, "event": "samples", "samples": samples}
        append(tmp_path, json.dumps(line) + "\n")
    log = RunLog(tmp_path)
    assert log.state().samples == [(5, [sample]), (5, [sample])]
    assert log.state().worst is None
    for step, worst in ((6, [sample, 3]), (7, "none")):
        line = {"step": step, "event": "samples", "samples": [sample], "worst": worst}
        append(tmp_path, json.dumps(line) + "\n")
    assert log.state().worst == (6, [sample])
    assert log.figures() == {"train": [], "validation": []}


def test_a_number_that_is_none_is_left_out(tmp_path: Path) -> None:
    """NaN is no JSON, though Python writes and reads it; a page could not be answered with it."""
    append(tmp_path, '{"step": 1, "loss": NaN}\n{"step": 2, "loss": 1.5, "done": true}\n')
    assert points(RunLog(tmp_path), "loss") == [(2, 1.5)]
    assert RunLog(tmp_path).figures()["train"] == ["loss"]


def test_a_long_record_is_drawn_quickly(tmp_path: Path) -> None:
    """100,000 lines: read once, then drawn in a fraction of that; in processor time."""
    lines = [
        {"step": i, "loss": 1 / i, "lr": 1e-3, "total_tokens": 50 * i, "seconds": i / 10}
        for i in range(1, 100_001)
    ]
    append(tmp_path, "".join(json.dumps(line) + "\n" for line in lines))
    log = RunLog(tmp_path)
    log.state()
    begin = time.process_time()
    for axis in ("step", "seconds", "total_tokens"):
        drawn = thin_curve(smooth_curve(log.curve("loss", axis=axis), 0.9), 400)
        assert len(drawn) <= 403
    assert time.process_time() - begin < 1.0
