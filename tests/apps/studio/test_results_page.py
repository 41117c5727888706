"""The paper's results: the chart shows the figures of the tables, and the answers follow."""

from __future__ import annotations

from typing import Any

import pytest

from heedful.apps.studio.pages.results_page import RESULTS_FILE
from heedful.config import read_toml
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


def test_the_page_shows_them(visit: Any, axe: str) -> None:
    page = visit.open("results")
    bars = page.locator("figure", has_text="BLEU of each system").locator("[data-value]")
    shown = [float(each.get_attribute("data-value")) for each in bars.all()]
    expected = sorted((e["en_de"] for e in TABLES["systems"] if "en_de" in e), reverse=True)
    assert shown == expected
    page.locator("summary", has_text="BLEU of each system").click()
    visit.idle()
    dots = bars.locator("circle").all()
    places = [float(each.get_attribute("cx")) for each in dots]
    shares = [(expected[0] - value) / (expected[0] - expected[-1]) for value in expected]
    assert places == pytest.approx(
        [places[0] - share * (places[0] - places[-1]) for share in shares]
    )
    assert "the axis begins at 23" in page.locator("figure", has_text="BLEU of each").inner_text()
    page.locator("summary", has_text="Perplexity and parameters").click()
    variants = page.get_by_role("group", name="Variants of the base model")
    assert variants.evaluate("(each) => each.scrollHeight <= each.clientHeight")  # all 20 rows
    page.get_by_label("Languages").select_option("en_fr")
    visit.idle()
    assert "41.8" in bars.first.text_content()
    assert visit.fact("base-gain") == "−3.2 BLEU"
    assert "It falls short here" in page.locator(".sentence").inner_text()
    page.get_by_label("Changed").select_option("heads")
    visit.idle()
    assert page.locator("tbody tr").filter(has_text="head").count() >= 4
    visit.check_everyone_can_use_it(axe)
