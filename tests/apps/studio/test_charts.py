"""Charts by D3: their frame, names that cover nothing, reading by keyboard, and what is loaded."""

from __future__ import annotations

import math
from typing import Any

import pytest

from heedful.apps.studio.app import STATIC
from heedful.apps.studio.pages import PAGES
from heedful.apps.studio.pages.results_page import RESULTS_FILE
from heedful.config import read_toml

from .test_studio_at_once import imported

DRAWN = """async (charts) => {
  const { lineChart } = await import("/static/draw/lines.js");
  const { barChart } = await import("/static/draw/bars.js");
  const root = document.querySelector(".body");
  root.replaceChildren();
  const host = document.createElement("figure");
  host.id = "host";
  root.append(host);
  for (const chart of charts) (chart.values ? barChart : lineChart)(host, chart);
}"""
DRAWN_ANEW = """async (chart) => {
  const { lineChart } = await import("/static/draw/lines.js");
  lineChart(document.getElementById("host"), chart);
}"""
WHERE = """() => [...document.querySelectorAll("#host svg[role=img] path.line")].map((path) => {
  const at = (share) => path.getPointAtLength(path.getTotalLength() * share);
  return [at(0).x, at(0).y, at(1).x, at(1).y];
})"""
OVERLAPS = """(selector) => {
  const boxes = [...document.querySelectorAll(selector)].filter((e) => e.textContent.trim())
    .map((e) => e.getBoundingClientRect());
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2));
}"""


def line(points: list[tuple[float, float]], **more: Any) -> dict[str, Any]:
    axes = {"x": {"label": "step"}, "y": {"label": "loss"}} | more
    return {"series": [{"name": "one", "points": points}], "describe": "A line.", **axes}


def test_only_pages_with_charts_load_the_library() -> None:
    loading = {page.name for page in PAGES if any_vendored(f"pages/{page.name}.js")}
    assert {"runs", "results", "schedule", "scale"} <= loading
    assert not {"tour", "attention", "masks", "image", "translate"} & loading
    assert not any_vendored("shell.js")
    brushes = {p.name for p in PAGES if any_vendored(f"pages/{p.name}.js", "d3-brush")}
    assert brushes == {"runs"}


def any_vendored(script: str, name: str = "") -> bool:
    return any(file.startswith(f"vendor/d3/{name}") for file in imported(script))


def test_places_are_those_of_the_numbers(visit: Any) -> None:
    """On even and logarithmic axes the middle of a line is where the scale says."""
    page = visit.open("scale")
    points = [(1.0, 1.0), (10.0, 10.0), (1000.0, 1000.0)]
    page.evaluate(DRAWN, [line(points)])
    ((x0, y0, x1, y1),) = page.evaluate(WHERE)
    page.evaluate(DRAWN, [line(points, x={"label": "step", "log": True, "domain": [1, 1e6]})])
    ((log_x0, _, log_x1, _),) = page.evaluate(WHERE)
    assert log_x0 == pytest.approx(x0, abs=1)
    assert (log_x1 - log_x0) / (x1 - x0) == pytest.approx(math.log(1e3) / math.log(1e6), abs=0.01)
    assert y1 < y0
    ticks = page.locator("#host g[text-anchor=middle] text.tick").all_text_contents()
    assert ticks == ["1", "10", "100", "1,000", "10k", "100k", "1M"]


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [(0, 7e-4, False), (1e-8, 1e-3, True), (3, 3, False), (-2e6, 5e6, False), (0.9, 1.1, True)],
)
def test_ticks_and_titles_stand_apart(visit: Any, low: float, high: float, log: bool) -> None:
    page = visit.open("scale")
    axes = {"x": {"label": "step", "log": log}, "y": {"label": "rate", "log": log}}
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate(DRAWN, [line([(low, low), (high, high)], **axes)])
        assert page.locator("#host text.tick").count() >= 4
        assert page.evaluate(OVERLAPS, "#host svg[role=img] text") == []


def test_a_chart_is_read_by_keyboard_and_keeps_its_place(visit: Any) -> None:
    page = visit.open("scale")
    page.evaluate(DRAWN, [line([(1, 5), (2, 4), (3, 2)])])
    page.locator("#host svg[role=img]").focus()
    for key, words in (
        ("ArrowRight", "step 1: one 5"),
        ("ArrowRight", "step 2: one 4"),
        ("End", "step 3: one 2"),
        ("ArrowLeft", "step 2: one 4"),
    ):
        page.keyboard.press(key)
        assert page.locator("#host .readout").inner_text() == words
    page.locator("#host summary").click()
    page.locator("#host svg[role=img]").focus()
    page.evaluate(DRAWN_ANEW, line([(1, 5), (2, 4.5), (3, 2), (4, 1)]))
    assert page.locator("#host .readout").inner_text() == "step 2: one 4.5"
    assert page.locator("#host tbody tr").count() == 4  # the open table has the new row
    assert page.evaluate("document.activeElement.getAttribute('role')") == "img"
    page.evaluate(DRAWN, [{"values": [0.25, 0.75], "describe": "Bars.", "label": "key"}])
    page.locator("#host svg[role=img]").focus()
    page.keyboard.press("End")
    assert page.locator("#host .readout").inner_text() == "key 2: 0.75"
    assert page.locator("#host .bar.read").count() == 1


@pytest.mark.parametrize("width", [1440, 820, 390])
@pytest.mark.parametrize("pair", ["en_de", "en_fr"])
def test_names_of_systems_cover_nothing(visit: Any, width: int, pair: str) -> None:
    page = visit.page
    page.set_viewport_size({"width": width, "height": 900})
    visit.open(f"results?pair={pair}")
    assert page.evaluate(OVERLAPS, ".spot-name, .spot") == []
    shown = page.locator(".spot-name").all_text_contents()
    assert {"Transformer, base", "Transformer, big"} <= set(shown)
    systems = [each for each in read_toml(RESULTS_FILE)["systems"] if f"flops_{pair}" in each]
    names = page.locator(".spot-name:not(.between, .of-zone)")
    assert names.count() == len(systems)  # none is left out
    if width < 500:  # the kinds stand in a legend, not below the names
        assert page.locator(".legend li").all_text_contents() == [
            "● Transformer", "● recurrent", "● convolution", "● mixture of experts", "○ ensemble",
        ]  # fmt: skip
    names = page.locator(".ranked-name")
    ends = names.evaluate_all(
        "(all) => all.map((e) => [e.getBBox().x, e.getBBox().width, e.ownerSVGElement.clientWidth])"
    )
    assert all(x >= -0.5 and x + w <= whole for x, w, whole in ends)


def test_dots_are_read_and_none_beats_the_transformers(visit: Any) -> None:
    """In 2017 no other system was both better and cheaper than one of the two Transformers."""
    page = visit.open("results")
    figure = page.locator("figure", has_text="Quality by cost")
    figure.locator("svg[role=img]").focus()
    page.keyboard.press("Home")  # the cheapest
    assert figure.locator(".readout").inner_text() == (
        "Transformer, base: BLEU 27.3, training cost, in trainings of the base model 1 "
        "(3.3·10¹⁸ operations)"
    )
    systems = [each for each in read_toml(RESULTS_FILE)["systems"] if "flops_en_de" in each]
    front = {
        each["name"]
        for each in systems
        if not any(
            other["flops_en_de"] < each["flops_en_de"] and other["en_de"] >= each["en_de"]
            for other in systems
        )
    }
    assert front == {"Transformer, base", "Transformer, big"}


def test_the_papers_costs_follow_from_its_hours() -> None:
    """Eight processors, 9.5e12 operations a second each, as the paper estimates."""
    own = [each for each in read_toml(RESULTS_FILE)["systems"] if each.get("own")]
    assert len(own) == 2
    for each in own:
        flops = each["hours"] * 3600 * 8 * 9.5e12
        assert flops == pytest.approx(each["flops_en_de"], rel=0.02)


def test_no_chart_needs_an_inline_style() -> None:
    """The policy of the pages forbids a style attribute that is set as text."""
    for file in [*(STATIC / "draw").glob("*.js"), *(STATIC / "pages").glob("*.js")]:
        text = file.read_text(encoding="utf-8")
        assert 'setAttribute("style"' not in text, file
        assert '.attr("style"' not in text, file
        assert ".html(" not in text, file
