"""Mistakes that pages made once."""

from __future__ import annotations

import math
import re
import shutil
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from heedful.apps.studio.app import build_app
from heedful.apps.studio.workspace import Workspace, WorkspaceDirectory
from heedful.nn.mask_text import parse_mask
from heedful.nn.positions import Positions


@pytest.fixture(scope="module")
def client(workspace: Workspace) -> TestClient:
    return TestClient(build_app(workspace), base_url="http://localhost")


def test_each_piece_keeps_its_own_probability_over_lines(client: TestClient) -> None:
    """Every line has an end of its own, which once shifted the pieces of the next line."""

    def pieces(text: str) -> list[dict[str, Any]]:
        asked = {"model": "learned", "text": text, "beam": 1, "n_best": 1}
        return client.post("/api/translate/text", json=asked).json()["translations"][0]["pieces"]

    one, other = pieces("the cat sat"), pieces("a dog ran")
    both = pieces("the cat sat\na dog ran")
    assert [each["piece"] for each in both] == [each["piece"] for each in [*one, *other]]
    for ours, theirs in zip(both, [*one, *other], strict=True):
        assert math.isclose(ours["score"], theirs["score"], abs_tol=2e-5)
    assert [each["piece"] for each in both].count(None) == 2


@pytest.mark.parametrize(
    "mask", ["causal & window(4) | prefix(2)", "causal", "window(3)", "prefix(3) | window(1)"]
)
def test_the_keys_of_the_last_query_are_those_it_sees(client: TestClient, mask: str) -> None:
    found = client.post("/api/masks/draw", json={"mask": mask, "length": 16}).json()
    places = torch.arange(16)[None]
    positions = Positions(places, places)
    row = positions.visible(parse_mask(mask))[0, 0, -1].tolist()
    seen = {key for key in range(16) for first, last in found["bounds"] if first <= key <= last}
    assert seen == {key for key, visible in enumerate(row) if visible}


def test_a_large_matrix_is_refused_in_a_short_sentence(client: TestClient) -> None:
    wide = [[0.25] * 200] * 200
    answer = client.post("/api/steps/attend", json={"q": wide, "k": wide, "v": wide})
    assert answer.status_code == 400
    assert len(answer.text) < 1500
    assert "Tuple" not in answer.text
    assert "at most 12" in answer.text


def test_a_file_that_is_added_later_is_noticed(given: Any, tmp_path: Any) -> None:
    own = tmp_path / "model"
    shutil.copytree(given.learned, own)
    place = WorkspaceDirectory("model", own)
    first = place.load()
    assert place.load() is first
    (own / "preprocessor_config.json").write_text("{}", encoding="utf-8")
    assert place.load() is not first


def test_heads_go_on_where_the_width_divides(visit: Any) -> None:
    page = visit.open("builder?width=512&num_heads=8")
    page.get_by_text("Plan a model").click()
    heads = page.get_by_label("Heads", exact=True)
    heads.focus()
    heads.press("ArrowRight")  # 12 does not divide 512
    visit.until("location.search.includes('num_heads=16')")
    visit.idle()
    assert page.locator(".problem").count() == 0
    page.get_by_label("Width", exact=True).focus()
    page.get_by_label("Width", exact=True).press("ArrowRight")
    visit.idle()
    assert page.locator(".problem").count() == 0


def test_heads_of_a_bias_have_a_colour_each(visit: Any) -> None:
    page = visit.open("positions?scheme=alibi&heads=12")
    lines = page.locator("figure path.line")
    colours = {line.get_attribute("stroke") for line in lines.all()}
    legend = page.locator(".legend path.line").count()
    assert legend == 12
    assert len(colours) == 12
    # ALiBi's heads are ramps, of one scale: each takes from far words as much as its line says.
    ramps = page.locator(".penalty")
    assert ramps.count() == 12
    paths = ramps.locator("path").evaluate_all("all => all.map((e) => e.getAttribute('d'))")
    ends = [float(re.findall(r"V([\d.]+)Z", each)[0]) for each in paths]
    slopes = [2**-i for i in range(1, 9)] + [2 ** -(i + 0.5) for i in range(4)]
    assert ends == pytest.approx([74 * slope / max(slopes) for slope in slopes], rel=1e-3)
    assert ramps.first.locator("text").nth(1).text_content() == "Head 1: −0.5 a word"


def test_titles_of_axes_stand_beside_the_ticks(visit: Any) -> None:
    page = visit.open("schedule?log=1")
    overlaps = page.evaluate(
        """() => [...document.querySelectorAll("figure svg[role=img]")].map((svg) => {
          const box = (e) => e.getBoundingClientRect();
          // A chart without a title has an empty one.
          const titles = [...svg.querySelectorAll("text.label")].filter((e) => e.textContent);
          const title = box(titles.at(-1));
          return [...svg.querySelectorAll("text.tick")].filter((tick) => {
            const own = box(tick);
            return own.left < title.right && own.right > title.left
              && own.top < title.bottom && own.bottom > title.top;
          }).length;
        })"""
    )
    assert overlaps
    assert sum(overlaps) == 0


def test_a_page_goes_on_when_the_server_is_back(visit: Any) -> None:
    page = visit.open("scale")
    page.route("**/api/scale/*", lambda route: route.abort())
    page.get_by_role("button", name="Draw others").click()
    page.wait_for_selector(".problem")
    assert "does not answer" in page.locator(".problem").first.inner_text()
    visit.complaints.clear()  # Chromium logs what it could not reach
    page.unroute("**/api/scale/*")
    page.wait_for_function("() => document.querySelectorAll('.problem').length === 0", timeout=9000)
    visit.complaints.clear()


def test_layers_are_counted_from_one_everywhere(visit: Any) -> None:
    for path in ("attention?text=the+cat", "steps?on=model&text=the+cat", "block?text=the+cat"):
        page = visit.open(f"{path}&layer=1")
        field = page.get_by_label("Block" if path.startswith("block") else "Layer", exact=True)
        visit.idle()
        assert field.locator("option:checked").inner_text().startswith("1"), path
        options = field.locator("option").all_inner_texts()
        assert not any(option.startswith("0") for option in options), path
        assert any(option.startswith("1") for option in options), path


def test_a_smoothed_curve_is_the_weighted_mean_so_far(visit: Any, given: Any) -> None:
    page = visit.open("runs?runs=run&smooth=0.5")
    losses = [5 / step for step in range(1, 61)]  # as the run of the tests has written them
    weights = [0.5 ** (59 - i) for i in range(60)]
    expected = sum(w * x for w, x in zip(weights, losses, strict=True)) / sum(weights)
    figure = page.locator("figure").first
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    names = figure.locator("thead th").all_inner_texts()
    last = figure.locator("tbody tr").last.locator("th, td").all_inner_texts()
    assert last[0] == "60"
    assert last[names.index("run, smoothed")] == visit.shown(expected)
