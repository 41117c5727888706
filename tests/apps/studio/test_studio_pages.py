"""Every page in a real browser: opened, used, and its numbers compared with the library's."""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

import pytest
import torch

import heedful
from heedful.apps.studio.alternatives import find_alternatives
from heedful.apps.studio.course import read_course
from heedful.apps.studio.page import NoSettings
from heedful.apps.studio.pages import PAGES
from heedful.apps.studio.pages.schedule_page import warmups
from heedful.apps.studio.workspace import Workspace
from heedful.models.checkpoint import load_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator

NAMES = ["", *(page.name for page in PAGES)]


@pytest.mark.parametrize("name", NAMES)
def test_page_can_be_used_by_everyone(visit: Any, axe: str, name: str) -> None:
    """No finding of axe-core, light and dark; no sideways scrolling on a phone."""
    page = visit.open(name)
    visit.check_everyone_can_use_it(axe)
    page.get_by_role("button", name="Pages").click()
    assert page.get_by_role("link", name="Masks and biases").first.is_visible()


def test_start_shows_pages_and_models(visit: Any) -> None:
    page = visit.open("")
    first = {chapter.pages[0] for chapter in read_course().chapters}
    linked = {a.get_attribute("href")[1:] for a in page.locator(".cards a").all()}
    assert linked == {each.name for each in PAGES}
    assert page.locator(".card .thumbnail *").count() > 10 * len(first)
    places = page.locator(".places li").all_inner_texts()
    assert [each.split(" – ")[0] for each in places] == [  # then how far its training is
        "learned translator",
        "t5 translator",
        "run translator, with its run",
        "other translator, with its run",
    ]


def test_unknown_pages_say_so(visit: Any) -> None:
    page = visit.page
    page.goto(visit.studio + "nonsense")
    page.wait_for_selector(".problem")
    assert "no such page" in page.locator(".problem").inner_text()
    visit.complaints[:] = [line for line in visit.complaints if "404" not in line]


def test_colours_are_kept(visit: Any) -> None:
    page = visit.open("")
    page.get_by_label("Colours").select_option("dark")
    visit.open("scale")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    theme = page.get_by_label("Colours").bounding_box()
    assert theme["y"] + theme["height"] <= page.viewport_size["height"]  # in sight, not below


def test_keyboard_reaches_the_page(visit: Any) -> None:
    page = visit.open("scale")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    for _ in range(40):  # past the pictures, which come first
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "range":
            return
    raise AssertionError("the keyboard does not reach the controls")


# Scale


def drawn(width: int, keys: int, seed: int) -> torch.Tensor:
    """The scores of the page's query, drawn as the page says it draws them."""
    numbers = torch.randn((1, 1, keys + 1, 1024), generator=torch.Generator().manual_seed(seed))
    numbers = numbers[0, 0, :, :width].double()
    return numbers[1:] @ numbers[0]


def test_scale(visit: Any) -> None:
    page = visit.open("scale?width=64&keys=12")
    scores = drawn(64, 12, 1)
    assert visit.fact("without-largest") == visit.shown(float(scores.softmax(0).max()))
    assert visit.fact("with-largest") == visit.shown(float((scores / 8).softmax(0).max()))
    assert page.locator(".bar").count() == 24

    slider = page.get_by_label("Width of a head, dₖ", exact=True)
    slider.focus()
    slider.press("ArrowRight")
    visit.idle()
    visit.until("location.search.includes('width=96')")
    weights = (drawn(96, 12, 1) / math.sqrt(96)).softmax(0)
    assert visit.fact("with-largest") == visit.shown(float(weights.max()))
    entropy = -float((weights * weights.log()).sum())
    assert visit.fact("with-effective") == visit.shown(math.exp(entropy), 3)
    tops = [each.bounding_box()["y"] for each in page.locator("figure svg[role=img]").all()[:2]]
    assert tops[0] == tops[1]  # the two sides are compared side by side

    page.get_by_role("button", name="Draw others").click()
    visit.idle()
    other = visit.fact("with-largest")
    # The words beside the upright line stand where no line goes through them.
    marks = page.locator("figure", has_text="Standard deviation").locator("text.marked")
    assert float(marks.get_attribute("y")) < 40
    page.reload()
    visit.idle()
    assert visit.fact("with-largest") == other
    page.go_back()
    visit.idle()
    assert visit.fact("with-largest") == visit.shown(float(weights.max()))


# Masks and biases


def test_masks(visit: Any) -> None:
    page = visit.open("masks")
    assert visit.fact("seen") == "153 of 289"
    # A row as a sentence: "it" is the ninth token and sees nine, a ninth of the attention each.
    assert "“it” may look at 9 of 17 tokens: each gets 11.1 %" in visit.fact("row")
    assert page.locator(".unseen-word").count() == 8
    page.locator(".masked button").nth(4).click()
    visit.until("location.search.includes('row=4')")
    assert "“on” may look at 5 of 17 tokens: each gets 20 %" in visit.fact("row")
    page.get_by_role("button", name="ALiBi").click()
    visit.idle()
    shares = [math.exp(-distance / 2) for distance in range(5)]
    own = visit.shown(100 / sum(shares), 3)
    assert f"of its attention is on “on”, {own} %" in visit.fact("row")
    added = visit.numbers_of(page.locator("figure", has_text="Mask and bias"), 4)
    assert added[:5] == ["−2", "−1.5", "−1", "−0.5", "0"]
    assert page.locator(".ticked span span").all_inner_texts() == ["0", "0.1", "0.25", "0.5", "1"]
    page.get_by_role("button", name="None", exact=True).click()
    page.get_by_text("More masks").click()
    expression = page.get_by_label("Mask: combine with & and |")
    expression.fill("window(3) & causal | prefix(2)")
    visit.idle()
    seen = [[(0 <= i - j < 3) or j < 2 for j in range(17)] for i in range(17)]
    assert visit.fact("seen") == f"{sum(map(sum, seen))} of 289"

    # The picture itself: the colour in the middle of some cells.
    picture = page.locator("figure", has_text="Who sees whom").locator("canvas")
    places = [(0, 0), (0, 5), (7, 1), (7, 5), (7, 4), (15, 13), (13, 15)]
    colours = picture.evaluate(
        """(canvas, places) => {
          const left = 32 + 7 * 7;  // seven letters of the longest word
          const cell = (canvas.width / devicePixelRatio - 2 - left) / 17;
          const {width, height} = canvas;
          const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
          return places.map(([i, j]) => {
            const x = Math.round((left + (j + 0.5) * cell) * devicePixelRatio);
            const y = Math.round((2 + (i + 0.5) * Math.max(cell, 4)) * devicePixelRatio);
            return [...data.slice(4 * (y * width + x), 4 * (y * width + x) + 3)];
          });
        }""",
        places,
    )
    dark = [sum(colour[:3]) < 384 for colour in colours]
    assert dark == [seen[i][j] for i, j in places]

    picture.focus()
    picture.press("ArrowRight")
    picture.press("ArrowDown")
    assert "query The sees key start" in page.locator("figure .readout").first.inner_text()

    expression.fill("windw(3)")
    visit.idle()
    problem = page.locator(".problem").inner_text()
    assert "windw" in problem
    assert "window" in problem
    page.get_by_role("button", name="Words before (decoder)").click()
    visit.idle()
    assert page.locator(".problem").count() == 0


# Positions


def one_column(visit: Any, figure: Any) -> list[list[str]]:
    """The rows of the table below a curve."""
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    return [row.locator("td").all_inner_texts() for row in figure.locator("tbody tr").all()]


def test_positions(visit: Any, given: Any) -> None:
    page = visit.open("positions?width=4&length=16")
    table = page.locator("figure", has=page.get_by_role("heading", name="The table"))
    row = visit.numbers_of(table, 5)
    expected = [math.sin(5), math.cos(5), math.sin(0.05), math.cos(0.05)]
    assert row == [visit.shown(value, 3) for value in expected]
    picture = table.locator("canvas")  # the row under the pointer, as a curve
    picture.focus()
    for _ in range(3):
        picture.press("ArrowDown")
    one = page.locator("figure", has_text="The vector of position 2")
    curve = [next(filter(None, each)) for each in one_column(visit, one)]  # sines and cosines apart
    assert curve == [visit.shown(f(2 / w)) for w in (1, 100) for f in (math.sin, math.cos)]

    page.get_by_role("button", name="Learned").click()
    page.wait_for_selector("text=as trained")
    visit.idle()
    model, _ = load_model(given.learned)
    own = page.get_by_label("Table").input_value()
    assert own == "learned · source_input.positions"
    row = visit.numbers_of(table, 3)
    weights = model.source_input.positions.weight.detach()
    assert row == [visit.shown(float(value), 3) for value in weights[3]]

    page.get_by_role("button", name="T5 buckets").click()
    visit.idle()
    page.get_by_label("Table").select_option(label="t5 · encoder.position_bias")
    page.get_by_text("The same as colours").click()
    page.locator("figure", has_text="By head and distance").locator("canvas").wait_for()
    assert page.locator(".legend li").all_inner_texts() == ["head 1", "head 2"]

    for scheme, name in (("rotary", "Rotary"), ("alibi", "ALiBi")):
        page.get_by_role("button", name=name).click()
        visit.idle()
        visit.until(f"location.search.includes('scheme={scheme}')")
        assert page.locator("figure svg, figure canvas").count() >= 2
        assert page.locator(".problem").count() == 0


# Schedule


def test_schedule(visit: Any) -> None:
    page = visit.open("schedule")
    assert page.locator(".stage input").count() == 0  # a training of one's own is folded
    page.get_by_text("Plan a training").click()
    visit.idle()
    assert visit.fact("peak") == visit.shown(512**-0.5 * 4000**-0.5)
    assert visit.fact("last") == visit.shown(512**-0.5 * 20_000**-0.5)
    assert page.get_by_label("Smoothing ε").count() == 0  # folded
    rates = page.locator("figure", has=page.get_by_role("heading", name="Learning rate of your"))
    assert rates.locator("path.line").count() == 1
    assert "0.0004" in rates.locator("text.tick").all_text_contents()
    assert "20,000" in rates.locator("text.tick").all_text_contents()
    page.get_by_label("All schedules, side by side").check()
    taking = page.get_by_role("button", name="Take its settings")
    assert not taking.is_visible()
    page.get_by_label("Lay a run over it").select_option("run")
    visit.idle()
    assert visit.fact("peak") == visit.shown(512**-0.5 * 4000**-0.5)
    taking.click()
    visit.until("location.search.includes('kind=linear')")
    visit.idle()
    assert visit.fact("peak") == "0.002"
    assert visit.fact("peak-step") == "10"
    names = rates.locator("text.end")
    assert "run, as logged" in names.all_text_contents()  # at the ends of the lines
    tops = sorted(each.bounding_box()["y"] for each in names.all())
    assert min(b - a for a, b in itertools.pairwise(tops)) > 10  # none covers another
    assert rates.locator("text.marked").text_content() == "end of the warm-up"
    # The run's own rates lie on the formula's curve.
    lines = rates.locator("svg[role=img] path.line")
    ends = [lines.nth(i).evaluate("path => path.getPointAtLength(0).y") for i in (2, 4)]
    assert ends[0] == pytest.approx(ends[1], abs=1)
    settings = page.get_by_label("Settings of this schedule").input_value()
    assert 'kind = "linear"' in settings
    assert "warmup_steps = 10" in settings
    # Without a warm-up the rate falls from the first step on: a straight line, and no spike.
    page = visit.open("schedule?warmup=0&steps=10000")
    d = rates.locator("path.line").get_attribute("d")
    points = [tuple(map(float, each.split(","))) for each in d.removeprefix("M").split("L")]
    (x, y), middle, end = points[0], points[len(points) // 2], points[-1]
    slope = (end[1] - y) / (end[0] - x)
    assert slope > 0.1
    assert middle[1] - y == pytest.approx(slope * (middle[0] - x), abs=0.5)
    assert "falls from the first step on" in rates.locator("figcaption").inner_text()


def test_the_warm_up_chooses_a_recorded_run(visit: Any) -> None:
    found = warmups(NoSettings(), Workspace([]))
    of = {each["steps"]: each for each in found["warmups"]}
    page = visit.open("schedule")
    proof = page.locator("figure", has=page.get_by_role("heading", name="What the training did"))
    bars = page.locator(".warmups")
    assert bars.locator(".bar").all_text_contents() == [
        f"{int(100 * round(each['exact'], 4) + 0.5)} %" for each in found["warmups"]
    ]
    dots = bars.locator(".bar").first.locator(".run-dot")  # each run, the lowest first
    styles = [dots.nth(i).get_attribute("style") for i in range(dots.count())]
    heights = [float(style.split("%")[0].removeprefix("bottom: ")) for style in styles]
    exact = sorted(run["exact"] for run in of[0]["runs"])
    assert heights == pytest.approx([100 * each / 1.15 for each in exact], abs=1e-3)  # room above
    # From the lowest end to the highest, and as far apart as names must be.
    ends = ["40 %", "80 %", "20 %", "10 %", "5 %", "no warm-up"]
    assert proof.locator("text.end").all_text_contents() == ends
    assert [each["loss"][-1][1] for each in found["warmups"]] == pytest.approx(
        [0.3754, 0.2279, 0.1589, 0.1377, 0.135, 0.1372], abs=1e-4
    )
    said = page.locator(".sentence")
    said_of_runs = re.sub(r"\s+", " ", said.inner_text())
    assert "98 % of unseen dates exactly right, from 97 % to 99 % in 4 runs" in said_of_runs
    assert visit.fact("chosen") == "Warm-up over 20\N{NO-BREAK SPACE}% of the steps"
    assert "10 %, 40 % and 80 % overlap" in re.sub(r"\s+", " ", visit.fact("best"))
    # The rates of the same runs stand beside their losses.
    rates = page.locator("figure", has=page.get_by_role("heading", name="Learning rate: the size"))
    assert rates.locator("path.line").count() == len(ends)
    assert rates.bounding_box()["y"] == proof.bounding_box()["y"]
    assert rates.locator("text.marked").text_content() == "end of the warm-up"
    assert proof.bounding_box()["y"] + proof.bounding_box()["height"] < 900
    proof.locator("text.end", has_text="10 %").click(force=True)
    visit.until("location.search.includes('warmup=2000')")
    visit.idle()
    assert bars.get_by_role("button", pressed=True).inner_text() == "10 %"
    assert proof.locator("text.end.strong").all_text_contents() == ["10 %"]
    assert "but the runs overlap" in visit.fact("best")
    bars.get_by_role("button", name="none").click()
    visit.idle()
    best = re.sub(r"\s+", " ", visit.fact("best"))
    assert best == "Best: a warm-up of 20 % of the steps, 98 % right."
    assert "Why a warm-up helps" in said.inner_text()
    wide = [button.bounding_box()["width"] for button in bars.get_by_role("button").all()]
    assert max(wide) - min(wide) < 1
    proof.locator("text.end", has_text="10 %").click(force=True)
    visit.idle()
    # The mean and the four runs of the chosen one and of the one without warm-up.
    assert proof.locator("path.line:not(.faint)").count() == 2
    assert proof.locator("path.line").count() == len(ends) + 8
    table = proof.locator("details")
    table.locator("summary").click()
    table.locator("thead").wait_for()
    assert table.locator("thead th").count() == 1 + len(ends)
    table.locator("summary").click()
    # The line of the runs without warm-up is the highest at its end.
    svg = proof.locator("svg[role=img]")
    x, y = svg.evaluate(
        """(svg) => [...svg.querySelectorAll("path.line:not(.faint)")]
          .map((path) => path.getPointAtLength(path.getTotalLength()))
          .sort((a, b) => a.y - b.y).map((end) => [end.x, end.y])[0]"""
    )
    svg.click(position={"x": x - 2, "y": y + 1})
    visit.until("location.search.includes('warmup=0')")
    visit.idle()
    assert visit.fact("chosen") == "No warm-up"
    edge = "(name) => name.ownerSVGElement.clientWidth - name.getBBox().x - name.getBBox().width"
    assert proof.locator("text.end.strong").evaluate(edge) >= 0  # the bold name is whole
    right = int(100 * round(of[0]["exact"], 4) + 0.5)
    assert f"{right}\N{NO-BREAK SPACE}% of unseen dates exactly right" in said.inner_text()
    bars.get_by_role("button", name="80 %").click()
    visit.until("location.search.includes('warmup=16000')")
    visit.open("schedule?warmup=800")
    assert "5\N{NO-BREAK SPACE}% of the steps, the nearest that was recorded" in said.inner_text()


# Step by step


def test_steps(visit: Any) -> None:
    page = visit.open("steps?stage=6&all=1")
    page.get_by_label("Examples").select_option("love")
    visit.idle()
    q = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 0, 1]]).double()
    k = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 0]]).double()
    expected = (q @ k.T / 2).softmax(-1)

    def cells(stage: int) -> list[list[str]]:
        rows = page.locator(f"[data-stage='{stage}'] .made tbody tr").all()
        return [row.locator("td").all_inner_texts() for row in rows]

    assert cells(5) == [[visit.shown(float(w), 3) for w in row] for row in expected]

    page.get_by_role("button", name="Back").click()
    assert page.locator("[data-stage]").count() == 5  # all steps, also those to come
    page.get_by_text("Type your own numbers").click()
    page.get_by_label("Mask").fill("causal")
    visit.idle()
    page.wait_for_selector("[data-stage='5'] .made td.hidden")
    assert [len([c for c in row if c == "0"]) for row in cells(5)] == [2, 1, 0]
    assert [row.count("−∞") for row in cells(4)] == [2, 1, 0]
    page.get_by_role("button", name="Next step").click()
    page.get_by_label("Values V").fill("2 0\n0 4\n1 1")
    visit.idle()
    visit.until("document.querySelectorAll(\"[data-stage='6'] .made td\").length === 6")
    causal = (q @ k.T / 2).masked_fill(torch.ones(3, 3).triu(1).bool(), -1e30).softmax(-1)
    output = causal @ torch.tensor([[2, 0], [0, 4], [1, 1]]).double()
    assert cells(6) == [[visit.shown(float(w), 3) for w in row] for row in output]

    page.get_by_label("Keys K").fill("1 2\n3")
    visit.idle()
    assert "rows of K" in page.locator(".problem").inner_text()
    page.get_by_label("Keys K").fill("1 two")
    visit.idle()
    assert "“two” is no number" in page.locator(".problem").inner_text()
    page.get_by_label("Examples").select_option("tokens")
    visit.idle()
    assert page.locator(".problem").count() == 0
    assert page.get_by_label("Weights WQ").is_visible()


# Builder


def test_builder(visit: Any) -> None:
    page = visit.open(
        "builder?width=64&num_heads=4&feedforward=128&encoder_layers=2&vocabulary=600"
    )
    shape = TranslatorShape(width=64, num_heads=4, feedforward=128, encoder_layers=2)
    built = Translator(translator_spec(shape, 600, 600))
    assert visit.fact("total") == f"{sum(p.numel() for p in built.parameters()):,}"
    page.get_by_text("More dials").click()
    page.get_by_label("Activation").select_option("swiglu")
    visit.idle()
    gated = Translator(translator_spec(shape.model_copy(update={"activation": "swiglu"}), 600, 600))
    visit.until("location.search.includes('swiglu')")
    assert visit.fact("total") == f"{sum(p.numel() for p in gated.parameters()):,}"
    page.get_by_label("Begin with").select_option("transformer-base")
    visit.until("document.querySelector('[data-fact=total]').innerText === '63,082,496'")
    assert page.locator("[data-part=cross]").count() == 1
    page.get_by_label("Model", exact=True).select_option("causal_lm")
    visit.until("document.querySelectorAll('[data-part=cross]').length === 0")
    assert 'task = "causal_lm"' in page.get_by_label("Settings of this model").input_value()
    page.get_by_text("Settings file: train").click()
    assert page.locator("#command").inner_text().endswith("--train train.txt --valid valid.txt")


# Translate


def test_translate(visit: Any, given: Any) -> None:
    translator = heedful.load(given.learned)
    text = "the dog sat on a mat"
    expected = translator.translate([text], n_best=3, alignment=True)[0]
    page = visit.open("translate")
    page.get_by_label("Text to translate").fill(text)
    page.wait_for_selector("#translation")
    visit.idle()
    assert page.locator("#translation").inner_text() == str(expected)
    page.get_by_text("Scores and pieces").click()
    assert visit.fact("score") == visit.shown(expected.score)
    first, second = page.locator(".rank .count").all_inner_texts()[:2]
    assert first == "most probable"
    ratio = 100 * math.exp(expected.n_best[1].score - expected.score)
    assert float(second.split()[0]) == pytest.approx(ratio, rel=0.05)
    ranks = page.locator(".rank span:first-child").all_inner_texts()
    assert ranks == [str(each) for each in expected.n_best]

    # Pointing at a word lights up what it looked at.
    page.locator("#translation button").first.hover()
    lit = page.locator("[data-side=source]").evaluate_all(
        "words => words.map(word => Number(getComputedStyle(word).getPropertyValue('--weight')))"
    )
    assert lit == pytest.approx(expected.alignment.matrix[0], abs=1e-3)
    drawn = [weight for weight in expected.alignment.matrix[0] if weight >= 0.05]
    assert page.locator(".word-line.strong").count() == len(drawn)

    # Clicking one offers others, and going on from one keeps it.
    word = page.locator("#translation button").nth(1)
    before = page.locator("#translation button").first.inner_text()
    word.click()
    page.wait_for_selector(".alternatives li")
    assert word.get_attribute("aria-pressed") == "true"
    visit.until("location.search.includes('word=1')")
    # The lines and what is said of them are those of the word, with the pointer elsewhere.
    page.locator("#translation button").first.evaluate("button => button.click()")
    visit.until("location.search.includes('word=0')")
    drawn = [weight for weight in expected.alignment.matrix[0] if weight >= 0.05]
    assert page.locator(".word-line.strong").count() == len(drawn)
    word.evaluate("button => button.click()")
    visit.until("location.search.includes('word=1')")
    visit.idle()
    offered = page.locator(".alternatives button").all_inner_texts()
    found = find_alternatives(translator, text, before)
    assert offered == [each.word or "(the end)" for each in found]
    other = next(each for each in found if each.word and each.word != word.inner_text())
    page.locator(".alternatives button").nth(offered.index(other.word)).click()
    visit.until("location.search.includes('prefix=')")
    visit.idle()
    begun = f"{before} {other.word}"
    assert page.locator("#translation").inner_text().startswith(begun)
    again = translator.translate([text], prefixes=[begun], beam=4, n_best=3)[0]
    assert page.locator("#translation").inner_text() == str(again)
    page.get_by_role("button", name="Remove the beginning").click()
    visit.until(f"document.querySelector('#translation').innerText === {json.dumps(str(expected))}")
    # A word is chosen by itself, with others in its place; why it stands there is asked for.
    page.wait_for_selector(".alternatives li")
    assert page.locator("#translation [aria-pressed=true]").count() == 1
    assert page.locator(".why section").count() == 0
    page.get_by_role("button", name="and no other word?").click()
    page.wait_for_selector(".why section")


def test_words_that_are_improbable_are_underlined(visit: Any, given: Any) -> None:
    text = "the old dog on a mat saw the small house"
    best = heedful.load(given.learned).translate([text], n_best=3, alignment=True)[0]
    page = visit.open(f"translate?text={text}&word=0")
    page.wait_for_selector(".alternatives li")  # an address with a word opens its alternatives
    pieces = zip(best.tokens, best.token_scores, strict=False)
    low = []
    for i, word in enumerate(str(best).split()):
        rest, score = word, 0.0
        while rest:
            piece, own = next(pieces)
            rest, score = rest[len(piece.replace("\u2581", "")) :], score + own
        low += [i] if math.exp(score) < 0.5 else []
    shown = page.locator("#translation .unlikely")
    found = shown.evaluate_all("words => words.map(word => Number(word.dataset.word))")
    assert found == low


@pytest.mark.parametrize("text", ["", "\x07\x00", "القطة", "🐈‍⬛", "x" * 100_000])
def test_translate_takes_any_text(visit: Any, text: str) -> None:
    page = visit.open("translate")
    page.get_by_label("Text to translate").fill(text)
    visit.idle()
    if len(text) > 2000:
        page.wait_for_selector(".problem")
        assert "100,000 characters" in page.locator(".problem").inner_text()
    elif text:
        page.wait_for_selector(".warnings, #translation")
        assert page.locator(".problem").count() == 0
    else:
        assert "Type a text" in page.locator(".result").inner_text()


def test_a_studio_that_has_stopped_is_said_to(visit: Any) -> None:
    page = visit.open("scale")
    page.route("**/api/**", lambda route: route.abort())
    page.get_by_role("button", name="Draw others").click()
    page.wait_for_selector(".problem")
    assert "does not answer" in page.locator(".problem").first.inner_text()
    visit.complaints.clear()  # the browser reports what this test broke


def test_a_page_is_busy_while_a_question_waits(visit: Any) -> None:
    """An answer does not end what has been asked since, though it is not on its way yet."""
    busy = visit.open("scale").evaluate(
        """async () => {
            const { live } = await import("/static/api.js");
            const region = document.createElement("div");
            const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
            const answers = [];
            const ask = live(region, () => new Promise((done) => answers.push(done)), () => {});
            ask();
            while (answers.length < 1) await wait(5);
            ask();
            answers[0]();
            await wait(5);
            const before = region.getAttribute("aria-busy");
            while (answers.length < 2) await wait(5);
            answers[1]();
            await wait(5);
            return [before, region.getAttribute("aria-busy")];
        }"""
    )
    assert busy == ["true", "false"]
