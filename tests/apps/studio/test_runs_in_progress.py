"""Remaining time, and runs that have begun, ended or stopped."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as generated
from hypothesis import strategies as st
from starlette.testclient import TestClient

from heedful.apps.studio.app import build_app
from heedful.apps.studio.pages.runs_page import seconds_left
from heedful.apps.studio.run_log import RunLog, RunState
from heedful.apps.studio.workspace import Workspace, compared_runs
from heedful.errors import ModelError
from heedful.train.run_settings import RunSettings

from .conftest import write_run

CORPUS = {"data": {"train": [{"source": "a.en", "target": "a.de"}]}}


def left(step: int, seconds: float, epoch: float, **limits: Any) -> float | None:
    state = RunState(step=step, training={"seconds": seconds, "epoch": epoch})
    return seconds_left(state, RunSettings.parse({**CORPUS, **limits}))


def test_two_minutes_are_not_156_hours() -> None:
    found = left(20, 80.0, 0.1, max_steps=100_000, max_minutes=2)
    assert found == 40.0


@generated(
    st.integers(1, 500),
    st.floats(1, 1e4),
    st.floats(0.01, 3),
    st.floats(0.1, 600),
    st.integers(1, 9),
)
def test_the_first_limit_ends_a_run(
    step: int, seconds: float, epoch: float, minutes: float, epochs: int
) -> None:
    limits: list[dict[str, Any]] = [{}, {"max_minutes": minutes}, {"max_epochs": epochs}]
    alone = [left(step, seconds, epoch, max_steps=500, **each) for each in limits]
    together = left(step, seconds, epoch, max_steps=500, **limits[1], **limits[2])
    assert together == min(each for each in alone if each is not None)


def state_of(run: Path) -> dict[str, Any]:
    client = TestClient(build_app(Workspace([run])), base_url="http://localhost")
    answer = client.post("/api/runs/states", json={"runs": [run.name]})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["runs"][0])


def test_a_run_may_be_begun_anew_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is emptied after its state was read, and before its curves are."""
    run = write_run(tmp_path / "run", 0.001, 40)
    assert state_of(run)["best"] is not None
    read = RunLog.state

    def emptied(log: RunLog) -> RunState:
        found = read(log)
        (run / "metrics.jsonl").write_text("", encoding="utf-8")
        return found

    monkeypatch.setattr(RunLog, "state", emptied)
    assert state_of(run)["best"] is None


def test_finished_and_dead_runs_differ(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0.002, 20)
    assert state_of(run)["training"]
    long_ago = time.time() - 4000
    os.utime(run / "metrics.jsonl", (long_ago, long_ago))
    dead = state_of(run)
    assert not dead["training"]
    assert dead["done"] is None
    assert dead["quiet"] > 3000
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(
            json.dumps({"step": 20, "event": "summary", "reason": "max_steps reached"}) + "\n"
        )
    assert state_of(run)["done"] == "max_steps reached"


@pytest.mark.parametrize("names", [[".lock"], [".lock", "tokenizer"]])
def test_a_run_is_opened_from_its_first_second(tmp_path: Path, names: list[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in names:
        (run / name).mkdir()
    found = state_of(run)
    assert (found["step"], found["training"], found["done"]) == (0, False, None)
    (run / "notes.txt").write_text("no run", encoding="utf-8")
    with pytest.raises(ModelError):
        Workspace([run])


def test_it_goes_on_once_the_run_has_settings(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / ".lock").mkdir(parents=True)
    client = TestClient(build_app(Workspace([run])), base_url="http://localhost")
    asked = {"runs": ["run"]}
    assert client.post("/api/runs/compare", json=asked).json()["scores"] == []
    (run / ".lock").rmdir()
    run.rmdir()
    write_run(run, 0.002, 20)
    found = client.post("/api/runs/states", json=asked).json()["runs"][0]
    assert (found["step"], found["training"]) == (20, True)


def test_own_runs_come_alone(
    visit_at: Callable[[str], Any], serve: Callable[[Sequence[Path]], str], given: Any
) -> None:
    from heedful.pretrained.catalogue import models_at_hand

    hand = models_at_hand()["en-de"].path
    page = visit_at(serve([given.run, hand])).open("runs")
    boxes = page.locator("input[type=checkbox][value='run'], input[type=checkbox][value='en-de']")
    assert [each.is_checked() for each in boxes.all()] == [True, False]


def test_runs_that_are_there_to_be_compared(
    visit_at: Callable[[str], Any], serve: Callable[[Sequence[Path]], str]
) -> None:
    """Six runs of one model: a colour for each learning rate, and one dashed of two widths."""
    from heedful.pretrained.catalogue import models_at_hand

    visit = visit_at(serve([models_at_hand()["digits"].path, *compared_runs()]))
    page = visit.open("")
    assert "rate-" not in page.locator(".places").inner_text()  # they have no models
    page = visit.open("runs")
    titles = page.locator(".multiples h3").all_inner_texts()
    assert titles == ["Loss", "BLEU", "Learning rate", "Gradient norm"]
    charts = page.locator(".multiples figure")
    for chart in charts.all():  # on texts held back, or where there is no such figure in training
        assert chart.locator("path.line").count() == 6
        assert chart.locator("path.dashed").count() == 3
    dashes = page.locator(".chart-row .legend li")
    assert [each.strip() for each in dashes.all_inner_texts()] == ["width 32", "width 64"]
    assert dashes.locator(".dashed").count() == 1
    runs = {path.name: RunLog(path).curve("loss", "validation")[1] for path in compared_runs()}
    means = {
        rate: float(np.mean([loss[-1] for name, loss in runs.items() if f"-{rate}-" in name]))
        for rate in ("0.0002", "0.004", "0.08")
    }
    verdicts = {"0.0002": "too low", "0.004": "best", "0.08": "too high"}
    ends = page.locator(".multiples .end").all_text_contents()
    assert sorted(ends) == sorted(2 * [*verdicts.values()])  # at the line of each run
    read = page.locator(".multiples .at").all_text_contents()
    assert re.fullmatch(r"step \d+", read[0])  # the line at which all are read
    assert not any(read[1:])
    told = page.locator(".sentence").first.inner_text()
    assert told == (
        "Learning rate 0.004 learns best: its loss on texts held back ends at "
        f"{means['0.004']:.3g}. 0.08 is too high: {means['0.08']:.3g}, "
        f"0.0002 is too low: {means['0.0002']:.3g} (means of 2 runs)."
    )
    names = page.get_by_label("State of the runs").first.locator("tbody th").all_inner_texts()
    assert [name for name in names if name != "digits"] == sorted(
        runs, key=lambda name: min(runs[name])
    )
    assert not page.get_by_text("Texts of the models").is_visible()
    # The ends are far apart, so the axis is logarithmic: 0.5 and 1 are as far apart as 1 and 2.
    marks = charts.first.locator(".tick").all_text_contents()
    assert {"0.2", "1", "5"} <= set(marks)
    rates = charts.nth(2).locator(".tick").all_text_contents()  # whose peaks are as far apart
    assert {"0.01", "10⁻⁶"} <= set(rates)
    check_values(page, runs)
    headings = page.get_by_label("State of the runs").first.locator("thead th")
    assert "tokens a step" not in headings.all_inner_texts()  # all have as many
    assert page.get_by_text("In all: tokens a step 512").count() == 1
    charts.first.locator("svg[role=img]").focus()
    page.keyboard.press("End")
    read = charts.first.locator(".readout span").all_inner_texts()
    values = [float(each.rsplit(" ", 1)[1]) for each in read]
    assert len(values) == 6  # of each run
    assert values == sorted(values, reverse=True)
    check_lifted(page)
    page.get_by_label("A colour for each").select_option("width")
    loss = "document.querySelector('.multiples figure').querySelectorAll"
    visit.until(f"{loss}('path.line').length === 8")  # with two means, as each has three runs
    page.get_by_label("Curves on").select_option("both")
    page.get_by_label("A colour for each").select_option("")
    visit.until(f"{loss}('path.line.dashed').length === 6")


def check_values(page: Any, runs: dict[str, Any]) -> None:
    """The table below the charts has the loss of each run at the step of all cursors."""
    assert page.locator(".multiples .cursor[visibility=visible]").count() == 4
    rows = [row.split("\t") for row in page.locator(".line-values tbody tr").all_inner_texts()]
    step = 220
    assert page.locator(".line-values caption").inner_text().startswith(f"At step {step}:")
    losses = {name: loss[step // 20 - 1] for name, loss in runs.items()}
    assert {row[0]: row[1] for row in rows} == {
        ", ".join(name.removeprefix("rate-").split("-width-")): f"{loss:.3g}"
        for name, loss in losses.items()
    }


def check_lifted(page: Any) -> None:
    """A row of the table, and a pointer near a line, lift the line out and name it."""
    first = page.locator(".multiples figure").first
    lifted, name = first.locator("path.lifted"), first.locator(".tick.lifted")
    page.get_by_label("State of the runs").first.locator("tbody tr").nth(1).hover()
    assert lifted.count() == 1
    assert name.text_content() == "learning rate 0.004, width 32"
    assert page.locator(".line-values tr.lifted").inner_text().startswith("0.004, 32")
    first.scroll_into_view_if_needed()
    end = first.locator(".end", has_text="best").first.bounding_box()  # of the lowest curve
    page.mouse.move(end["x"] + 10, end["y"] + 6)
    page.wait_for_function(
        "document.querySelector('.multiples path.lifted')?.classList.contains('dashed') === false"
    )
    assert name.text_content() == "learning rate 0.004, width 64"
    page.mouse.move(5, 5)
    page.wait_for_function("!document.querySelector('.multiples path.lifted')")
    assert name.get_attribute("visibility") == "hidden"


def test_without_own_runs_a_translator_opens_with_what_it_wrote(
    visit_at: Callable[[str], Any], serve: Callable[[Sequence[Path]], str]
) -> None:
    from heedful.pretrained.catalogue import models_at_hand

    hand = models_at_hand()
    page = visit_at(serve([hand[name].path for name in ("bach-chorales", "en-de")])).open("runs")
    page.wait_for_selector(".history [data-run=en-de]")
    states = page.get_by_label("State of the runs").inner_text()
    assert "complete, fine-tuned" in states
    page.get_by_role("heading", name="Worst translations").wait_for()
    assert page.get_by_text("validation does not").is_visible()
    page.get_by_text("Which runs").click()
    page.get_by_label("en-de", exact=True).uncheck()
    page.get_by_role("heading", name="Worst translations").wait_for(state="hidden")
