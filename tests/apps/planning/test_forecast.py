"""What a training is told after its first updates, and that it is from the recorded files."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.planning.forecast import Forecast, Pace, fitting_model, recorded_curves
from heedful.cli.main import main
from heedful.events import Events, Note, Recorder
from heedful.train.run_config import resolve_settings
from heedful.train.run_settings import RunSettings

ROOT = Path(__file__).parents[3]


def settings_of(files: tuple[str, str] = ("a.en", "a.de"), **changes: Any) -> RunSettings:
    data = {"train": [{"source": files[0], "target": files[1]}]}
    return resolve_settings("tiny", None, {"data": data, **changes})


def told(
    settings: RunSettings, seconds: float, updates: int = 25, tokens: float = 3700
) -> tuple[list[str], Recorder]:
    recorder = Recorder()
    forecast = Forecast(settings, Events([recorder]))
    for step in range(1, updates + 1):
        values = {"seconds": step * seconds, "tokens": tokens}
        Events([forecast]).metric(step, values)
    return recorder.texts(Note), recorder


def test_the_curves_are_those_of_the_recorded_files() -> None:
    for curve in recorded_curves().curves:
        with (ROOT / curve.source).open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["bleu"]]
        found = {int(row["step"]): float(row["bleu"]) for row in reversed(rows)}
        assert dict(zip(curve.steps, curve.bleu, strict=True)) == found


def test_a_small_budget() -> None:
    lines, _ = told(settings_of(max_minutes=5), 4.0)
    assert lines == [
        "An update takes 4.0 seconds: about 75 fit into max_minutes = 5, validations not counted",
        "Recorded trainings of tiny (Multi30k, 29,000 captions) had BLEU 3 to 8 after their first "
        "500 updates",
        "Translations were readable from about 1,000 such updates on: expect that here after 67 "
        "minutes or later, not within this budget",
        "To begin with a trained model, use --init en-de --schedule.warmup-steps 20 "
        "--schedule.peak-learning-rate 0.0005 in place of --preset tiny",
    ]


def test_a_budget_that_suffices_is_not_complained_of() -> None:
    lines, _ = told(settings_of(max_steps=2000), 0.5)
    assert lines[0].startswith("An update takes 500 ms: max_steps = 2,000 end after about 17 min")
    assert lines[1].endswith("had BLEU 33 to 35 after 2,000 updates")
    assert len(lines) == 2


def test_small_updates_count_for_less() -> None:
    lines, _ = told(settings_of(max_steps=2000), 0.5, tokens=370)
    assert "their first 500 updates of 3,774 target tokens" in lines[1]
    assert lines[2].startswith("Translations were readable")


def test_a_warm_start_whose_warm_up_outlasts_the_budget_is_told_a_shorter_one() -> None:
    lines, _ = told(settings_of(init="en-de", max_minutes=5), 4.0)
    assert len(lines) == 2
    assert lines[1].startswith("The learning rate rises until warmup_steps = 2,000, past this")
    # What it advises has nothing more to advise.
    flags = re.findall(r"--schedule\.(\S+) (\S+)", lines[1])
    schedule = {name.replace("-", "_"): json.loads(value) for name, value in flags}
    assert schedule.keys() == {"warmup_steps", "peak_learning_rate"}
    advised = settings_of(init="en-de", max_minutes=5, schedule=schedule)
    assert len(told(advised, 4.0)[0]) == 1


@pytest.mark.parametrize(
    "changes", [{"init": "en-de", "schedule": {"warmup_steps": 20}}, {"task": "causal_lm"}]
)
def test_what_no_curve_was_recorded_of_is_told_its_time_only(changes: dict[str, Any]) -> None:
    data = {"train": [{"file": "a.txt"}]} if "task" in changes else {}
    settings = resolve_settings(None, None, {"data": data or settings_of().data.plain(), **changes})
    lines, _ = told(settings, 4.0)
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (("a.en", "a.de.gz"), "en-de"),
        (("a.de", "a.en"), None),
        (("a.en", "a.fr"), None),
        (("missing.src", "missing.tgt"), None),
    ],
)
def test_a_trained_model_is_offered_where_languages_fit(
    files: tuple[str, str], name: str | None
) -> None:
    assert fitting_model(settings_of(files)) == name


@given(st.floats(0, 20_000), st.floats(0, 20_000))
def test_more_updates_never_foretell_less(first: float, second: float) -> None:
    recorded = recorded_curves()
    fewer, more = (recorded.range_at(each) for each in sorted((first, second)))
    assert fewer[0] <= fewer[1]
    assert fewer[0] <= more[0] <= 43
    assert fewer[1] <= more[1] <= 43


@given(
    st.integers(1, 1000),
    st.floats(0, 1e5),
    st.floats(1e-4, 1e3),
    st.floats(0.01, 1e4),
    st.integers(0, 10_000),
)
def test_updates_fit_into_their_budget(
    step: int, seconds: float, each: float, minutes: float, more: int
) -> None:
    pace, limit = Pace(step, seconds, each, 3000), step + more
    updates = pace.updates(limit, minutes)
    assert step <= updates <= limit
    # Half an update too long at most, by rounding, unless the time is over already.
    assert updates == step or pace.minutes(updates) * 60 <= 60 * minutes + 0.51 * each + 1e-3
    assert pace.updates(limit, None) == limit


@given(st.integers(1, 200), st.floats(0.001, 100))
def test_it_is_told_once(updates: int, seconds: float) -> None:
    lines, _ = told(settings_of(max_minutes=5), seconds, updates)
    assert sum("fit into" in line or "end after" in line for line in lines) <= 1
    assert lines or updates < 20


def test_the_command_foretells_and_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("".join(f"w{i % 7} x{i % 5}\n" for i in range(40)))
    files = [str(tmp_path / "a.en"), str(tmp_path / "a.de")]
    shape = "--model.width 16 --model.num-heads 2 --model.encoder-layers 1 --model.decoder-layers 1"
    words = ["train", str(tmp_path / "run"), "--train", *files, "--valid", *files]
    words += [*shape.split(), *["--max-steps", "10", "--tokenizer.vocabulary-size", "40"]]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert "max_steps = 10 end after about 1 minute, validations" in said
    assert "To begin with a trained model, use --init en-de --schedule.warmup-steps 20 " in said
    assert "warning: Step 10: " in said
