"""The page of paths in a browser, against the library and against counting by hand."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from heedful import inspect
from heedful.apps.path_lengths import model_reach, recurrent_reach, transformer_reach
from heedful.models.shape import TranslatorShape

QUICK = "paths?length=16&width=16&layers=1"
GRADIENTS = "Gradient of the last token's output, by distance"
CURVES = "As curves, by distance"


def transformer(**changes: Any) -> TranslatorShape:
    shape = {"width": 16, "num_heads": 4, "feedforward": 64, "encoder_layers": 1, **changes}
    return TranslatorShape(**shape)


def test_steps(visit: Any) -> None:
    page = visit.open("paths?length=32&width=16&layers=3&window=5")
    page.locator("summary", has_text="Other ways").click()
    page.locator("summary", has_text="By the number of tokens").click()
    rows = page.locator("table", has_text="For 32 tokens and 3 layers").locator("tbody tr")
    steps = [row.split("\t")[2] for row in rows.all_inner_texts()[:2]]
    assert steps == ["3", "34"]  # the third recurrent layer is two tokens behind the first
    titles = page.locator("figure h3").all_inner_texts()
    assert "Attention: 1 step" in titles
    # Several levels are drawn for 12 tokens, and titled by these; all tokens are told of below.
    several = {
        "Attention in a window": (3, 8),  # 11 and 31 in strides of 4
        "Convolution": (6, 16),  # in strides of 2
        "Dilated convolution": (3, 4),  # 3 · 3 · 3 are too few for 32
    }
    for kind, (drawn, whole) in several.items():
        place = page.locator("figure").filter(has=page.locator("h3", has_text=f"{kind}: {drawn} "))
        assert f"{kind}: {drawn} steps for 12 tokens" in titles
        assert f"All 32 tokens: {whole} steps." in place.last.inner_text()
    # Lines that cover each other are one line with all names.
    legend = page.locator("figure", has_text="Operations").last.locator(".legend").first
    assert "Convolution, dilated convolution" in legend.inner_text()

    # As many strokes in the bold line as the title says.
    window = page.locator("figure", has_text="Attention in a window: 3 steps")
    assert window.locator("path.route").get_attribute("d").count("L") == 3
    assert window.locator("circle").count() == 12 * 4
    # The two that are compared have all tokens, and each but the last a way to it.
    attention = page.locator("figure", has_text="Attention: 1 step")
    assert attention.locator("path.wire").count() == 31
    recurrent = page.locator("figure", has_text="Recurrent: 31 steps")
    assert recurrent.locator("path.route").get_attribute("d").count("Q") == 31
    # The tokens are as pale as what arrives of them through 32 steps, the last one is not.
    opacity = "dots => dots.map((dot) => Number(dot.getAttribute('fill-opacity')))"
    shown = recurrent.locator("circle.on").evaluate_all(opacity)
    assert shown == sorted(shown)
    assert shown[0] < 0.5
    assert shown[-1] == 1
    # Attention brings the first one as well as the others, in the colour of its curve.
    near = attention.locator("circle[fill-opacity]").evaluate_all(opacity)[:32]
    assert min(near) > shown[0] + 0.2
    assert max(near[:16]) - min(near) < 0.2
    # Each line is as strong as what arrives of its token.
    strong = "lines => lines.map((line) => 0.04 + 0.96 * line.getAttribute('stroke-opacity'))"
    assert attention.locator("path.wire").evaluate_all(strong) == pytest.approx(near[:-1])
    curve = page.locator("figure", has_text=GRADIENTS).locator("path.line").nth(3)
    assert attention.locator("svg[role=img]").evaluate("svg => svg.style.color") == (
        curve.get_attribute("stroke")
    )
    said = [each.locator("figcaption").inner_text() for each in (recurrent, attention)]
    parts = [re.search(r"Of the first token\s+1 part in ([\d,]+)", each) for each in said]
    assert all(parts)
    counts = [int(each[1].replace(",", "")) for each in parts if each]
    assert counts[0] > 10 * counts[1]

    slider = page.get_by_label("Kernel size of the convolution", exact=True)
    slider.focus()
    slider.press("ArrowRight")
    visit.until("location.search.includes('kernel=4')")
    visit.until(
        "[...document.querySelectorAll('h3')]"
        ".some(e => e.innerText === 'Convolution: 4 steps for 12 tokens')"
    )


def test_the_signal_hops_and_pales(visit: Any, browser: Any) -> None:
    """The first token's signal takes all steps of the chain, and one of attention."""
    page = browser.new_context(reduced_motion="no-preference").new_page()
    page.goto(visit.studio + "paths")  # the settings as they are: it goes by itself
    recurrent, attention = (page.locator(".compared figure").nth(i) for i in (0, 1))
    page.wait_for_selector(".sent")
    page.wait_for_function("""() => {
      const dot = document.querySelector(".compared figure .sent circle:last-child");
      const said = document.querySelector(".compared h3").textContent;
      const isPale = Number(dot?.getAttribute("fill-opacity")) < 0.2;
      return isPale && /^Recurrent: step (1\\d|2[0-2]) of 23$/.test(said);
    }""")
    assert attention.locator("h3").inner_text() == "Attention: 1 step"
    assert recurrent.locator("figcaption").inner_text() == "One word at a time."
    ended = """() => !document.querySelector(".sent") &&
      document.querySelector(".compared figcaption").textContent.includes("arrives")"""
    page.wait_for_function(ended)
    page.wait_for_function("() => document.querySelector('.measuring')?.hidden")
    assert recurrent.locator("h3").inner_text() == "Recurrent: 23 steps"
    assert re.search(r"Of “Anna”\s+1 part in 820\s+arrives \(LSTM\)", recurrent.inner_text())
    picture = "figure => figure.querySelector('.drawing').innerHTML"
    before = recurrent.evaluate(picture)
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(
        "() => /: step [1-9]\\d? of 23$/.test(document.querySelector('.compared h3').textContent)"
    )
    assert recurrent.evaluate(picture) != before
    # The picture may be drawn anew meanwhile, and keeps the dot.
    redrawn = "host => { host.redraw(); return host.querySelectorAll('.sent').length; }"
    assert recurrent.locator(".drawing").evaluate(redrawn) == 1
    page.wait_for_function(ended)
    assert recurrent.evaluate(picture) == before
    page.goto(visit.studio + QUICK)  # a picture that was chosen stands still
    page.wait_for_function("() => document.querySelector('.measuring')?.hidden")
    assert page.locator(".sent").count() == 0
    page.context.close()
    still = visit.open("paths")
    assert still.locator(".sent").count() == 0
    assert not still.get_by_role("button", name="Play").is_visible()


def test_gradients_are_the_library_s(visit: Any) -> None:
    page = visit.open(QUICK + "&window=4&keep=2")
    page.get_by_text(CURVES).click()
    picture = page.locator("figure", has_text=GRADIENTS)
    expected = [
        *(
            recurrent_reach(cell, 16, width=16, num_layers=1, keep_bias=2.0)
            for cell in ("lstm", "rnn", "gru")
        ),
        transformer_reach(16, transformer()),
        transformer_reach(16, transformer(window=4)),
    ]
    # Nothing is felt beyond the window, and nothing is drawn there.
    assert np.count_nonzero(expected[-1].mean) == 4
    assert visit.numbers_of(picture, 3) == [visit.shown(each.relative[3]) for each in expected]
    assert picture.locator("tbody tr").nth(3).locator("th").inner_text() == "3"
    page.get_by_label("Gradients", exact=True).select_option("mean")
    visit.idle()
    rows = visit.numbers_of(picture, 3)
    assert rows == [visit.shown(each.mean[3]) for each in expected]
    assert visit.fact("far-lstm") == visit.shown(expected[0].mean[15], 3)
    assert visit.fact("far-transformer-window") == "0"

    page.get_by_label("LSTM", exact=True).uncheck()
    page.get_by_label("The Transformer's norms").select_option("pre")
    visit.until("document.querySelectorAll('[data-fact=far-lstm]').length === 0")
    visit.idle()
    pre = transformer_reach(16, transformer(norm_placement="pre"))
    assert visit.fact("far-transformer") == visit.shown(pre.mean[15], 3)
    before = visit.fact("far-rnn")
    page.get_by_role("button", name="Draw other random weights").click()
    visit.until(f"document.querySelector('[data-fact=far-rnn]').innerText !== '{before}'")
    assert "seed=2" in visit.address()
    page.go_back()
    visit.until(f"document.querySelector('[data-fact=far-rnn]').innerText === '{before}'")


def test_a_model_of_one_s_own(visit: Any, given: Any) -> None:
    page = visit.open(QUICK)
    page.get_by_label("Your own model").select_option("t5")
    visit.until("document.querySelector('.own').innerText.includes('Type some sentences')")
    page.get_by_label("Sentences for your model").fill("the cat sat\n\na dog ran on a mat")
    page.get_by_label("Stack of your model", exact=True).select_option("encoder")
    visit.until("document.querySelector('.own').innerText.includes('wrote')")
    visit.until("document.querySelector('.body').innerText.includes('encoder of t5')")
    visit.idle()
    subject = inspect.load(given.t5)
    readings = inspect.read_all(subject, ["the cat sat", "a dog ran on a mat"])
    expected = model_reach(subject, readings, "encoder")
    found = visit.numbers_of(page.locator("figure", has_text=GRADIENTS), 2)
    assert found[-1] == visit.shown(expected.relative[2])
    address = visit.address()
    assert "model=t5" in address
    assert "stack=encoder" in address
    page.reload()
    visit.idle()
    assert page.locator(".legend", has_text="encoder of t5").count() == 1
    page.get_by_label("Your own model").select_option("")
    visit.until("document.querySelectorAll('.legend li').length > 0")
    visit.until("!document.querySelector('.body').innerText.includes('encoder of t5')")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\x07\x00", "tokenizer"),
        ("القطة", "wrote|tokenizer"),
        ("🐈‍⬛", "wrote|tokenizer"),
        ("x" * 100_000, "100,000 characters"),
        ("a\n" * 9, "9 sentences"),
    ],
)
def test_any_text_is_answered(visit: Any, text: str, said: str) -> None:
    page = visit.open(QUICK + "&cells=rnn&model=learned")
    page.get_by_label("Sentences for your model").fill(text)
    page.wait_for_function(
        "said => new RegExp(said).test(document.querySelector('.own').innerText)", arg=said
    )
    # Whatever was wrong with the text, the new networks are there.
    assert page.locator("figure", has_text=GRADIENTS).locator("path.line").count() >= 3


def test_numbers_out_of_range_are_refused(visit: Any) -> None:
    page = visit.open("paths?length=5000")
    page.wait_for_selector(".problem")
    assert "length" in page.locator(".problem").first.inner_text()
    assert page.evaluate("document.querySelectorAll('.problem').length") == 2


def test_the_curve_is_read_with_keys(visit: Any) -> None:
    page = visit.open(QUICK + "&cells=gru")
    page.get_by_text(CURVES).click()
    chart = page.locator("figure", has_text=GRADIENTS).locator("svg[role=img]")
    chart.focus()
    chart.press("Home")
    chart.press("End")
    readout = page.locator("figure", has_text=GRADIENTS).locator(".readout").inner_text()
    assert re.match(r"distance 15: Transformer [\d.]+, GRU [\d.]+", readout)


def test_counts_are_there_before_the_gradients_and_those_can_be_stopped(visit: Any) -> None:
    """The measuring is held back: the counts stand already, and a button gives it up."""
    page = visit.page
    measured: list[Any] = []

    def measure(route: Any) -> None:
        measured.append(route)
        if len(measured) <= 2:
            route.continue_()  # the third is never answered

    page.route("**/api/paths/measure", measure)
    page.goto(f"{visit.studio}{QUICK}")
    page.wait_for_selector("figure:has(path.route)")
    assert page.locator("h3", has_text="Recurrent: 15 steps").count() == 1
    visit.until("document.querySelector('.measuring').innerText.includes('(3 of 15)')")
    bar = page.locator(".measuring progress")
    assert abs(float(bar.evaluate("bar => bar.value")) - 2 / 15) < 1e-6
    page.get_by_text(CURVES).click()
    legend = page.locator("figure", has_text=GRADIENTS).locator(".legend")
    assert legend.inner_text().split("\n") == ["LSTM", "RNN"]  # those that were measured
    page.get_by_role("button", name="Stop").click()
    visit.until("document.querySelector('.measuring').innerText.includes('Stopped after 2 of 15')")
    visit.idle()
    page.unroute("**/api/paths/measure")
    page.get_by_role("button", name="Measure the rest").click()
    visit.until("document.querySelector('.measuring')?.hidden")
    assert page.locator("figure", has_text=GRADIENTS).locator(".legend li").count() == 5
    assert visit.requests.count(f"{visit.studio}api/paths/measure") == 3 + 13


def test_the_fading_signal_is_drawn(visit: Any) -> None:
    page = visit.open(QUICK)
    row = visit.numbers_of(page.locator("figure", has_text="The signal of each token"), 1)
    expected = recurrent_reach("rnn", 16, width=16, num_layers=1)
    assert row == [visit.shown(float(value), 3) for value in expected.relative[::-1]]


def test_a_sentence_is_followed(visit: Any) -> None:
    """The words stand in both pictures; what translators lose is measured below, in sight."""
    page = visit.open("paths?cells=rnn")
    assert page.locator(".sending h2").inner_text() == "How does “her” know of “Anna”?"
    for picture in page.locator(".compared .drawing").all():
        words = picture.locator(".chip-word").all_text_contents()
        assert (len(words), words[0], words[-1]) == (24, "Anna", "her")
        assert picture.locator("rect.on").count() == 24
    title = page.locator("h2", has_text="Does it matter?")
    assert title.inner_text().endswith(
        "BLEU at 17 words: LSTM 12.4, with attention 26.8, Transformer 23.4"
    )
    names = page.locator("section", has=title).locator(".legend li").all_text_contents()
    assert sorted(names) == ["LSTM with attention", "LSTM, one vector", "Transformer"]
    # Beside it, what attention costs: as much as the other at the width of the vectors.
    costs = page.locator("figure", has_text="Multiply-adds by the length of the text")
    assert costs.locator(".marked").text_content() == "64 tokens"
    attends, goes_on = visit.numbers_of(costs, 6)
    assert attends == goes_on == "524,288"  # 2 layers · 64 · 64 · 64
    page.set_viewport_size({"width": 390, "height": 900})
    visit.until("!document.querySelector('.compared .chip-word')")  # too wide for a row
    assert page.locator(".compared .drawing").first.locator("text").count() == 24
