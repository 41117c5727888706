"""The paper's results: the chart shows the figures of the tables, and the answers follow."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from heedful.apps.studio.page import NoSettings
from heedful.apps.studio.pages.results_page import RESULTS_FILE, TRANSLATIONS, tables
from heedful.apps.studio.workspace import Workspace
from heedful.config import read_toml
from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.models.cost import parameters_by_module
from heedful.models.preset_files import preset_spec

TABLES = read_toml(RESULTS_FILE)


def test_counts_of_the_paper_are_those_of_the_presets() -> None:
    """The paper counts with 37,000 pieces: 65 million parameters and 213 million."""
    by_change = {each["change"]: each for each in TABLES["variants"]}
    for name, change in (("transformer-base", "base model"), ("transformer-big", "big model")):
        count = sum(parameters_by_module(preset_spec(name, 37_000)).values())
        assert abs(count / by_change[change]["parameters"] - 1) < 0.04


def test_answers_follow_from_the_tables() -> None:
    systems = {each["name"]: each for each in TABLES["systems"]}
    big, before = systems["Transformer, big"], systems["ConvS2S, ensemble"]
    assert max(e.get("en_de", 0) for e in systems.values() if not e.get("own")) == before["en_de"]
    assert round(big["en_de"] - before["en_de"], 1) == 2.0
    assert big["flops_en_de"] <= before["flops_en_de"] / 3
    base = TABLES["variants"][0]["bleu"]
    worst = min(TABLES["variants"], key=lambda each: each["bleu"])
    assert worst["change"] == "2 layers"
    assert round(base - worst["bleu"], 1) == 2.1


def test_bleu_of_the_example_is_counted_by_hand() -> None:
    found = tables(NoSettings(), Workspace([]))["bleu"]
    first = found[0]["words"]
    for each in found:
        words = each["words"]
        assert each["words"] == TRANSLATIONS[each["about"]].split()
        for n, (same, total) in enumerate(each["shared"], 1):
            grams, right = (
                [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
                for text in (words, first)
            )
            assert (same, total) == (sum(gram in right for gram in grams), len(grams))
        shares = [same / total for same, total in each["shared"]]
        assert each["score"] == pytest.approx(100 * math.prod(shares) ** 0.25)
    assert found[0]["score"] == pytest.approx(100)


@pytest.mark.parametrize(("right", "score"), [(0.587, 26.4), (0.604, 28.4)])
def test_two_bleu_are_two_words_of_a_hundred(right: float, score: float) -> None:
    """Single wrong words, spread evenly over sentences of 25."""
    random = Random(1)
    person = [[f"{random.random()}" for _ in range(25)] for _ in range(2000)]
    system = [[w if random.random() < right else "x" for w in words] for words in person]
    lines, references = ([" ".join(words) for words in text] for text in (system, person))
    bleu = corpus_scores(lines, references, ["bleu"], tokenize="none")["bleu"].score
    assert bleu == pytest.approx(score, abs=0.4)


def test_the_page_shows_them(visit: Any, axe: str) -> None:
    page = visit.open("results")
    page.locator("summary", has_text="What is BLEU").click()
    visit.idle()
    assert page.locator("tr", has_text="one word differs").locator("td").all_text_contents() == [
        "9/10", "7/9", "6/8", "5/7", "78.3",
    ]  # fmt: skip
    assert page.locator(".differs").all_text_contents() == ["last", "by"]
    figure = page.locator("figure", has_text="Quality by cost of training")
    assert "ByteNet (23.75 BLEU) has no cost" in figure.locator("figcaption").inner_text()
    page.locator("summary", has_text="Perplexity and parameters").click()
    variants = page.get_by_role("group", name="Variants of the base model")
    assert variants.evaluate("(each) => each.scrollHeight <= each.clientHeight")  # all 20 rows
    cells = variants.locator("tbody td")
    assert cells.count() == 60
    assert variants.locator("tbody td.words").count() == 0  # all are numbers, which stand alike
    check_variants(page)
    key = page.locator(".multiples figcaption .legend").first
    assert key.locator("span").all_text_contents() == [
        f"▬ {name}" for name in ("layers", "width", "feed-forward", "big")
    ]
    page.locator("summary", has_text="Beyond translation").click()
    visit.idle()
    trees = page.locator("figure", has_text="Quality of the trees").locator("[data-value]")
    shown = [float(each.get_attribute("data-value")) for each in trees.all()]
    expected = sorted((each["f1"] for each in TABLES["parsing"]), reverse=True)
    assert shown == expected
    places = [float(each.get_attribute("cx")) for each in trees.locator("circle").all()]
    shares = [(expected[0] - value) / (expected[0] - expected[-1]) for value in expected]
    assert places == pytest.approx(
        [places[0] - share * (places[0] - places[-1]) for share in shares]
    )
    assert "the axis begins at 87" in page.locator("figure", has_text="Quality of the").inner_text()
    visit.check_everyone_can_use_it(axe)


def check_variants(page: Any) -> None:
    """All variants by what was changed, on one scale: a BLEU is as long in each group."""
    groups = page.locator(".multiples figure")
    changes = [each.locator(".ranked-name").all_text_contents() for each in groups.all()]
    assert sorted(name for each in changes for name in each) == sorted(
        each["change"] for each in TABLES["variants"][1:]
    )
    assert changes[0][:3] == ["2 layers", "4 layers", "8 layers"]
    bars = groups.locator("[data-value]").all()
    assert all(float(each.get_attribute("data-value")) < 0.7 for each in bars)
    scales = [
        float(each.locator(".bar").get_attribute("width")) / abs(value)
        for each in bars
        if abs(value := float(each.get_attribute("data-value"))) > 0.05
    ]
    # Changes of one thing share a colour, others in the same chart have another.
    kinds = {each["change"]: each["group"] for each in TABLES["variants"]}
    for group, names in zip(groups.all(), changes, strict=True):
        colours = group.locator(".bar").evaluate_all("(all) => all.map((e) => e.style.fill)")
        pairs = {(kinds[name], colour) for name, colour in zip(names, colours, strict=True)}
        assert (
            len({colour for _, colour in pairs}) == len({kind for kind, _ in pairs}) == len(pairs)
        )
    assert max(scales) < 1.35 * min(scales)  # names of groups differ in length


def test_both_words_of_the_way_stand_on_a_narrow_screen(visit: Any) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 900})
    page = visit.open("results")
    assert page.locator(".between").all_text_contents() == ["1/3 the cost", "+2.0 BLEU"]
    names = page.locator(".spot-name", has_text="ensemble").all_text_contents()
    assert sorted(names) == ["ConvS2Sensemble", "GNMT + RLensemble"]
    assert page.locator(".of-zone").text_content() == "better and cheaperthan the best before"
    # What is better and cheaper than the best before: both Transformers.
    zone = page.locator("rect.zone").bounding_box()
    for dot in page.locator("circle.own").all():
        box = dot.bounding_box()
        assert zone["x"] < box["x"] < zone["x"] + zone["width"]
        assert zone["y"] < box["y"] < zone["y"] + zone["height"]


def test_a_system_is_chosen_and_compared(visit: Any) -> None:
    """The Transformers with the best system before them, others with the base Transformer."""
    page = visit.open("results")
    said = page.locator(".sentence")
    assert said.inner_text() == (
        "Transformer, big: 28.4 BLEU, 2.0 more than the best before it (ConvS2S, ensemble), at 1/3 "
        "of its training cost: 3.5 days on eight GPUs."
    )
    box = said.bounding_box()
    chart = page.locator("figure", has_text="Quality by cost").locator("svg[role=img]")
    frame = chart.bounding_box()
    assert box["y"] < frame["y"]
    assert frame["y"] + frame["height"] < 800
    for across, up in [("1/3 the cost", "+2.0 BLEU")]:
        assert chart.locator(".between").all_text_contents() == [across, up]
    names = page.locator(".spot-name", has_text="GNMT + RL, ensemble")
    assert names.locator(".kind").text_content() == "recurrent"
    dots = chart.locator("circle").all()
    dots[-1].click()  # the dearest
    visit.until("location.search.includes('system=GNMT')")
    visit.idle()
    assert said.inner_text() == (
        "GNMT + RL, ensemble (recurrent, several models together): 26.3 BLEU at 55 times the "
        "training cost of the base Transformer, which has 27.3 (−1.0)."
    )
    # With the keyboard, from the chosen one on.
    chart.focus()
    for key in ("Home", "Enter"):
        page.keyboard.press(key)
    visit.until("location.search.includes('base')")
    visit.idle()
    assert page.evaluate("document.activeElement.getAttribute('role')") == "img"
    assert visit.fact("cost") == "1/23"
    page.get_by_role("button", name="English to French").click()
    visit.idle()
    assert visit.fact("gain") == "3.2 less"
    assert "eight times as many sentences" in said.inner_text()
    visit.open("results?system=Deep-Att+%2B+PosUnk")  # which has no figure in German
    assert visit.fact("gain") == "2.0 more"
