"""The record of a run, read while it is written."""

from __future__ import annotations

import json
import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from heedful.pretrained.catalogue import models_at_hand
from heedful.studio.workspace import Place, RunLog, thin_curve


def append(path: Path, text: str) -> None:
    with (path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(text)


def steps(log: RunLog) -> list[int]:
    return [event["step"] for event in log.events()]


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    assert steps(log) == []
    append(tmp_path, '{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    assert steps(log) == [1]
    append(tmp_path, 'ss": 2.0}\n')
    assert log.points("loss") == [(1, 2.5), (2, 2.0)]


def test_what_is_no_event_is_passed_over(tmp_path: Path) -> None:
    append(
        tmp_path, '{"step": 1, "loss": "nan"}\nnonsense\n[]\n{"loss": 3}\n{"step": 4, "loss": 1}\n'
    )
    log = RunLog(tmp_path)
    assert steps(log) == [1, 4]
    assert log.points("loss") == [(4, 1.0)]


def test_validation_stands_apart(tmp_path: Path) -> None:
    append(tmp_path, '{"step": 1, "loss": 2}\n{"step": 1, "event": "validation", "bleu": 9}\n')
    log = RunLog(tmp_path)
    assert log.points("loss") == [(1, 2.0)]
    assert log.points("bleu", "validation") == [(1, 9.0)]
    assert log.figures() == {"train": ["loss"], "validation": ["bleu"]}


def test_a_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    """As when a run is resumed from before its last line."""
    append(tmp_path, "".join(json.dumps({"step": i, "loss": i}) + "\n" for i in range(5)))
    log = RunLog(tmp_path)
    assert steps(log) == [0, 1, 2, 3, 4]
    fresh = tmp_path / "partial"
    fresh.write_text("".join(json.dumps({"step": i, "loss": 9}) + "\n" for i in range(7)))
    fresh.replace(tmp_path / "metrics.jsonl")
    assert log.points("loss") == [(i, 9.0) for i in range(7)]
    (tmp_path / "metrics.jsonl").unlink()
    assert steps(log) == []


@given(st.integers(0, 400), st.integers(10, 100), st.integers(0, 1000))
def test_thinned_curves_keep_their_shape(count: int, most: int, seed: int) -> None:
    source = random.Random(seed)
    values = [source.uniform(-1, 1) for _ in range(count)]
    points = list(enumerate(values))
    kept = thin_curve(points, most)
    assert kept == sorted(set(kept) & set(points))
    assert len(kept) <= most + 3
    assert kept[:1] + kept[-1:] == points[:1] + points[-1:]
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
    assert log.points("loss", axis="seconds") == [(0.5, 3.0), (1.5, 2.0), (1.5, 1.0)]
    assert log.points("bleu", "validation", axis="total_tokens") == [(180, 7.0)]
    assert log.points("bleu", "validation") == [(2, 7.0)]


def test_models_at_hand_show_how_they_were_trained() -> None:
    """Their figures come with them, without paths of the machine they were made on."""
    for model in models_at_hand().values():
        place = Place(model.name, model.path)
        assert place.log is not None
        assert len(place.log.points("loss")) > 50
        assert len(place.log.points("loss", "validation")) > 1
        assert '"/' not in (model.path / "config.toml").read_text(encoding="utf-8")
        if model.card().task != "images":
            assert place.plain()["examples"][0]["text"] == model.card().examples[0].text
            assert len(place.sentences()) >= 10
