"""Page "Runs": figures that share pointer and stretch, comparison, texts over time, live."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics import CHRF
from starlette.testclient import TestClient

import heedful
from heedful.apps.studio.app import build_app
from heedful.apps.studio.workspace import Workspace

from .conftest import write_run


def add(run: Path, *lines: dict[str, Any]) -> None:
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def samples(step: int, cat: str, dog: str) -> dict[str, Any]:
    said = [("the cat sat", "die Katze saß", cat), ("a dog", "ein Hund", dog)]
    names = ("source", "reference", "text")
    return {
        "step": step,
        "event": "samples",
        "samples": [dict(zip(names, each, strict=True)) for each in said],
    }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs; one has sample translations, and both have times and tokens."""
    root = tmp_path_factory.mktemp("pair")
    runs = [write_run(root / "first", 0.002, 60), write_run(root / "second", 0.001, 40)]
    for run, pace in zip(runs, (2.0, 3.0), strict=True):
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        events = [json.loads(line) for line in lines]
        for event in events:
            if "event" not in event:
                event |= {"seconds": pace * event["step"], "total_tokens": 100 * event["step"]}
        (run / "metrics.jsonl").write_text("", encoding="utf-8")
        add(run, *events)
    add(runs[0], samples(20, "Katze", "Hund"), samples(40, "die Katze", "ein Hund"))
    worst = {"source": "a dog", "reference": "ein Hund", "text": "Hund"}
    add(runs[0], {**samples(60, "die Katze saß", "ein Hund"), "worst": [worst]})
    add(runs[1], {"step": 40, "event": "summary", "reason": "max_steps = 40 reached"})
    return runs


@pytest.fixture
def runs_page(
    pair: list[Path], serve: Callable[[Sequence[Path]], str], visit_at: Callable[[str], Any]
) -> Any:
    return visit_at(serve(pair))


@pytest.fixture(scope="module")
def client(pair: list[Path]) -> TestClient:
    return TestClient(build_app(Workspace(pair)), base_url="http://localhost")


def ask(client: TestClient, name: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/runs/{name}", json={"runs": ["first", "second"], **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


# The numbers


def test_runs_are_compared_by_the_score_that_decides(client: TestClient) -> None:
    """In the runs of these tests the BLEU of a validation is half its step."""
    found = ask(client, "compare")
    assert (found["score"], found["target"], found["lower_is_better"]) == ("bleu", 20.0, False)
    first, second = found["runs"]
    assert (first["best"], first["best_step"], first["difference"]) == (30.0, 60, 0)
    assert (second["best"], second["best_step"], second["difference"]) == (20.0, 40, -10)
    assert first["reached"] == {"step": 40, "seconds": 80, "total_tokens": 4000}
    assert second["reached"] == {"step": 40, "seconds": 120, "total_tokens": 4000}


def test_a_score_of_which_less_is_better(client: TestClient) -> None:
    found = ask(client, "compare", score="loss", target=0.2)  # 6 / step
    assert found["lower_is_better"] is True
    assert [run["best"] for run in found["runs"]] == [6 / 60, 6 / 40]
    assert [run["reached"]["step"] for run in found["runs"]] == [40, 40]
    nobody = ask(client, "compare", score="loss", target=0.01)
    assert [run["reached"] for run in nobody["runs"]] == [None, None]
    assert ask(client, "compare", score="nonsense")["score"] == "bleu"
    refused = client.post("/api/runs/compare", json={"runs": ["first"], "target": "much"})
    assert refused.status_code == 400


def test_a_stretch_has_the_points_in_it(client: TestClient) -> None:
    found = ask(client, "curves", figures=["loss", "bleu"], low=30, high=32.5, axis="step")
    first = found["runs"][0]
    assert first["span"] == [1, 60]
    assert [x for x, _ in first["figures"]["loss"]["train"]] == [29, 30, 31, 32, 33]
    assert first["figures"]["bleu"]["validation"] == [[20, 10], [40, 20]]
    assert first["figures"]["loss"]["smoothed"] == []
    smooth = ask(client, "curves", figures=["loss", "seconds"], smooth=0.9)["runs"][0]["figures"]
    assert smooth["loss"]["smoothed"]
    assert smooth["seconds"]["smoothed"] == []  # without noise
    times = ask(client, "curves", axis="seconds")["runs"][1]
    assert times["span"] == [3, 120]


def test_what_is_in_training_is_said(client: TestClient) -> None:
    first, second = ask(client, "states")["runs"]
    assert (first["training"], first["done"]) == (True, None)
    assert first["left"] == pytest.approx(80)  # 40 steps more, at 2 seconds each
    assert (second["training"], second["done"]) == (False, "max_steps = 40 reached")


def test_the_worst_translations_of_the_newest_validation(client: TestClient) -> None:
    (found,) = ask(client, "worst")["runs"]
    assert (found["name"], found["step"]) == ("first", 60)
    (text,) = found["texts"]
    assert (text["source"], text["text"]) == ("a dog", "Hund")
    assert text["chrf"] == pytest.approx(CHRF().corpus_score(["Hund"], [["ein Hund"]]).score)


def test_a_long_record_of_several_runs_is_answered_soon(tmp_path: Path) -> None:
    """Four runs of 25,000 lines with four figures; a look in between reads only what is new."""
    names = [f"run{i}" for i in range(4)]
    for name in names:
        run = write_run(tmp_path / name, 0.001, 1)
        lines = [
            {"step": i, "loss": 1 / i, "lr": 0.1, "tokens_per_second": 9.0, "seconds": i}
            for i in range(2, 25_000)
        ]
        add(run, *lines)
    long = TestClient(
        build_app(Workspace([tmp_path / n for n in names])), base_url="http://localhost"
    )
    body = {"runs": names, "figures": ["loss", "lr", "tokens_per_second"], "smooth": 0.9}
    long.post("/api/runs/states", json={"runs": names})
    begin = time.process_time()
    answer = long.post("/api/runs/curves", json=body)
    assert time.process_time() - begin < 1.5
    assert len(answer.content) < 1_000_000
    begin = time.process_time()
    long.post("/api/runs/states", json={"runs": names})
    assert time.process_time() - begin < 0.5


# The page


def charts(page: Any) -> Any:
    return page.locator(".multiples svg[role=img]")


def test_figures_share_pointer_and_stretch(runs_page: Any, axe: str) -> None:
    page = runs_page.open("runs?smooth=0")
    page.get_by_text("Figures and scales").click()
    page.get_by_label("tokens per second", exact=True).check()
    runs_page.until("document.querySelectorAll('.multiples figure').length === 4")
    runs_page.idle()
    titles = page.locator(".multiples h3").all_inner_texts()
    assert titles == ["Loss", "BLEU", "Learning rate", "Tokens per second"]
    # The first figure is the large one, the next two stand beside it.
    large, *small = [each.bounding_box() for each in charts(page).all()[:3]]
    assert all(large["width"] > 1.8 * each["width"] for each in small)
    assert large["height"] > 400
    assert all(each["x"] > large["x"] + large["width"] for each in small)
    bottom = small[1]["y"] + small[1]["height"]
    assert bottom == pytest.approx(large["y"] + large["height"], abs=60)
    # One table has the values of all lines, in each figure, instead of a legend.
    rows = page.locator(".line-values tbody th").all_inner_texts()
    names = ("first", "second")
    assert rows == [f"{name}, {kind}" for name in names for kind in ("training", "validation")]
    assert page.locator(".line-values caption").inner_text() == "At the end of each run"

    loss = charts(page).first
    loss.focus()
    page.keyboard.press("End")  # of the longest curve: step 60, where the second has ended
    readouts = page.locator(".multiples .readout").all_inner_texts()
    assert readouts[0] == "step 60: first, validation 0.1, first 0.08333"
    assert readouts[1] == "step 60: first, validation 30"
    assert page.locator(".line-values caption").inner_text().startswith("At step 60:")
    values = page.locator(".line-values tbody tr").all_inner_texts()
    assert [row.split("\t")[1:3] for row in values] == [
        ["0.0833", "–"],
        ["0.1", "30"],
        ["–", "–"],
        ["–", "–"],
    ]
    page.keyboard.press("Home")
    assert page.locator(".multiples .cursor[visibility=visible]").count() == 4

    box = loss.bounding_box()
    left, right = box["x"] + box["width"] * 0.4, box["x"] + box["width"] * 0.7
    page.mouse.move(left, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(right, box["y"] + 70, steps=4)
    page.mouse.up()
    runs_page.until("location.search.includes('from=')")
    runs_page.idle()
    low, high = stretch(page)
    assert 15 < low < high < 50

    # Every chart shows that stretch, and the wheel and the keys change it for all.
    ends = [[float(t) for t in ticks(page, i)] for i in range(4)]
    assert all(low - 1 <= min(each) and max(each) <= high + 1 for each in ends)
    page.mouse.wheel(0, -300)
    runs_page.until(f"new URLSearchParams(location.search).get('from') !== '{low}'")
    nearer = stretch(page)
    assert low < nearer[0] < nearer[1] < high
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("-")
    runs_page.idle()
    page.mouse.dblclick((left + right) / 2, box["y"] + 60)
    runs_page.until("!location.search.includes('from=')")
    page.get_by_role("button", name="Zoom in").click()
    runs_page.until("location.search.includes('from=')")
    page.get_by_role("button", name="Whole curves").click()
    runs_page.until("!location.search.includes('from=')")

    page.get_by_label("tokens per second", exact=True).uncheck()
    runs_page.until("document.querySelectorAll('.multiples figure').length === 3")
    runs_page.check_everyone_can_use_it(axe)


def stretch(page: Any) -> tuple[float, float]:
    found = page.evaluate(
        "['from', 'to'].map((n) => Number(new URLSearchParams(location.search).get(n)))"
    )
    return found[0], found[1]


def ticks(page: Any, chart: int) -> list[str]:
    axis = charts(page).nth(chart).locator("g[text-anchor=middle] text.tick")
    return list(axis.all_text_contents())


def test_translations_are_followed_over_time(runs_page: Any, pair: list[Path]) -> None:
    page = runs_page.open("runs")
    page.wait_for_selector(".history")
    assert page.locator(".history dd").nth(1).inner_text() == "die Katze saß"
    own = page.locator(".history [data-run=first]")
    assert own.inner_text().startswith("die Katze saß")
    assert own.locator("mark").all_inner_texts() == ["saß"]
    slider = page.get_by_label("Validation at step")
    slider.focus()
    slider.press("ArrowLeft")
    runs_page.until("location.search.includes('at=40')")
    assert own.inner_text().startswith("die Katze")
    assert own.locator("mark").all_inner_texts() == ["die"]
    page.get_by_label("Sentence of the validation data").select_option(label="a dog")
    rows = page.locator("[aria-label^='Translations at every'] tbody tr")
    page.wait_for_function(
        "() => document.querySelector('.history').innerText.includes('ein Hund')"
    )
    page.locator("summary", has_text="At every validation").click()
    assert rows.nth(2).inner_text().endswith("as before")
    assert "ein Hund\tHund" in page.get_by_label("first, step 60").inner_text()

    # A validation that comes while one looks.
    add(pair[0], samples(61, "die Katze sitzt", "der Hund"))
    runs_page.until(
        "document.querySelectorAll(\"[aria-label^='Translations at'] tr\").length === 5"
    )


@pytest.fixture
def growing(given: Any) -> Iterator[Path]:
    """The run that all tests look at; what is added to it is gone afterwards."""
    record = given.run / "metrics.jsonl"
    before = record.read_bytes()
    yield given.run
    record.write_bytes(before)


def test_runs(visit: Any, given: Any, growing: Path) -> None:
    page = visit.open("runs")
    rows = page.locator("[aria-label='State of the runs'] tbody tr").all_inner_texts()
    assert "60" in rows[0]
    # Of several runs the smoothed lines alone, and in words where each ends.
    lines = page.locator(".multiples figure").first.locator("path.line")
    assert lines.count() == 4
    named = page.locator(".line-values tbody th").all_inner_texts()
    assert {"run, training", "other, training"} <= set(named)
    assert page.locator(".sentence").inner_text().startswith("Loss at the end")
    assert "30" in rows[0].split()
    headings = page.locator("[aria-label='State of the runs'] thead th").all_inner_texts()
    assert {"newest loss", "best validation BLEU", "learning rate"} <= set(headings)
    differing = page.locator("[aria-label='Settings in which they differ'] tbody")
    page.locator("summary", has_text="in which they differ").click()
    assert "schedule.peak_learning_rate" in differing.inner_text()
    assert not page.get_by_role("heading", name="Sample translations").is_visible()

    page.get_by_label("Lines to translate").fill("the cat sat\na dog")
    page.wait_for_selector('[aria-label="Texts of each run\'s best model"]')
    written = page.locator("[aria-label^='Texts of each'] .sample").all_inner_texts()
    texts = ["the cat sat", "a dog"]
    expected = [heedful.load(path).translate(texts) for path in (given.run, given.other)]
    assert written == [str(each[line]).strip() for line in (0, 1) for each in expected]

    # A line that comes while one reads: the chart keeps focus and pointer.
    charts(page).first.focus()
    page.keyboard.press("Home")
    add(growing, {"step": 61, "loss": 0.01, "lr": 0.0, "tokens_per_second": 1.0})
    visit.until(
        "document.querySelector(\"[aria-label='State of the runs'] tbody\")"
        ".innerText.includes('61')"
    )
    visit.idle()
    assert "run is at step 61 of 100" in page.locator(".training").inner_text()
    assert page.evaluate("document.activeElement.getAttribute('role')") == "img"
    assert "step 1:" in page.locator(".multiples .readout").first.inner_text()
    page.get_by_text("Which runs").click()
    page.get_by_label("other", exact=True).uncheck()
    visit.until("document.querySelectorAll('.line-values tbody tr').length === 2")
    named = page.locator(".line-values tbody th").all_inner_texts()
    assert named == ["run, training", "run, validation"]
    assert lines.count() == 3  # the losses, their mean, and validation
    # A heading puts all runs in order, and a tick shows the curves of one.
    state = page.get_by_label("State of the runs")
    names = state.locator("tbody th")
    rate = state.get_by_role("button", name="learning rate")
    for order, direction in ((["other", "run"], "ascending"), (["run", "other"], "descending")):
        rate.click()
        assert names.all_inner_texts() == order
        assert state.locator(f"[aria-sort={direction}]").inner_text() == "learning rate"
        assert rate.evaluate("(button) => button === document.activeElement")
    state.get_by_label("other").check()
    visit.until("document.querySelectorAll('.line-values tbody tr').length === 4")
    assert page.get_by_label("other", exact=True).is_checked()
    assert not page.get_by_label("Search names and settings").is_visible()  # among two


def test_runs_are_searched_by_names_and_settings(visit: Any, given: Any) -> None:
    page = visit.open("runs?find=OTH")
    names = page.locator("[aria-label='State of the runs'] tbody th")
    assert names.all_inner_texts() == ["other"]
    field = page.get_by_label("Search names and settings")
    field.fill("o, learning rate 77")
    page.get_by_text("No run has “o, learning rate 77” in its name or its settings.").wait_for()
    assert page.get_by_role("button", name="Curves of these 0").is_disabled()
    field.fill("run")
    visit.until("document.querySelector(\"[aria-label='State of the runs'] tbody\") !== null")
    assert names.all_inner_texts() == ["run"]
    page.get_by_role("button", name="Curves of this one").click()
    visit.until("location.search.includes('runs=run') && !location.search.includes('other')")
