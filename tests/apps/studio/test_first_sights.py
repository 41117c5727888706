"""What pages of models at hand show when they open, before anything is chosen."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from heedful.apps.studio.page import NoSettings
from heedful.apps.studio.pages.masks_page import DrawRequest, draw, read_sentence
from heedful.apps.studio.pages.translate_page import AlternativesRequest, alternatives
from heedful.apps.studio.workspace import Workspace
from heedful.nn.positions import Rotary
from heedful.nn.spec import RotarySpec
from heedful.pretrained.catalogue import models_at_hand

TIRED = "The+animal+did+not+cross+the+street+because+it+was+too+tired."


def named() -> list[str]:
    """The values of layer and head of the encoder that the card of `en-de` names."""
    card = models_at_hand()["en-de"].card()
    [head] = [each for each in card.example_heads if each.part == "encoder"]
    return [str(head.layer - 1), str(head.head - 1)]


@pytest.mark.parametrize(("end", "noun"), [("tired", "animal"), ("wide", "street")])
def test_the_start_shows_what_the_pronoun_means(sight: Any, end: str, noun: str) -> None:
    half = sight.open("").locator(f"[data-end='{end}']")
    half.locator(".word-line").first.wait_for()
    word = half.get_by_role("button", pressed=True).inner_text()
    assert re.match(f"“{word}” looks at “{noun}”: (9.|100) %", half.locator(".said").inner_text())
    half.get_by_role("button", name="Straße").hover()
    assert "“Straße” looks at “street”" in half.locator(".said").inner_text()
    half.get_by_role("link", name="All heads").click()
    sight.page.locator(".attention .readout", has_text=f"looks at “{noun}”").wait_for()
    # The page of translations shows the same head for the pronoun, and the mean for other words.
    page = sight.open(
        f"translate?text=The+animal+did+not+cross+the+street+because+it+was+too+{end}."
    )
    page.get_by_text(
        re.compile(f"“{word}” looks at “{noun}” (9.|100) %.* Head 4 of layer 3")
    ).wait_for()
    page.locator("#translation").get_by_role("button", name="Straße").hover()
    page.get_by_text(re.compile("“Straße” looks at “street” .* Mean over the heads")).wait_for()


def test_the_start_translates_what_is_typed_and_names_the_head(sight: Any) -> None:
    page = sight.open("")
    half = page.locator("[data-end='tired']")
    half.locator(".word-line").first.wait_for()
    assert "17 pages in 10 chapters" in page.locator(".about").inner_text()
    assert "one of 24 heads" in page.locator(".opening").inner_text()
    heads = page.get_by_role("group", name="Head").get_by_role("button")
    assert [heads.nth(i).get_attribute("aria-pressed") for i in (2, 3)] == ["false", "true"]
    before = half.locator(".said").inner_text()
    heads.nth(0).click()
    assert half.locator(".said").inner_text() != before
    page.get_by_label("Type a sentence").fill("The girl took the lamp.")
    half.get_by_role("button", name="Lampe").wait_for()
    assert page.locator("[data-end='wide']").is_hidden()
    # Nothing is followed without the pronoun: all lines are there until a word is pointed at.
    assert half.get_by_role("button", pressed=True).count() == 0
    half.get_by_role("button", name="Lampe").hover()
    assert half.get_by_role("button", pressed=True).inner_text().startswith("Lampe")
    # Of a pronoun the lines are picked out.
    page.mouse.move(0, 0)
    page.get_by_label("Type a sentence").fill("The girl took the lamp because it was new.")
    half.get_by_role("button", name="neu").wait_for()
    assert half.get_by_role("button", pressed=True).inner_text() == "sie"
    page.get_by_role("button", name="Back to the two sentences").click()
    half.get_by_role("button", name="müde").wait_for()
    assert page.locator("[data-end='wide']").is_visible()


def test_the_start_writes_word_by_word(browser: Any, home: str) -> None:
    page = browser.new_context(reduced_motion="no-preference").new_page()
    page.goto(home)
    half = page.locator("[data-end='tired']")
    half.get_by_role("button", name="müde").wait_for()
    running = "document.querySelector('.opening').getAnimations({ subtree: true }).length"
    assert page.evaluate(running) > 20
    again = half.get_by_role("button", name="Again")
    place = again.bounding_box()
    page.wait_for_timeout(2500)
    assert page.evaluate(running) > 0  # slow enough to be read
    page.wait_for_function(f"() => {running} === 0", timeout=10_000)
    assert again.bounding_box() == place  # what is said comes beside it
    assert "“es” looks at “animal”" in half.locator(".said").inner_text()


def test_lines_of_the_start_lead_to_words_that_are_there(sight: Any) -> None:
    """A head looks at the mark of the end, too, which is not shown."""
    half = sight.open("").locator("[data-end='tired']")
    half.locator(".word-line").first.wait_for()
    starts = (
        "lines => lines.map((line) => line.getAttribute('d').match(/^M(\\S+) (\\S+)C/).slice(1))"
    )
    for name in ("Straße", "nicht,", "weil", "zu", "war."):
        half.get_by_role("button", name=name, exact=True).hover()
        found = half.locator(".word-line").evaluate_all(starts)
        assert all(float(x) > 0 and float(y) > 0 for x, y in found), name
        assert "</s>" not in half.locator(".said").inner_text()


def test_the_built_model_writes_the_word_that_a_model_computes(sight: Any) -> None:
    place = Workspace([models_at_hand()["en-de"].path])
    asked = AlternativesRequest(model="en-de", line="I love cats.", before="Ich liebe", count=3)
    best = alternatives(asked, place)["alternatives"][0]
    word = best["word"].removesuffix(".")
    page = sight.open("builder?parts=99")
    page.locator(".asm-word.next").get_by_text(word, exact=True).wait_for()
    assert "en-de" in page.locator(".assembly-legend").inner_text()
    page.locator(".toggles").get_by_label("Norms").uncheck()
    page.locator(".asm-word.next", has_text="?").wait_for()
    assert "en-de" not in page.locator(".assembly-legend").inner_text()


def test_the_tour_follows_the_pronoun(sight: Any) -> None:
    page = sight.open("tour?stop=6")
    assert page.locator("[data-part='weights'] [aria-pressed='true']").text_content() == "·it·it"
    assert "of its attention to “cat”" in page.locator(".told p").inner_text()
    assert [page.locator(".side select").nth(i).input_value() for i in (-2, -1)] == named()


def test_the_decoder_looks_back_and_at_the_source(sight: Any) -> None:
    page = sight.open("tour?stop=9")
    newest = page.locator(".way-piece.written.chosen")
    assert newest.text_content() == "<s>"
    assert page.locator(".way-coming").count() == 4
    assert "hidden: to come" in page.locator("[data-part='back']").text_content()
    page.get_by_role("button", name="Next", exact=True).click()
    page.locator("[data-part='source'] .carried").first.wait_for()
    assert newest.text_content() == "<s>"
    assert page.locator("[data-part='source'] .carried").count() == 12  # pieces of the sentence
    page.get_by_role("button", name="Next", exact=True).click()
    sight.until("document.querySelector('.told h2').textContent.includes('adds up')")
    named = page.locator("[data-part='stream'] .way-name").all_text_contents()
    assert named[1:4] == ["+ self-attention", "+ cross-attention", "+ feed-forward"]
    page.get_by_role("button", name="Next", exact=True).click()
    sight.until("document.querySelector('.way-next-name').textContent.startsWith('8,000 logits')")


def test_shares_of_a_long_translation_add_up(sight: Any) -> None:
    """Words that have no column of their own any more share the first one."""
    page = sight.open("tour?stop=9")
    parts = page.locator(".drawing [data-part]")
    names = [parts.nth(i).get_attribute("data-part") for i in range(parts.count())]
    assert names == ["text", "pieces", "memory", "back"]
    page.get_by_role("button", name="Let it write").click()
    page.locator("#written button").nth(6).wait_for()
    page.get_by_role("button", name="Stop writing").click()
    written = page.locator("#written button").count() + 1  # and the sign to begin
    pieces = page.locator(".way-piece.written").all_text_contents()
    assert pieces[0] == f"{written - 3} earlier"
    assert len(pieces) == 4
    shares = page.locator("[data-part='back'] .carried")
    assert sum(float(shares.nth(i).get_attribute("data-share")) for i in range(4)) == (
        pytest.approx(1, abs=1e-4)
    )


def test_a_stop_past_the_last_one_is_the_last_one(sight: Any) -> None:
    page = sight.open("tour?stop=20")
    sight.until("location.search.includes('stop=13')")
    assert page.locator(".map [aria-current]").inner_text() == "Next word"
    # A language model has no stops of a decoder that reads a source.
    sight.open("tour?model=english&stop=20")
    sight.until("location.search.includes('stop=11')")


def test_fourteen_pieces_stand_side_by_side(sight: Any) -> None:
    page = sight.open(f"tour?stop=6&text={TIRED}")
    page.locator("[data-part='weights'] .way-row").first.wait_for()
    wide, room = page.evaluate(
        "() => ['scrollWidth', 'clientWidth']"
        ".map((each) => document.querySelector('.tour .drawing')[each])"
    )
    assert wide <= room
    tops = page.evaluate(
        "() => [...document.querySelectorAll('.map > ol > li')]"
        ".map((each) => each.getBoundingClientRect().bottom)"
    )
    assert max(tops) - min(tops) < 1  # the map is one line


def test_step_by_step_opens_on_the_word_that_an_example_is_about(sight: Any) -> None:
    page = sight.open("steps?on=model&stage=4")
    assert page.locator(".word-row [aria-pressed='true']").inner_text() == "·it"
    fields = page.locator(".side select")
    assert [fields.nth(i).input_value() for i in (-3, -2, -1)] == ["encoder", *named()]
    rows = page.locator("section.reached .sums tr")
    weights = {row.split()[1]: float(row.split()[-1]) for row in rows.all_inner_texts()}
    assert max(weights, key=lambda word: weights[word]) == "·cat"
    assert page.locator(".formula mark").inner_text() == "softmax"


@pytest.mark.parametrize(
    ("part", "says"), [("cross", "“sie” looks at “cat”"), ("encoder", "“it” looks at “cat”")]
)
def test_each_part_opens_at_its_own_head(sight: Any, part: str, says: str) -> None:
    page = sight.open(f"attention?part={part}")
    page.get_by_text(says).wait_for()
    assert "0.000" not in page.locator(".readout").first.inner_text()
    effect = page.get_by_text("in Why this word?").get_attribute("href")
    assert effect.startswith("/translate?model=en-de&text=The+cat")
    page.get_by_text("Names of the heads").click()
    lean = page.get_by_text("that only lean to a pattern")
    lean.click()
    lean.locator("xpath=..").locator("tbody tr").first.wait_for()  # filled once it is opened
    # The head that the card notes for a pronoun has that name, beside the pattern it leans to.
    names = page.locator(".several .label").all_inner_texts()
    assert names == (["what “sie” means"] if part == "cross" else [])
    rows = page.get_by_role("row").all_inner_texts()
    assert any("what “sie” means; separator" in row for row in rows) == (part == "cross")
    # A line is as wide as its weight is large.
    lines = page.locator(".link").evaluate_all(
        "all => all.map((e) => [Number(e.dataset.weight), e.getAttribute('stroke-width')])"
    )
    assert all(float(wide) == pytest.approx(0.5 + 8 * share, abs=0.01) for share, wide in lines)
    # A dotted frame is explained where there is one.
    framed = page.locator(".head-grid .named:not([aria-pressed='true'])").count()
    assert page.locator(".overview figcaption .example").count() == (framed > 0)


FRAMES = """
  (canvas) => {
    const [pen, one] = [[canvas.width, canvas.height], [1, 1]].map((size) =>
      new OffscreenCanvas(...size).getContext("2d", { willReadFrequently: true }));
    pen.drawImage(canvas, 0, 0);
    const { data, width } = pen.getImageData(0, 0, canvas.width, canvas.height);
    const ratio = canvas.width / canvas.clientWidth;
    return ["--glow", "--series-1"].map((name) => {
      one.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name);
      one.fillRect(0, 0, 1, 1);
      const [r, g, b] = one.getImageData(0, 0, 1, 1).data;
      const at = Array.from({ length: data.length / 4 }, (_, i) => i)
        .filter((i) => data[4 * i] === r && data[4 * i + 1] === g && data[4 * i + 2] === b)
        .map((i) => [(i % width) / ratio, Math.floor(i / width) / ratio]);
      return [0, 1].map((k) => at.reduce((sum, each) => sum + each[k], 0) / at.length);
    });
  }
"""


def test_positions_turn_the_hands_of_clocks(sight: Any) -> None:
    page = sight.open("positions?place=7")
    words = page.locator(".hands .tick").all_text_contents()
    assert words[:3] == ["channels 0, 1", "one turn in 6.28", "sin 0.66, cos 0.75"]  # of 7 radians
    titles = page.locator("main figure h3").all_inner_texts()
    assert titles[1:3] == ["Waves and hands: how a position is written in channels", "The table"]
    assert "The vector of position 7" in titles
    # The hands stand in the table: a frame around the row, and around each hand's two columns.
    table = page.locator("figure canvas").first
    (_, row), (column, _) = table.evaluate(FRAMES)
    assert words[3] == "channels 10, 11"
    tall, left = 300 / 64, 46
    cell = (table.bounding_box()["width"] - left - 2) / 64
    assert column == pytest.approx(left + 11 * cell, abs=cell / 2)
    turned = "e => e.style.transform"
    hand = page.locator(".hands .hand").first
    assert float(hand.evaluate(turned)[7:-4]) == pytest.approx(-math.degrees(7), abs=0.01)
    page.get_by_role("slider", name="Pairs of channels").focus()
    page.keyboard.press("ArrowRight")
    sight.until("location.search.includes('place=8')")
    assert table.evaluate(FRAMES)[0][1] - row == pytest.approx(tall, abs=1.5)
    table.click(position={"x": left + 20, "y": 5 + 20.5 * tall})  # a row turns the hands, too
    sight.until("location.search.includes('place=20')")
    page.get_by_role("slider", name="Pairs of channels").focus()
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    sight.until("location.search.includes('place=8')")
    assert float(hand.evaluate(turned)[7:-4]) == pytest.approx(-math.degrees(8), abs=0.01)
    # Rotated queries and keys: both hands turn, and the angle between them stays.
    page = sight.open("positions?scheme=rotary&place=7")
    between = "all => all.map((e) => Number(e.style.transform.slice(7, -4)))"
    for moved in range(2):
        query, key = page.locator(".hands g").first.locator(".hand").evaluate_all(between)
        assert query == pytest.approx(-math.degrees(7 + 10 * moved), abs=0.01)
        assert query - key == pytest.approx(math.degrees(3), abs=0.01)
        page.get_by_role("button", name="+10").click()
    shown = re.search(r"the score: ([\d.]+) of", page.locator("main").inner_text())
    vector = torch.zeros(2, 64)
    vector[:, 0::2] = 1
    turned_pair = Rotary(64, RotarySpec(layout="pairs"))(vector[None, None], torch.tensor([[5, 8]]))
    share = float(turned_pair[0, 0, 0] @ turned_pair[0, 0, 1]) / 32
    assert shown is not None
    assert float(shown[1]) == pytest.approx(share, abs=1e-3)


def test_a_step_is_seen_in_its_place_and_chosen_there(sight: Any) -> None:
    page = sight.open("steps?mask=causal")
    stages = page.locator(".stage-row button")
    names = ["Queries, keys, values", "q · k", "÷ √dₖ", "Mask", "Softmax", "Weighted sum"]
    named = "all => all.map((each) => each.lastElementChild.textContent)"
    assert stages.evaluate_all(named) == names
    words = page.locator(".stage-row .mini-word")
    assert words.all_text_contents() == ["it"] * len(names)  # whose row it is
    assert stages.nth(4).locator(".mini-hidden").count() == 3  # of a triangle of three words
    stages.nth(4).click()
    page.get_by_role("heading", name="5. Softmax").wait_for()
    assert stages.nth(4).get_attribute("aria-current") == "step"
    page.get_by_role("button", name="A word in a model").click()
    sight.idle()
    sight.until("document.querySelectorAll('.stage-row button').length === 5")
    assert stages.evaluate_all(named) == [name for name in names if name != "Mask"]
    assert words.all_text_contents() == ["it"] * 5
    assert stages.nth(3).get_attribute("aria-current") == "step"
    rows = page.locator(".word-row button").count()
    assert stages.nth(1).locator("rect:not([class])").count() == rows  # a score for each word
    # An address counts as the page does; past the last step it becomes that of the last.
    for stage, shown in ((3, 3), (5, 5), (9, 5)):
        page = sight.open(f"steps?stage={stage}")
        sight.until(f"location.search.includes('stage={shown}')")
        assert page.get_by_role("status").filter(has_text=f"Step {shown} of 5").count() == 1
    # The link to the causal mask follows the first word, from which it hides the others.
    page = sight.open("steps")
    page.get_by_text("Try a causal mask").click()
    sight.until("location.search.includes('stage=4')")
    assert page.locator(".word-row [aria-pressed=true]").inner_text() == "cat"


def test_another_part_is_chosen(sight: Any) -> None:
    page = sight.open("attention")
    page.get_by_label("Attention of").select_option("encoder")
    page.get_by_text("“it” looks at “cat”").wait_for()
    page.get_by_text("What was measured of this head").click()
    page.get_by_text("56% of its attention to “cat”").wait_for()
    page.get_by_label("Attention of").select_option("decoder")
    page.get_by_text("“war” looks at").wait_for()


def test_the_two_senses_have_colours_and_lie_apart(sight: Any) -> None:
    page = sight.open("block")
    assert page.locator(".spot").count() == 0  # nothing is asked for it before it is opened
    page.get_by_text("One word in several sentences").click()
    dots = page.locator(".spot")
    dots.first.wait_for()
    places = page.evaluate("""
        () => [...document.querySelectorAll(".spot")]
            .map((each) => [each.style.fill, Number(each.getAttribute("cx"))])
    """)
    groups = {fill: [x for own, x in places if own == fill] for fill, _ in places}
    first, second = groups.values()
    assert len(first) == len(second) == 4
    assert max(first) < min(second) or max(second) < min(first)


def test_notes_side_by_side_have_one_scale(sight: Any) -> None:
    page = sight.open("everywhere")
    page.locator(".samples figure").nth(2).locator("rect.roll-note").first.wait_for()
    first = page.evaluate("""
        () => [...document.querySelectorAll(".samples figure:not([hidden])")]
            .map((each) => each.querySelector("rect.roll-note"))
            .map((note) => ["y", "height"].map((name) => note.getAttribute(name)))
    """)
    assert first[0] == first[1]
    colours = "all => new Set(all.map((note) => note.style.fill)).size"
    written = page.locator(".samples figure").nth(1)
    assert written.locator(".roll-note").evaluate_all(colours) == 4  # one of each voice
    assert written.locator(".tick").all_text_contents() == ["C3", "C4", "C5"]
    assert page.get_by_label("Tokens given, number").input_value() == "64"
    assert "256 tokens become vectors" in page.locator(".same-read").inner_text()
    page.get_by_text("The tokens, with their numbers").click()
    assert page.locator(".tokens.voices .voice").all_inner_texts() == [
        "soprano", "alto", "tenor", "bass",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "said", "chance"),
    [
        ("coin-player", "Move 1: “", "(up|down|left|right)"),
        ("digit-pixels", "Token 1", "grey [0-7] of 7"),
        ("room-actor", "Step 1 of 8: “up”", "[a-z]+"),
    ],
)
def test_what_a_model_wrote_is_written_again(
    sight: Any, model: str, said: str, chance: str
) -> None:
    """*Play* draws it step by step; the chances of the framed token stand beside it."""
    page = sight.open(f"everywhere?records={model}")
    page.emulate_media(reduced_motion="no-preference")
    page.reload()
    sight.idle()
    sight.until("document.querySelector('.with-answer .classes .own span')")
    framed = page.locator(".with-answer .classes .own span").first.inner_text()
    assert re.fullmatch(chance, framed.strip())  # in the sample's own form
    figure = page.locator(".samples figure").nth(1)
    whole, pixels = figure.locator("figcaption").inner_text(), "(each) => each.toDataURL()"
    last = figure.locator("canvas").evaluate(pixels)
    page.get_by_role("button", name="Play", exact=True).first.click()
    sight.until(
        "document.querySelectorAll('.samples figure')[1].querySelector('figcaption')"
        f".textContent.startsWith('{said}')"
    )
    if model == "room-actor":  # it opens on the first step, and has read words
        words = page.locator(".same-read .token").all_inner_texts()
        assert words == ["go", "to", "the", "green", "key"]
    else:
        assert figure.locator("canvas").evaluate(pixels) != last
    page.get_by_role("button", name="Stop").click()
    sight.until(
        "document.querySelectorAll('.samples figure')[1].querySelector('figcaption')"
        f".textContent === {json.dumps(whole)}"
    )
    assert figure.locator("canvas").evaluate(pixels) == last
    own = page.locator(".with-answer > figure .own [data-fact=label]").inner_text()
    # The block of all models stands above: what this one has read, and the likeliest answer.
    best = page.locator(".with-answer .classes li > span:first-child").first.inner_text()
    assert page.locator(".same-made strong").inner_text() == best
    cards = page.locator(".model-cards button").evaluate_all(
        "(all) => all.map((e) => e.dataset.model)"
    )
    chosen = page.locator(".same-ways path").evaluate_all(
        "(all) => all.map((e) => e.matches('.chosen'))"
    )
    assert chosen == [name == model for name in cards]
    assert page.locator(".same-block").bounding_box()["y"] < 250
    assert f"“{own}” is number" in page.locator(".chosen-token").first.inner_text()
    page.emulate_media(reduced_motion="reduce")


def test_a_forecast_goes_on_from_what_is_given(sight: Any) -> None:
    """Its lines begin where the given one ends, and its chances are values of the axis."""
    page = sight.open("everywhere?records=seasonal-series")
    sight.until("document.querySelector('.with-answer .classes .own span')")
    lines = page.locator(".samples figure").nth(1).locator("g > path.line[d^=M]")
    ways = [line.get_attribute("d").strip("M").split("L") for line in lines.all()]
    given, *futures = [way for way in ways if len(way) > 1 and way != ["0 5", "22 5"]]
    assert len(futures) == 4
    assert {way[0] for way in futures} == {given[-1]}
    chances = page.locator(".with-answer .classes li > span:first-child").all_inner_texts()
    assert all(0 < float(each) < 4 for each in chances)  # the mean of a series is 1
    tiles = page.locator(".model-cards .thumbnail").evaluate_all(
        "signs => signs.map((sign) => sign.getBoundingClientRect().height)"
    )
    assert max(tiles) - min(tiles) < 0.5


def test_a_spoken_digit_is_answered_in_bars(sight: Any) -> None:
    page = sight.open("everywhere?records=spoken-digits")
    sight.idle()
    answer = page.locator(".with-answer > figure")
    assert answer.locator("h3").inner_text() == "It hears"
    assert answer.locator("li").count() == 10
    assert answer.locator(".own [data-fact=label]").inner_text() == "0"
    assert page.locator(".same-made strong").inner_text() == "0"
    assert page.locator(".same-read canvas").count() == 5  # patches of the sound


def test_angles_that_training_never_showed_are_hatched(sight: Any) -> None:
    page = sight.open("positions")
    page.get_by_text("Past the trained length: what").click()
    canvas = page.locator("details:has(> summary:text('Past the trained length')) canvas")
    canvas.wait_for()
    dark = canvas.evaluate("""
        (each) => {
          const { width, height } = each;
          const { data } = each.getContext("2d").getImageData(width * 0.8, height * 0.5, 24, 24);
          const red = Array.from({ length: 576 }, (_, i) => data[4 * i]);
          return red.filter((each) => each < 200).length;
        }
    """)
    assert 30 < dark < 400  # lines on a pale ground, not one flat grey


def test_the_picture_opens_on_a_patch(sight: Any) -> None:
    page = sight.open("image")
    words = page.locator("figure", has_text="Where the framed patch looks").locator("figcaption")
    words.wait_for()
    assert words.inner_text().startswith("From the patch in row 6, column 3")
    # A patch is seen as its numbers, and the reading with the patches that it rests on.
    numbers = [each.text_content() for each in page.locator(".patch-number").all()]
    assert len(numbers) == 16
    assert numbers[:2] == ["145", "255"]
    sight.idle()
    assert sight.fact("label") == "0"
    assert sight.fact("erased") == "7"
    # One picture leads: where the patch looks, with the place to draw and the labels beside it.
    leading, own, erased = (each.bounding_box() for each in page.locator(".easel-row canvas").all())
    assert leading["width"] > 2 * max(own["width"], erased["width"])
    assert abs(leading["y"] - own["y"]) < 12
    beside = page.locator("figure", has_text="It reads").locator("li").first.bounding_box()
    assert own["y"] < beside["y"] < leading["y"] + leading["height"] < erased["y"]
    assert page.locator("figure .key").inner_text().startswith("0")  # the colours have a scale


def test_an_example_is_cleared_for_a_drawing(sight: Any) -> None:
    page = sight.open("image")
    sight.idle()
    drawn = page.locator("canvas.pad").evaluate("(pad) => pad.toDataURL()")
    page.get_by_role("button", name="Clear", exact=True).click()
    sight.idle()
    assert page.locator("canvas.pad").evaluate("(pad) => pad.toDataURL()") != drawn
    assert sight.fact("label") == "Nothing is drawn yet."


@pytest.mark.parametrize("name", ["block", "decoding", "tour?stop=13"])
def test_a_link_to_a_language_model_opens_on_a_text_to_go_on_with(sight: Any, name: str) -> None:
    page = sight.open(f"{name}{'&' if '?' in name else '?'}model=english")
    sight.idle()
    assert page.locator(".problem").count() == 0
    assert page.get_by_label("Text", exact=True).input_value() == "The cat sat on the"
    if name == "block":
        assert "of the decoder" in page.locator("figure h3").first.inner_text()


def test_the_alignment_opens_at_the_pronoun(sight: Any) -> None:
    page = sight.open("translate")
    assert page.locator("#translation [aria-pressed=true]").inner_text() == "sie"
    assert "“cat” 100 %. Head 4 of layer 3" in page.locator(".readout").first.inner_text()
    page.wait_for_selector(".alternatives li")
    assert page.locator(".alternatives .note").first.inner_text() == "94 %"


def test_a_word_that_the_translation_lost_is_marked(sight: Any) -> None:
    page = sight.open("translate")
    sight.idle()
    assert page.locator(".word.lost").count() == 0
    assert not page.locator(".lost-words").is_visible()
    page.get_by_label("Text to translate").fill("My grandmother bought a telescope in Reykjavik.")
    page.locator(".word.lost").wait_for()
    assert page.locator(".word.lost").all_inner_texts() == ["telescope"]
    assert page.locator(".lost-words").inner_text().startswith("Perhaps lost: “telescope” (")


def test_a_name_that_the_model_misspells_is_spelled_beside_it(sight: Any) -> None:
    page = sight.open("translate?text=We+flew+from+Heidelberg+to+Reykjavik+yesterday.")
    page.locator(".word[data-name]").wait_for()
    wrong = page.locator("#translation [data-name]")
    assert wrong.all_inner_texts() == ["Rekyjavik."]
    assert wrong.get_attribute("data-name") == "Reykjavik."
    told = page.locator(".spelled-names").inner_text()
    assert told.startswith("Names that the model cannot spell: “Rekyjavik” is “Reykjavik”, which")
    page.get_by_label("Text to translate").fill("The cat sat on the mat.")
    page.locator("#translation").get_by_text("Katze").wait_for()
    sight.idle()
    assert not page.locator(".spelled-names").is_visible()


def test_the_chance_of_a_word_says_which_pieces_it_is_of(sight: Any) -> None:
    page = sight.open("translate?word=5")
    page.wait_for_selector(".alternatives li")
    sight.idle()
    assert page.locator(".alternatives .note").first.inner_text() == "96 %"
    said = page.locator(".choices > .note").inner_text()
    assert "“Mat” has 96 %; all pieces of “Matte,” have 78 % together" in said
    assert page.locator("#translation [data-word='5']").get_attribute("title").endswith("78 %")


def test_greedy_search_and_the_beam_part_where_decoding_opens(sight: Any) -> None:
    """The way of greedy search is dashed beside the bold one of the beam, which ends better."""
    page = sight.open("decoding")
    assert page.locator("#written").inner_text() == "Tom hat"
    assert "begun by the model" in page.locator(".writes").inner_text()
    assert sight.fact("greedy") == "Tom hat sich nicht bewegen."
    assert "Tom bewegte sich nicht." in page.locator(".ranks .found").nth(1).inner_text()
    # Both have their probability and a bar of its length, without scrolling.
    shares = [float(each[:-2]) for each in page.locator(".whole strong").all_inner_texts()]
    bars = page.locator(".whole .length")
    lengths = [each.bounding_box() for each in bars.all()]
    assert lengths[0]["width"] / lengths[1]["width"] == pytest.approx(shares[0] / shares[1], 0.02)
    assert lengths[1]["y"] < 500
    assert page.locator("#example").evaluate("e => e.selectedOptions[0].text") == "Tom didn't move."
    triangle, beside = (
        page.locator(name).bounding_box() for name in (".step > figure", ".candidates")
    )
    assert triangle["width"] > 1.9 * beside["width"]
    assert page.locator(".edge.second").count() == 7
    assert page.locator(".edge.bold.second").count() == 1
    sight.idle()


def test_runs_open_with_a_curve_from_the_beginning(sight: Any) -> None:
    page = sight.open("runs")
    page.wait_for_selector(".multiples svg")
    assert page.get_by_label("english", exact=True).is_checked()
    told = page.locator(".sentence").first.inner_text()
    assert "from 4.62 to 3.39" in told
    assert "a choice among 30 pieces" in told  # e to the power of the loss
    assert not page.get_by_label("Score to reach").is_visible()  # nothing beside it
    page.get_by_text("Figures and scales").click()
    page.get_by_label("perplexity", exact=True).check()
    sight.until("[...document.querySelectorAll('.multiples h3')].at(-1).innerText === 'Perplexity'")
    assert page.get_by_label("loss", exact=True).is_checked()  # of the other list
    page.get_by_text("Which runs").click()
    page.get_by_label("english-masked", exact=True).check()
    differing = page.locator("[aria-label='Settings in which they differ']")
    page.locator("summary", has_text="settings in which they differ").click()
    differing.wait_for()
    assert "model.dropout" in differing.inner_text()
    assert "model.width" not in differing.inner_text()  # that of the model it began from
    page.get_by_label("english", exact=True).uncheck()
    page.get_by_text("goes on from a model").wait_for()


def test_settings_that_are_taller_than_the_window_are_seen_to_their_end(sight: Any) -> None:
    page = sight.open("builder")
    page.get_by_text("Plan a model").click()
    page.set_viewport_size({"width": 1280, "height": 700})
    sight.idle()
    page.evaluate("scrollTo({ top: 1200, behavior: 'instant' })")
    bottom = "document.querySelector('.side').getBoundingClientRect().bottom"
    assert page.evaluate(f"{bottom} <= innerHeight")


@pytest.mark.parametrize("bias", ["alibi", "t5", "relative_keys"])
def test_a_bias_is_added_to_the_scores_of_the_head(sight: Any, bias: str) -> None:
    sight.open(f"masks?bias={bias}")
    workspace = Workspace([models_at_hand()["english"].path])
    scores = np.array(read_sentence(NoSettings(), workspace)["scores"])
    added = np.array(draw(DrawRequest.parse({"bias": bias}, where="request"), workspace)["added"])
    row = read_sentence(NoSettings(), workspace)["words"].index("it")
    powers = np.exp((scores + added)[row, : row + 1])
    assert f"{sight.shown(100 * (powers / powers.sum()).max(), 3)} %" in sight.fact("row")
    # Beside it, what the head does without the bias; what is drawn at random says so.
    own = np.exp(scores[row, : row + 1])
    told = f"Without the bias “cat” gets {sight.shown(100 * (own / own.sum()).max(), 3)} %."
    untrained = " This head of english was trained without ALiBi; trained with it, it would score "
    assert sight.fact("row").endswith(told + (f"{untrained}otherwise." if bias == "alibi" else ""))
    assert ("Before training, as here, they are random" in sight.fact("row")) == (bias != "alibi")
    bars = sight.page.locator(".masked .bar")
    assert bars.count() == 2 * (row + 1)
    assert sight.page.get_by_role("heading", name="Without the bias").count() == 1


def test_a_real_head_looks_at_one_word_without_the_division(sight: Any) -> None:
    page = sight.open("scale")
    row = page.locator(".first-sight")
    assert row.locator("h3").inner_text() == (
        "A real head: where “it” looks, without the division by √32 and with it"
    )
    # What the division keeps from happening is seen: one bar alone, and bars of several words.
    tall = "(all) => all.map((each) => Number(each.style.getPropertyValue('--weight')) > 0.05)"
    seen = row.locator(".bar").evaluate_all(tall)
    assert (sum(seen[:9]), sum(seen[9:])) == (1, 5)
    assert row.locator(".bar").first.bounding_box()["height"] > 90
    assert float(sight.fact("real-without").split()[0]) > 99
    assert float(sight.fact("real-with").split()[0]) < 60
    assert row.locator(".bar").count() == 2 * 9  # "it" is the ninth word, and looks back
    box = row.bounding_box()
    assert box["y"] + box["height"] < page.viewport_size["height"]
    row.get_by_role("button", name="tired").click()
    assert row.locator(".bar").count() == 2 * 11
    assert "row=10" in page.url


def test_a_mask_keeps_a_head_from_the_words_to_come(sight: Any, axe: str) -> None:
    page = sight.open("masks")
    assert sight.violations(axe) == []
    found = read_sentence(NoSettings(), Workspace([models_at_hand()["english"].path]))
    length = DrawRequest().length
    words, scores = found["words"][:length], np.array(found["scores"])[:length, :length]
    row = words.index("it")
    seen, own = (np.exp(scores[row]) * sees for sees in (np.arange(length) <= row, 1))
    seen, own = seen / seen.sum(), own / own.sum()
    told = sight.fact("row")
    assert words == found["words"]  # the whole sentence, as on Scale
    assert words[seen.argmax()] == "cat"
    assert f"on “cat”, {sight.shown(100 * seen.max(), 3)} %" in told
    assert f"Without the mask {sight.shown(100 * own[row + 1 :].sum(), 3)} % would go" in told
    assert page.locator(".masked .lost").count() == length - row - 1
    page.get_by_role("button", name="All words (encoder)").click()
    sight.idle()
    assert page.locator(".masked .lost").count() == 0
    assert "Without the mask" not in sight.fact("row")
    page.get_by_role("button", name="A beginning that all see").click()
    sight.idle()
    assert sight.fact("row").startswith("“The” may look at 5 of 17 tokens")
    # On a phone the strip opens with the chosen word and the longest bar in sight.
    page.set_viewport_size({"width": 390, "height": 900})
    for opened in ("scale", "masks"):
        sight.open(opened)
        strip = page.locator(".scroll", has=page.locator(".masked")).bounding_box()
        title = page.locator(".masked > .note").first.bounding_box()
        for name in ("it", "cat"):
            word = page.locator(".masked").get_by_role("button", name=name).bounding_box()
            assert title["x"] + title["width"] < word["x"] + 1  # scrolling is in whole pixels
            assert word["x"] + word["width"] <= strip["x"] + strip["width"]
    page.set_viewport_size({"width": 1280, "height": 900})
    sight.open("masks?mask=everything")
    page.get_by_text("More masks").click()
    page.get_by_label("Tokens, number").fill("20")  # more than the sentence has
    page.get_by_label("Tokens, number").press("Enter")
    sight.idle()
    assert page.locator(".masked").count() == 0
    assert page.get_by_role("heading", name="Without the mask").count() == 0
