"""The builder: parts added in order, parts left out, what flows, and a training here and now."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from heedful.apps.studio.course import read_course
from heedful.apps.studio.pages import block_page, without_page
from heedful.apps.studio.small_translator import VARIANTS, read_records
from heedful.apps.studio.workspace import Workspace
from heedful.models.build import build_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.pretrained.catalogue import models_at_hand

BAHDANAU = {"cell": "lstm", "attention": "additive", "feeding": "context", "readout": "maxout"}
PATIENCE = 150_000
"""Milliseconds for a training of a few updates, on a busy machine."""


def parts(page: Any) -> list[str]:
    """The parts that the drawing shows, from the bottom of the encoder on."""
    return [str(each.get_attribute("data-part")) for each in page.locator("[data-part]").all()]


def add(page: Any) -> Any:
    return page.get_by_role("button", name="Next part:")


def test_parts_are_added_in_the_papers_order(visit: Any) -> None:
    page = visit.open("builder?parts=0")
    assert parts(page) == []
    assert "A network needs vectors" in page.locator(".assembling").inner_text()
    seen: list[str] = []
    while add(page).is_visible():
        name = add(page).inner_text().removeprefix("Next part: ")
        marked = page.locator("[data-next]").first
        assert marked.get_attribute("data-next") == name
        seen.append(name)
        (marked if len(seen) % 2 else add(page)).click()  # the part in the outline, or the button
    assert seen == [
        "Embedding",
        "Positions",
        "Self-attention",
        "Residual + norm",
        "Feed-forward",
        "Residual + norm",
        "Repeat",
        "Decoder: embedding",
        "Masked self-attention",
        "Cross-attention",
        "Feed-forward",
        "Repeat",
        "Output projection",
        "Softmax",
    ]
    encoder = ["embedding", "positions", "self", "self_sum", "ff", "ff_sum"]
    decoder = ["d_embedding", "d_positions", "d_self", "d_self_sum", "cross", "cross_sum"]
    assert parts(page) == [*encoder, *decoder, "d_ff", "d_ff_sum", "output", "softmax"]
    assert "Nothing is missing" in page.locator(".assembling").inner_text()
    page.go_back()  # each part is a step to go back from
    visit.until("document.querySelector('[data-next]')")
    assert "Logits are no probabilities yet" in page.locator(".assembling").inner_text()
    page.locator("[data-part=ff]").click()  # a part is built up to, and the newest taken back
    assert parts(page) == encoder[:-1]
    page.locator("[data-part=ff]").click()
    assert parts(page) == encoder[:-2]
    page.locator(".asm-box.ghost", has_text="Feed-forward").last.click()
    assert parts(page) == [*encoder, *decoder, "d_ff", "d_ff_sum"]
    page.get_by_role("button", name="Show it complete").click()
    assert len(parts(page)) == 16
    page.get_by_role("button", name="Build it from the start").click()
    assert parts(page) == []


def test_the_page_opens_with_words_that_meet(visit: Any) -> None:
    page = visit.open("builder")
    assert parts(page) == ["embedding", "positions", "self"]
    assert page.locator("[data-next]").get_attribute("data-next") == "Residual + norm"
    # One thing is shown: sizes are for who plans a model.
    assert "words look at each other" in page.locator("[data-part=self]").text_content()
    assert "×" not in page.locator(".assembly-legend").inner_text()
    page.locator(".plan > summary").click()
    page.locator("[data-part=self]", has_text="8 × 3 × 3").wait_for()
    assert "heads × queries × keys" in page.locator(".assembly-legend").inner_text()
    page.locator(".plan > summary").click()
    page.get_by_role("button", name="Take back").click()
    assert parts(page) == ["embedding", "positions"]
    page = visit.open("builder?parts=0")
    assert page.locator(".asm-box.ghost").count() == 15  # all parts but the one to add
    assert visit.fact("so-far") == "0 of 63.1 M"
    assert page.get_by_label("Begin with").is_hidden()  # sizes are for who plans a model
    top = page.locator(".asm-box", has_text="Softmax").bounding_box()["y"]
    page.locator("[data-next]").click()
    visit.until("document.querySelector('[data-part=embedding]')")
    assert parts(page) == ["embedding"]
    assert page.locator(".asm-box", has_text="Softmax").bounding_box()["y"] == top  # all stay
    # What is switched off is seen in the whole model, which then stays.
    page = visit.open("builder")
    box = page.locator(".toggles").get_by_label("Residual connections")
    box.uncheck()
    visit.until("location.search.includes('parts=99')")
    assert "softmax" in parts(page)
    visit.idle()
    # What is lost stands beside the drawing, which stays where it is.
    top = page.locator(".assembly-drawing").bounding_box()["y"]
    beside = page.locator(".switched-off").bounding_box()
    drawing = page.locator(".assembly-drawing").bounding_box()
    assert beside["x"] > drawing["x"] + drawing["width"]
    box.check()
    visit.idle()
    assert page.locator(".assembly-drawing").bounding_box()["y"] == top
    assert visit.fact("total") == "63,082,496"


def test_numbers_of_a_model_stand_between_the_parts(sight: Any) -> None:
    models = models_at_hand()
    if "en-de" not in models:
        pytest.skip("en-de is not at hand")
    page = sight.open("builder?parts=4")
    strips = page.locator("[data-strip]").evaluate_all("(all) => all.map((e) => e.dataset.strip)")
    assert strips == ["embedding", "positions", "self", "self_sum"]
    colours = page.locator("[data-strip=self] rect").evaluate_all(
        "(all) => all.map((e) => e.attributes.fill.value)"
    )
    assert len(colours) == 36
    assert len(set(colours)) > 20
    # The weights of attention are the widths of its lines.
    body = block_page.FlowRequest(model="en-de", text="I love cats.", layer=0)
    flow = block_page.flow(body, Workspace([models["en-de"].path]))
    rows = next(each["channels"] for each in flow["parts"] if each["key"] == "self.weights")
    widths = page.locator("[data-within=self]").evaluate_all(
        "(all) => all.map((e) => parseFloat(e.style.strokeWidth))"
    )
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
    assert widths == pytest.approx([0.8 + 6 * rows[j][i] for i, j in pairs], abs=1e-3)
    page = sight.open("builder?parts=99")
    assert "Ich liebe Katzen" in page.locator(".assembling").inner_text()
    assert page.locator(".assembling .classes li").count() == 3
    # What is written looks at the words of the source that come next, in one of the blocks.
    body = block_page.FlowRequest(model="en-de", text="I love cats.", stack="decoder", layer=1)
    flow = block_page.flow(body, Workspace([models["en-de"].path]))
    rows = next(each["channels"] for each in flow["parts"] if each["key"] == "cross.weights")
    words = page.locator(".asm-looks text").all_text_contents()
    assert words[::2] == ["I", "love", "cats"]
    assert words[1::2] == [f"{100 * rows[i][i]:.0f} %" for i in range(3)]
    # Of a model without a part, or of other ones, nobody has computed any.
    page = sight.open("builder?residual=0")
    assert page.locator("[data-strip]").count() == 0
    assert sight.open("builder?family=recurrent").locator("[data-strip]").count() == 0


def test_a_recurrent_decoder_is_counted_by_its_parts(visit: Any) -> None:
    page = visit.open("builder?family=recurrent")
    shape = TranslatorShape.parse({"recurrent": BAHDANAU})
    model: Any = build_model(translator_spec(shape, 37_000, 37_000))
    decoder = model.decoder.blocks[0].cross_attention
    layers = sum(each.numel() for each in decoder.layers.parameters()) / 1e6
    others = sum(each.numel() for each in decoder.parameters()) / 1e6 - layers
    box = page.locator("[data-part=d_self]").text_content()
    assert f"{layers:.1f} M" in box
    assert "in 6 layers" in box
    assert f"{others:.2f} M" in page.locator("[data-part=cross]").text_content()
    # A table that several parts use has its size once.
    for part in ("d_embedding", "output"):
        assert "same table" in page.locator(f"[data-part={part}]").text_content()
    # Its layers read word after word and need no positions; nobody knows what it writes.
    assert page.locator("[data-part$=positions]").count() == 0
    assert page.locator(".asm-word.next").text_content() == "?"
    assert 'positions = "none"' in page.get_by_label("Settings of this model").input_value()
    # There are no switches, and no shares of recorded runs.
    assert not page.locator(".toggles").is_visible()
    said = page.locator("section", has_text="What breaks without a part").inner_text()
    assert "in blocks of attention" in said
    assert "Switch off" not in said
    assert "shares above" not in said
    visit.open("builder?family=recurrent&parts=8")
    assert visit.fact("so-far") == "47.3 M of 47.3 M"
    page = visit.open("builder?share_embeddings=none")
    assert "18.9 M" in page.locator("[data-part=d_embedding]").text_content()
    assert "18.9 M" in page.locator("[data-part=output]").text_content()


def test_a_part_that_is_switched_off_is_named_with_its_recorded_runs(visit: Any) -> None:
    page = visit.open("builder?parts=99")
    total = visit.fact("total")
    records = read_records()["runs"]
    for toggle, name, words, setting in (
        ("Residual connections", "residual", "without residual connections", "residual = false"),
        ("Feed-forward network", "feedforward", "the feed-forward network", "feedforward = 0"),
        ("Scaling by 1", "scale", "without 1/√dₖ", "attention_scale = 1.0"),
        ("Norms", "norm", "without norms", 'norm_placement = "none"'),
        ("Positions", "positions", "without positions", 'positions = "none"'),
        ("Several heads", "heads", "with one head", "num_heads = 1\n"),
    ):
        box = page.locator(".toggles").get_by_label(toggle)
        box.uncheck()
        visit.idle()
        assert setting in page.get_by_label("Settings of this model").input_value()
        exact = [run["exact"] for run in records[name]]
        line = page.locator(".broken li")
        assert words in line.inner_text()
        assert (
            f"{visit.shown(round(100 * sum(exact) / len(exact), 1), 3)}\u00a0%" in line.inner_text()
        )
        assert page.locator(".lost").count() == 1
        assert page.locator("[data-fact=nearest]").count() == 0  # none is published so
        wrong = page.locator(".assembling .written-without")  # under the heading
        samples = read_records()["samples"]  # of which a wrong one is shown, if there is any
        errs = any(each["texts"][name] != each["reference"] for each in samples)
        assert wrong.locator(".is-wrong").count() == errs
        assert page.locator(".assembling a").get_attribute("href").endswith("without")
        box.check()
        visit.idle()
    assert visit.fact("total") == total
    gone = visit.open("builder?residual=0&network=0&positions=none")
    names = gone.locator(".asm-box.gone title").all_text_contents()
    assert sorted(set(names)) == ["no feed-forward network", "no positions", "no residual"]
    # What is shown of a part's size is what the library counts.
    page = visit.open("builder?parts=99")
    page.locator(".plan > summary").click()
    page.locator("[data-part=self]", has_text="1.05 M").wait_for()
    visit.idle()
    text = page.locator("[data-part=self]").text_content()
    assert "1.05 M" in text
    assert "8 × 3 × 3" in text


def test_the_nearest_published_model_is_named(visit: Any) -> None:
    page = visit.open("builder?width=1024&num_heads=16&feedforward=4096")
    assert "transformer-big" in page.locator(".facts").inner_text()
    assert page.locator(".sizes li").count() <= 10
    row = page.locator(".sizes .near")
    assert "transformer-big (nearest)" in row.inner_text()
    # A dot stands between the powers of ten as the logarithm says.
    at = "(each) => parseFloat(each.style.left)"
    powers = page.locator(".powers .track > *")
    names = powers.all_inner_texts()
    assert names[:3] == ["10 M", "100 M", "1 B"]
    ten, hundred = (powers.nth(i).evaluate(at) for i in (0, 1))
    big = 214e6 / 1e7
    dot = row.locator(".dot").evaluate(at)
    assert dot == pytest.approx(ten + (hundred - ten) * math.log10(big), abs=0.1)
    assert "214 M" in row.inner_text()


def test_what_is_built_so_far_is_counted(visit: Any) -> None:
    visit.open("builder?parts=0")
    assert visit.fact("so-far") == "0 of 63.1 M"
    assert visit.page.locator("[data-fact]").count() == 1  # nothing of what is not built yet
    visit.open("builder?parts=7")  # 6 blocks of the encoder and the table
    assert visit.fact("so-far") == "37.9 M of 63.1 M"
    page = visit.open("builder?parts=13")
    assert visit.fact("so-far") == "63.1 M of 63.1 M"
    assert page.get_by_label("Begin with").input_value() == "transformer-base"


@pytest.mark.parametrize("query", ["parts=3", "parts=99", "family=recurrent"])
def test_no_line_of_the_assembly_crosses_its_words(visit: Any, query: str) -> None:
    page = visit.open(f"builder?{query}")
    crossed = page.evaluate(
        """() => {
          const box = (each) => each.getBoundingClientRect();
          const lanes = [...document.querySelectorAll(".asm-lane")].map(box);
          const words = ".asm-box .name, .asm-box .size, .asm-box .detail";
          return [...document.querySelectorAll(words)].filter((each) => lanes.some((lane) => {
            const [own, x] = [box(each), (lane.left + lane.right) / 2];
            return own.left < x && x < own.right;
          })).map((each) => each.textContent);
        }"""
    )
    assert crossed == []


def test_nothing_moves_where_motion_is_not_wanted(visit: Any, browser: Any) -> None:
    page = visit.open("builder")
    assert page.locator(".asm-dot").count() == 0
    assert not page.get_by_role("button", name="Stop the flow").is_visible()
    moving = browser.new_context(reduced_motion="no-preference").new_page()
    moving.goto(visit.studio + "builder?parts=3")
    dots = ".asm-dot[visibility=visible]"
    moving.wait_for_selector(dots)
    moving.wait_for_selector(".asm-box.lit", state="attached")
    # In attention a word takes the colours of the others; the network works on each alone.
    moving.goto(visit.studio + "builder?parts=5")
    dot = ".asm-dot[data-lane='0'][data-met='{}'] .asm-worked[visibility={}]"
    for met, worked in (("", "hidden"), ("1,2", "hidden"), ("1,2", "inherit")):
        moving.wait_for_selector(dot.format(met, worked), state="attached")
    moving.get_by_role("button", name="Stop the flow").click()
    moving.wait_for_function("() => !document.querySelector('.asm-dot')")
    moving.wait_for_function("() => location.search.includes('flow=0')")
    moving.get_by_role("button", name="Let it flow").click()
    moving.wait_for_selector(dots)
    moving.context.close()


def test_the_course_asks_what_the_records_say() -> None:
    lesson = next(each for each in read_course().lessons if each.page == "without")
    question = next(q for q in lesson.questions if "not a single line right" in q.text)
    assert question.options[question.right] == "residual connections"
    records = read_records()["runs"]
    assert max(run["exact"] for run in records["residual"]) == 0
    for name in ("heads", "feedforward"):
        assert min(run["exact"] for run in records[name]) > 0


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, workspace: Any) -> Iterator[None]:
    """Trainings of a few updates."""
    monkeypatch.setattr(without_page, "STEPS", 10)
    monkeypatch.setattr(without_page, "PAIRS", 400)
    monkeypatch.setattr(without_page, "HELD_OUT", 8)
    yield
    workspace.training.stop()


@pytest.mark.usefixtures("short")
def test_a_choice_is_trained_here_and_seen_in_two_tabs(
    visit: Any, visit_at: Any, studio: str
) -> None:
    page = visit.open("builder?residual=0&encoder_layers=1&decoder_layers=1")
    page.get_by_role("button", name="Train it now").click()
    page.get_by_role("button", name="Stop", exact=True).wait_for()
    other = visit_at(studio).open("without")
    assert other.get_by_role("button", name="Train it now").is_disabled()
    for each in (page, other):
        each.get_by_text(re.compile("^Trained .* 10 of 10 updates")).wait_for(timeout=PATIENCE)
        assert each.get_by_label("What the model trained here writes").is_visible()
    said = page.locator(".live-state").inner_text()
    assert said.startswith("Trained without residual connections: 10 of 10 updates")
    assert "trained here" in page.locator(".legend").first.inner_text()
    assert page.get_by_role("button", name="Train it now").is_enabled()

    other.get_by_role("button", name="Train it now").click()
    other.get_by_role("button", name="Stop", exact=True).click()
    other.get_by_text("Stopped without positions").wait_for()
    page = visit.open("builder")  # whose parts nobody has trained
    page.get_by_role("button", name="Train it now").wait_for()
    visit.idle()
    assert page.locator(".live-state").inner_text() == ""


def test_the_page_of_left_out_parts(visit: Any, axe: str) -> None:
    page = visit.open("without?shown=everything&shown=positions&shown=deep&shown=norm")
    rows = page.locator(".ablated li")
    marks = [each.get_attribute("title") for each in page.locator(".against").all()]
    references = [each.reference for each in VARIANTS.values() if each.reference]
    assert [each.partition(":")[0] for each in marks] == [VARIANTS[r].title for r in references]
    records = read_records()
    exact = [float(each.get_attribute("data-value") or -1) for each in rows.all()]
    means = [sum(r["exact"] for r in runs) / len(runs) for runs in records["runs"].values()]
    assert exact == pytest.approx(means)
    # Parts whose runs do as well as those with everything are marked without a click.
    needless = rows.filter(has_text="no clear difference")
    assert needless.count() == 2
    assert "feed-forward" in needless.first.inner_text()
    # Each row says what its model writes for one line, as the table of all lines does.
    whole, positions = (rows.nth(i).locator(".sample") for i in (0, 2))
    assert whole.get_attribute("title") == "15.04.99"
    assert positions.get_attribute("title") != "15.04.99"
    assert rows.locator(".sample").count() == rows.count()
    # The curve that grows while a model trains is in sight beside its button.
    grows = page.locator("figure", has_text="As training goes on").bounding_box()
    press = page.get_by_role("button", name="Train it now").bounding_box()
    assert press["y"] < grows["y"]
    assert grows["y"] + 400 < 800
    # A list for each reference, in which the others are compared with it.
    first = page.locator(".ablated li:first-child label").all_inner_texts()
    assert [each.strip() for each in first] == [
        VARIANTS[name].title for name in ("everything", "deep", "six", "wide")
    ]
    legend = page.locator(".legend li")
    before = legend.count()
    assert legend.filter(has_text="without 1/√dₖ").count() == 0
    rows.filter(has_text="without 1/√dₖ").get_by_role("checkbox").check()
    legend.filter(has_text="without 1/√dₖ").wait_for()
    assert legend.count() == before + 1
    assert "shown=scale" in visit.address()
    reasons = page.locator(".reasons p:not(.note)")
    assert reasons.count() == 3  # a reference has none
    # A verdict follows from the scores, and is against the translator's own reference.
    said = reasons.filter(has_text="12 layers without norms").inner_text()
    assert VARIANTS["deep"].title in said
    exact = {name: [run["exact"] for run in records["runs"][name]] for name in ("norm", "deep")}
    assert (max(exact["norm"]) < min(exact["deep"])) == ("Measured" in said)
    for figure in ("loss", "train"):
        page.get_by_label("Curves of").select_option(figure)
        visit.idle()
        assert page.locator(".problem").count() == 0
    marks = page.locator("[aria-label='The same lines, by the first run of each'] .is-right")
    expected = sum(
        line["texts"][name] == line["reference"]
        for line in records["samples"]
        for name in ("everything", "positions", "deep", "norm", "scale")
    )
    assert marks.count() == expected
    # What is wrong is shown from the mistake on, and not cut off before it.
    wrong = page.locator(".is-wrong", has_text="Freitag, 20. Januar 1970").locator(".differs")
    assert wrong.inner_text() == "0. Januar 1970"
    # Curves at 0 do not hide each other.
    page = visit.open("without?shown=everything&shown=residual&shown=norm&shown=post")
    lines = page.locator("figure", has_text="As training goes on").locator("path.line[stroke]")
    moved = lines.evaluate_all("lines => lines.map((line) => line.getAttribute('transform'))")
    assert [each for each in moved if each] == ["translate(0 -3)", "translate(0 -6)"]
    visit.check_everyone_can_use_it(axe)


def test_everyone_can_use_the_builder(visit: Any, axe: str) -> None:
    visit.open("builder?parts=9&residual=0")
    visit.check_everyone_can_use_it(axe)
