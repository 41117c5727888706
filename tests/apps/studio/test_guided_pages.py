"""The tour's drawing, words that are queries, steps, and the triangle of the decoder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as forall
from hypothesis import settings, strategies
from starlette.testclient import TestClient

import heedful
from heedful import inspect
from heedful.apps.studio.app import build_app
from heedful.apps.studio.head_labels import LEANING
from heedful.apps.studio.pages.attention_page import word_numbers
from heedful.apps.studio.pages.steps_page import AttendRequest, attend_to
from heedful.apps.studio.workspace import Workspace
from heedful.inspect.decoding_steps import next_token
from heedful.inspect.head_measures import STRONG
from heedful.inspect.readings import StackTokens
from heedful.models.build import build_model
from heedful.models.checkpoint import save_model
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.model_spec import CausalLMSpec
from heedful.pipelines.fillers import load_filler
from heedful.pretrained.catalogue import models_at_hand
from heedful.search.search_settings import SearchSettings
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

TEXT = "the cat sat on a mat"
URL = TEXT.replace(" ", "+")
CORPUS = [TEXT, "a dog ran", "dogs and cats", "on the mat sat a dog"]


def write(directory: Path, kind: str) -> Path:
    """An untrained language model, or a masked one, of a few words."""
    pair = train_pair(TokenizerSpec(vocabulary_size=60), CORPUS * 3, CORPUS * 3)
    heads: dict[str, Any] = {"num_heads": 2}
    if kind == "masked":
        own = pair.source.for_encoder()
        pair = TokenizerPair(own, own)
    else:
        heads |= {"mask": {"kind": "causal"}, "rotary": {}}
    stack = {"num_layers": 2, "block": {"self_attention": heads, "feedforward": {"width": 24}}}
    values = {"width": 16, "vocabulary": pair.source.size, "max_length": 48}
    torch.manual_seed(5)
    spec: Any
    if kind == "masked":
        spec = EncoderSpec.parse({**values, "encoder": stack, "heads": [{"kind": "masked_lm"}]})
    else:
        spec = CausalLMSpec.parse({**values, "decoder": stack})
    model = build_model(spec).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    save_model(model, pair, directory)
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, given: Any) -> dict[str, Path]:
    """A translator, a language model and a masked language model."""
    root = tmp_path_factory.mktemp("guided")
    return {"t5": given.t5, **{kind: write(root / kind, kind) for kind in ("lm", "masked")}}


@pytest.fixture(scope="module")
def at(models: dict[str, Path], serve: Callable[..., str]) -> str:
    """The address of a studio with these models."""
    return serve([*models.values()])


@pytest.fixture
def look(visit_at: Callable[..., Any], at: str) -> Any:
    """A window on it."""
    return visit_at(at)


@pytest.fixture
def client(models: dict[str, Path]) -> TestClient:
    return TestClient(build_app(Workspace([*models.values()])), base_url="http://localhost")


def press(look: Any, name: str) -> None:
    """Press a button of the tour and wait until it is drawn."""
    look.page.get_by_role("button", name=name, exact=True).click()
    look.idle()


# The tour


@pytest.mark.parametrize("text", ["the cat [MASK] on a mat", TEXT])
def test_a_masked_model_guesses_the_hidden_word(look: Any, models: Any, text: str) -> None:
    page = look.open(f"tour?model=masked&stop=11&text={text.replace(' ', '+')}")
    hidden = text if "[MASK]" in text else "the cat sat on a [MASK]"  # else the last word is hidden
    best = load_filler(models["masked"]).fill([hidden], top=2)[0][0]
    shown = page.locator(".way-next button")
    assert shown.count() == 10
    share = page.locator(".way-next .count").first.inner_text()
    assert share == f"{look.shown(100 * best[0].probability, 3)} %"
    assert page.locator("#written").inner_text() == hidden.replace("[MASK]", "___")
    assert page.locator(".map [aria-current]").inner_text() == "Hidden word"
    for place in (0, 1):  # one is put into the gap, then another in its place
        shown.nth(place).click()
        look.idle()
        assert shown.nth(place).get_attribute("aria-pressed") == "true"
        assert page.locator("#written").inner_text() != hidden.replace("[MASK]", "___")


LATE_WALK = """
  const ask = window.fetch;
  window.fetch = async (...args) => {
    if (String(args[0]).includes("tour/walk")) await new Promise((done) => setTimeout(done, 1500));
    return ask(...args);
  };
"""


def test_a_region_of_two_answers_is_busy_until_both_are_there(look: Any) -> None:
    """The tour shows the model's figure and the sentence's way in one place."""
    look.page.add_init_script(LATE_WALK)
    page = look.open(f"tour?model=lm&stop=11&text={URL}")
    assert page.locator(".way-next button").count() == 10


def test_the_mask_token_is_what_the_model_reads(models: Any) -> None:
    subject = inspect.load(models["masked"])
    reading = inspect.read(subject, "the cat [MASK] on a mat")
    assert reading.tokens("encoder").ids.count(subject.source.mask) == 1


def test_a_language_model_ends_in_the_next_word(look: Any, models: Any) -> None:
    page = look.open(f"tour?model=lm&stop=10&text={URL}")
    expected = next_token(inspect.load(models["lm"]), TEXT)
    order = expected.scores.argsort(kind="stable")[::-1][:10]
    logits = page.locator(".way-next .count").all_inner_texts()
    assert logits == [look.shown(float(expected.logits[i]), 3) for i in order]
    subject = inspect.load(models["lm"])
    with torch.inference_mode():  # the whole text at once, without the cache
        states = subject.model(*inspect.tensors(subject, [inspect.read(subject, TEXT)]))
        whole = subject.model.stream_logits(states)[0, -1].numpy()
    words = [i for i in order if i < len(whole)]  # the end has a number past the vocabulary
    np.testing.assert_allclose(expected.logits[words], whole[words], rtol=1e-4, atol=1e-4)
    press(look, "Next")
    page.locator(".way-next button").nth(2).click()
    look.until(f"location.search.includes('chosen={int(order[2])}')")
    look.idle()
    after = next_token(inspect.load(models["lm"]), TEXT, [int(order[2])])
    first = page.locator(".way-next .count").first.inner_text()
    assert first == f"{look.shown(100 * float(np.exp(after.scores.max())), 3)} %"
    page.locator("#written button").first.click()  # back to this word, to choose another
    look.until("!location.search.includes('chosen=')")


@pytest.fixture
def moving(browser: Any, at: str) -> Iterator[Any]:
    """A window of somebody who likes motion."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(f"{at}tour?stop=5&text={URL}")
    page.wait_for_selector("[data-part=scores] [data-column]")
    yield page
    context.close()


FLOWS = """() => document.getAnimations().filter((each) => each.animationName === "way"
  && each.playState === "running").length"""


COUNT_MOVES = """() => {
  const animate = Element.prototype.animate;
  window.moves = 0;
  window.letters = 0;
  Element.prototype.animate = function (...args) {
    if (this.tagName === "text") window.letters += 1;
    else if (!this.closest(".way-flight, [data-at]")) window.moves += 1;
    return animate.apply(this, args);
  };
}"""


# Elements of a class that a drawing had when it was put in its place; they go by themselves.
COUNT = """(kind) => {
  window[kind] = 0;
  new MutationObserver((changes) => {
    const added = changes.flatMap(({ addedNodes }) => [...addedNodes]);
    for (const node of added) window[kind] += node.querySelectorAll?.(`.way-${kind}`).length;
  }).observe(document.querySelector(".tour .drawing"), { childList: true });
}"""


def test_parts_unfold_in_place(moving: Any) -> None:
    def top() -> float:
        return float(
            moving.locator("[data-part=scores]").get_attribute("transform").split()[1][:-1]
        )

    before = top()
    moving.evaluate(COUNT_MOVES)
    moving.evaluate(COUNT, "ghost")
    moving.get_by_role("button", name="Next", exact=True).click()
    moving.wait_for_selector("[data-part=weights] [data-column]")
    assert moving.evaluate("() => window.ghost") == 1  # the open part that folds
    # It, its strip, the part that unfolds; and it slides up, as parts that were passed come closer.
    assert moving.evaluate("() => window.moves") == 4
    assert moving.evaluate("() => window.letters") > 0  # which a scale would stretch
    assert before - 16 < top() < before
    moving.wait_for_function("() => !document.querySelector('.way-ghost')")


# How far from its own height a letter is drawn at worst while parts fold.
STRETCHED = """() => new Promise((done) => {
  let worst = 0;
  const look = () => {
    for (const text of document.querySelectorAll(".drawing [data-part] text")) {
      if (Number(getComputedStyle(text).opacity) < 0.1) continue;
      const { transform } = getComputedStyle(text.closest("[data-part]").lastElementChild);
      const scale = transform === "none" ? 1 : new DOMMatrix(transform).d;
      worst = Math.max(worst, Math.abs(1 - scale));
    }
    if (document.querySelector(".way-ghost")) requestAnimationFrame(look);
    else done(worst);
  };
  requestAnimationFrame(look);
})"""


def test_no_letter_is_stretched(moving: Any) -> None:
    go_on = moving.get_by_role("button", name="Next", exact=True)
    assert go_on.evaluate(f"(button) => {{ button.click(); return ({STRETCHED})(); }}") < 0.1


def test_three_words_are_written_for_who_walks_to_the_decoder(moving: Any, at: str) -> None:
    """So that it has some to look back at; and no more. So it is for who opens an address of it."""
    decoder = moving.locator(".map [aria-current]", has_text="Written")
    while not decoder.count():
        moving.get_by_role("button", name="Next", exact=True).click()
    moving.locator("#written button").nth(2).wait_for()
    moving.wait_for_timeout(1500)  # longer than from word to word
    assert moving.locator("#written button").count() == 3
    moving.goto(f"{at}tour?stop=10&text={URL}")
    moving.locator("#written button").nth(2).wait_for()


def test_a_box_is_opened_in_a_model_of_one_stack_too(look: Any) -> None:
    page = look.open(f"tour?model=lm&text={URL}&open=encoder.self&block=1")
    page.locator(".model-inside").wait_for()


UNSEEN = """() => [...document.querySelectorAll("[data-at], .way-flight")]
  .filter((each) => getComputedStyle(each).opacity !== "1").length"""


def test_numbers_fly_to_what_they_become(moving: Any) -> None:
    """A score becomes a share, values come down to their sum, one query meets all keys."""
    pieces = moving.locator("[data-part=scores] [data-column]").count()
    moving.evaluate(COUNT, "flight")

    def flights(press: Any, seen: str) -> int:
        moving.evaluate("() => { window.flight = 0; }")
        press.click()
        moving.wait_for_selector(seen)
        count = int(moving.evaluate("() => window.flight"))
        moving.wait_for_function(f"() => ({UNSEEN})() === 0")
        return count

    [back, go_on] = [
        moving.get_by_role("button", name=name, exact=True) for name in ("Back", "Next")
    ]
    assert flights(go_on, "[data-part=weights] [data-column]") == pieces
    assert flights(go_on, "[data-part=values] [data-column]") == 2 * pieces + 1
    assert flights(back, "[data-part=weights] [data-column]") == 0
    flights(back, "[data-part=scores] [data-column]")
    flights(back, "[data-part=head] .way-mark")
    assert flights(go_on, "[data-part=scores] [data-column]") == pieces + 1
    other = moving.locator("[data-part=scores] .way-piece:not(.chosen)").first
    assert flights(other, "[data-part=scores] .way-piece.chosen[data-column='0']") == 1


def test_the_flow_can_be_stopped(moving: Any) -> None:
    moving.get_by_role("button", name="Play the tour by itself").click()
    moving.wait_for_function(FLOWS)
    stop = moving.get_by_role("button", name="Stop the tour")
    assert stop.is_visible()
    stop.click()
    moving.wait_for_function(f"() => ({FLOWS})() === 0")
    assert moving.get_by_role("button", name="Play the tour by itself").is_visible()


def test_nothing_moves_for_who_wants_no_motion(look: Any) -> None:
    page = look.open(f"tour?stop=5&text={URL}")
    page.evaluate(COUNT_MOVES)
    page.get_by_role("button", name="Play the tour by itself").click()
    press(look, "Next")
    assert page.locator(".drawing.moving").count() == 1
    assert page.evaluate("() => window.moves") == 0
    assert page.evaluate(FLOWS) == 0
    assert page.locator(".way-ghost, .way-flight").count() == 0


def test_every_stop_fits_the_window(visit_at: Any, serve: Any) -> None:
    home = visit_at(serve([models_at_hand()["en-de"].path]))
    home.page.set_viewport_size({"width": 1440, "height": 900})
    page = home.open("tour")
    for stop in range(14):
        box = page.locator(".tour .drawing").bounding_box()
        last = page.locator(".way-next").bounding_box() if stop >= 12 else None
        bottom = max(box["y"] + box["height"], last["y"] + last["height"] if last else 0)
        assert box["y"] < 450
        assert bottom <= 900, stop
        if stop:
            map_box = page.locator(".map").bounding_box()
            assert map_box["y"] + map_box["height"] < box["y"]
        if stop < 13:
            press(home, "Next")


# Attention


def marked_words(pieces: list[str], special: list[bool]) -> list[int]:
    """The word of each piece, by the mark that begins one: a reference for this tokenizer."""
    numbers: list[int] = []
    apart = True  # whether a word ends before this piece
    for piece, alone in zip(pieces, special, strict=True):
        begins = apart or alone or piece.startswith("\u2581")
        numbers.append((numbers[-1] if numbers else -1) + begins)
        apart = alone
    return numbers


def test_pieces_are_joined_to_words(look: Any, models: Any) -> None:
    subject = inspect.load(models["t5"])
    text = "the ragdogs mats on cats"
    reading = inspect.read(subject, text)
    tokens = reading.tokens("encoder")
    words = marked_words(list(tokens.pieces), list(tokens.special))
    assert max(words) + 1 < len(words)  # some word has several pieces
    weights = inspect.attention(subject, reading, "encoder", heads=[1]).weights[0, 0]
    groups = [[i for i, word in enumerate(words) if word == each] for each in range(max(words) + 1)]
    joined = np.array(
        [[weights[np.ix_(row, column)].sum() / len(row) for column in groups] for row in groups]
    )
    np.testing.assert_allclose(joined.sum(1), 1, rtol=1e-5)
    url = text.replace(" ", "+")
    page = look.open(f"attention?model=t5&part=encoder&layer=1&heads=2&text={url}")
    assert page.locator("[data-side=row]").count() == len(words)
    page.get_by_text("More settings").click()
    page.get_by_label("Join pieces to words").check()
    look.idle()
    shown = page.locator("[data-side=row]").all_inner_texts()
    assert shown[:5] == text.split()
    drawn = page.locator("path.link").evaluate_all(
        "lines => lines.map((line) => [line.dataset.link, Number(line.dataset.weight)])"
    )
    found = {tuple(map(int, name.split(",")))[:2]: weight for name, weight in drawn}
    expected = {at: w for at, w in np.ndenumerate(joined) if w >= 82 / 4096}
    assert found == pytest.approx(expected, abs=1e-5)


@settings(max_examples=60, deadline=None)
@forall(strategies.text(alphabet="abcd .,'中猫\u00a0", min_size=1, max_size=30))
def test_words_are_pieces_side_by_side(text: str) -> None:
    own = TOKENIZER[0] if TOKENIZER else TOKENIZER.append(train()) or TOKENIZER[0]
    ids = [*own.first, *own.encode(text), *own.last]
    numbers = word_numbers(own, StackTokens.of(own, ids))
    assert len(numbers) == len(ids)
    steps = np.diff(numbers)
    assert numbers[0] == 0
    assert set(steps.tolist()) <= {0, 1}
    if len(ids) > 1:
        assert steps[-1] == 1  # the end is a word by itself


TOKENIZER: list[Any] = []


def train() -> Any:
    """A tokenizer with pieces for parts of words."""
    return train_pair(TokenizerSpec(vocabulary_size=60), CORPUS * 3, CORPUS * 3).source


def test_each_head_has_a_strip(look: Any, models: Any) -> None:
    subject = inspect.load(models["t5"])
    reading = inspect.read(subject, TEXT)
    weights = inspect.attention(subject, reading, "encoder").weights[0]
    page = look.open(f"attention?model=t5&part=encoder&layer=1&view=strips&text={URL}")
    page.locator(".word-row [data-word='2']").click()
    look.until("location.search.includes('row=2')")
    look.idle()
    for head in range(2):
        page.locator("figure:not(.overview) summary").first.click() if head == 0 else None
        line = page.locator("figure:not(.overview) tbody tr").nth(head)
        line.wait_for()  # the table is filled once it is opened
        cells = line.locator("td")
        large = [
            (text, w)
            for text, w in zip(cells.all_inner_texts(), weights[head, 2], strict=True)
            if w > 1e-3
        ]
        assert [text for text, _ in large] == [look.shown(float(w), 3) for _, w in large]
    page.get_by_role("button", name="Lines", exact=True).click()
    look.idle()
    striped = page.locator("[data-side=column]").evaluate_all(
        "words => words.filter((word) => word.style.backgroundImage.includes('gradient')).length"
    )
    assert striped == weights.shape[2]


def test_a_row_of_the_matrix_is_a_query(look: Any) -> None:
    page = look.open(f"attention?model=t5&part=encoder&view=matrix&text={URL}")
    canvas = page.locator(".pair figure:not(.overview) canvas")
    canvas.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "Enter"):  # the first key goes to the first
        canvas.press(key)
    look.until("location.search.includes('row=2')")


def test_heads_have_names_without_pasting(client: TestClient, models: Any) -> None:
    corpus = [each + tail for each in CORPUS for tail in ("", " on a dog", " and the cat")]
    asked = {"model": "t5", "corpus": "\n".join(corpus), "part": "cross"}
    found = client.post("/api/attention/labels", json=asked).json()
    subject = inspect.load(models["t5"])
    readings = inspect.read_all(subject, corpus, search=SearchSettings(beam=1))
    links = [pair.links for pair in inspect.align_words(subject, readings).pairs]
    measures = inspect.measure(subject, readings, "cross", links=links)
    assert found["enough"]
    for head in measures.heads:
        best = max(share.evidence for share in head.shares.values())
        own = [
            each
            for each in found["labels"]
            if (each["layer"], each["head"]) == (head.layer, head.head)
        ]
        assert len(own) == int(head.label is not None or best >= LEANING)
        if own and not own[0]["clear"]:
            assert own[0]["evidence"] == pytest.approx(best)
            assert best < STRONG
    at_hand = TestClient(
        build_app(Workspace([models_at_hand()["en-de"].path])), base_url="http://localhost"
    )
    own_names = at_hand.post(
        "/api/attention/labels", json={"model": "en-de", "part": "encoder"}
    ).json()
    assert own_names["enough"]
    assert own_names["labels"]


def test_another_layer_needs_no_new_pass(models: Any) -> None:
    workspace = Workspace([*models.values()])
    passes: list[int] = []
    workspace.place("t5").load().model.encoder.register_forward_pre_hook(
        lambda *_: passes.append(1)
    )
    app = TestClient(build_app(workspace), base_url="http://localhost")

    def ask(call: str, **values: Any) -> Any:
        answer = app.post(f"/api/{call}", json={"model": "t5", "text": TEXT, **values})
        assert answer.status_code == 200, answer.text
        return answer.json()

    ask("attention/show", part="decoder", layer=0)
    ask("tour/walk")
    ask("decoding/step")
    first = len(passes)
    assert first > 0
    ask("attention/show", part="decoder", layer=1, heads=[1])
    ask("attention/overview", part="decoder")
    ask("tour/walk", head=1)
    ask("decoding/step", temperature=0.5)
    ask("decoding/step", layer=1, head=1)
    assert len(passes) == first


# Step by step


def test_steps_are_coloured_for_numbers_and_for_a_model_alike(look: Any) -> None:
    page = look.open("steps")
    status = page.locator("[role=status]").first
    assert "Step 1 of 5" in status.inner_text()
    reached = []
    for _ in range(4):
        page.get_by_role("button", name="Next step").click()
        reached.append(page.locator("[data-stage]").get_attribute("data-stage"))
    assert reached == ["1", "2", "5", "6"]  # neither bias nor mask is set
    page.get_by_text("Type your own numbers").click()
    page.get_by_label("Mask").fill("causal")
    look.idle()
    assert "Step 6 of 6" in status.inner_text()
    page.get_by_role("button", name="Back").click()
    page.get_by_role("button", name="Back").click()
    assert page.locator("[data-stage]").get_attribute("data-stage") == "4"
    for address in ("steps?stage=2&query=2", f"steps?on=model&model=t5&stage=2&row=1&text={URL}"):
        page = look.open(address)
        lines = page.locator("[data-stage='1'] .sums tr")
        lines.first.wait_for()
        for i in range(2):
            query = lines.nth(i).locator(".tint-row").first
            key = lines.nth(i).locator("td .tint-column").first
            name = lines.nth(i).locator("th .tint-column")
            colour = "each => each.style.color"
            assert query.evaluate(colour) == "var(--series-1)"  # of the second query
            assert key.evaluate(colour) == name.evaluate(colour) == f"var(--series-{i})"


def test_a_number_shows_what_it_is_made_of(look: Any) -> None:
    page = look.open("steps?stage=2")
    page.locator(".made tbody tr").nth(2).locator("td").nth(0).hover()
    assert page.locator(".equation + .readout").inner_text() == "“it” · “cat”: 1 · 0 + 2 · 4 = 8"
    [q, transposed, product] = [
        [row.locator("td.lit").all_inner_texts() for row in part.locator("tbody tr").all()]
        for part in page.locator(".equation .matrix").all()
    ]
    assert q == [[], [], ["1", "2"]]
    assert transposed == [["0"], ["4"]]
    assert product == [[], [], ["8"]]
    page.locator(".made tbody tr").nth(1).locator("td").nth(2).click()
    look.until("location.search.includes('query=2')")


def test_numbers_come_together_after_a_step(look: Any) -> None:
    page = look.open("steps")
    page.evaluate(COUNT_FLYING)
    go_on = page.get_by_role("button", name="Next step")
    go_on.click()
    page.wait_for_timeout(500)
    assert page.evaluate("() => window.flying") == 0
    page.emulate_media(reduced_motion="no-preference")
    go_on.click()
    go_on.click()
    go_on.click()
    page.wait_for_function("() => window.flying >= 2 * (3 + 3)")  # two sums of three weights
    page.wait_for_function("() => !document.querySelector('.flying')")
    page.emulate_media(reduced_motion="reduce")


# Numbers that fly to what they become.
COUNT_FLYING = """() => {
  window.flying = 0;
  new MutationObserver((changes) => {
    const added = changes.flatMap(({ addedNodes }) => [...addedNodes]);
    window.flying += added.filter(({ className }) => className === "flying").length;
  }).observe(document.querySelector("main") ?? document.body, { childList: true, subtree: true });
}"""


def test_queries_are_made_of_tokens(look: Any) -> None:
    page = look.open("steps")
    page.get_by_label("Examples").select_option("love")
    page.get_by_role("link", name="see X become Q, K and V").click()
    page.locator(".equation.crossed").wait_for()
    tokens = torch.tensor([[2, 0, 0], [0, 1, 1], [1, 0, 1]])
    all_weights = [[1, 1], [2, 0], [0, 1]], [[0, 2], [0, 1], [2, 0]], [[4, 0], [0, 3], [0, 1]]
    for place, weights in enumerate(all_weights):
        made = page.locator(".made").nth(place).locator("tbody tr").all()
        assert [row.locator("td").all_inner_texts() for row in made] == [
            [str(value) for value in row] for row in (tokens @ torch.tensor(weights)).tolist()
        ]
    # A number of a product marks its row of X and its column of that matrix.
    page.locator(".made").nth(1).locator("td").nth(1).hover()
    assert page.locator(".equation + .readout").inner_text() == (
        "K of “cat”, channel 2: 2 · 2 + 0 · 1 + 0 · 0 = 4"
    )
    assert page.locator(".matrix").nth(1).locator(".lit").all_inner_texts() == ["2", "1", "0"]
    # The words stand in the address: without them Q, K and V are queries, keys and values.
    look.until("location.search.includes('x=2+0+0')")
    page = look.open("steps?q=1+0&k=1+0%0A0+1&v=33%0A55&scale=0&stage=6")
    assert page.locator(".problem").count() == 0
    assert page.locator(".made td").all_inner_texts() == ["44"]


def test_a_word_is_the_query_by_a_click(look: Any, models: Any) -> None:
    page = look.open("steps")
    page.locator(".word-row [data-word='1']").click()
    look.until("location.search.includes('query=2')")
    page = look.open(f"steps?on=model&model=lm&stage=5&all=1&text={URL}")
    word = page.locator(".word-row [data-word='0']")
    word.focus()
    word.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    look.until("location.search.includes('row=2')")
    look.idle()
    subject = inspect.load(models["lm"])
    steps = inspect.attention_steps(
        subject, inspect.read(subject, TEXT), "decoder", layer=1, head=0, row=2
    )
    shown = page.locator("[data-stage='5'] .sums strong").all_inner_texts()
    visible = int(steps.visible.sum())
    assert visible == 3
    assert shown[:3] == [look.shown(float(w)) for w in steps.weights[:3]]


# The decoder


def test_the_triangle_grows_row_by_row(look: Any, models: Any, axe: str) -> None:
    page = look.open(f"decoding?model=t5&text={URL}&chosen=")
    subject = inspect.load(models["t5"])
    for steps in (1, 2, 3):
        assert page.locator(".tri-step").count() == steps
        hidden = page.locator(".tri-hidden").count()
        assert hidden == steps * (steps + 3) - steps * (steps + 1) // 2
        page.locator(".candidates button").first.click()
        look.until(f"document.querySelectorAll('.tri-step').length === {steps + 1}")
        look.idle()
    chosen = [int(part.split("&")[0]) for part in look.address().split("chosen=")[1:]]
    known = next_token(subject, TEXT, chosen)
    cross = inspect.attention(subject, known.reading, "cross").mean()

    def lines() -> dict[int, float]:
        return {
            int(each.get_attribute("data-link").split(",")[1]): float(
                each.get_attribute("data-weight")
            )
            for each in page.locator("path.link").all()
        }

    last = page.locator(".tri-step").last
    assert last.get_attribute("aria-pressed") == "true"
    assert lines() == pytest.approx({j: w for j, w in enumerate(cross[3]) if w >= 0.02}, abs=1e-6)
    last.focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    look.until("location.search.includes('row=1')")
    assert lines() == pytest.approx({j: w for j, w in enumerate(cross[1]) if w >= 0.02}, abs=1e-6)
    assert look.violations(axe) == []


# Defects


SHOWN = """async (pieces) => {
  const { shownPiece } = await import("/static/draw/links.js");
  return pieces.map(shownPiece);
}"""
BLANK = ["\u00a0", "\u2581", " ", "\u200b", "\u00ad", "\u2003", "\n", "\t", "\u3000", "\ufeff", ""]


def test_no_piece_is_an_empty_button(look: Any) -> None:
    page = look.open("attention?model=lm&text=the%C2%A0cat%C2%A0%C2%A0sat%E2%80%8B")
    assert all(
        page.evaluate("text => /[^\\s\\u200b\\u00ad\\ufeff]/u.test(text)", each)
        for each in page.evaluate(SHOWN, BLANK)
    )
    buttons = page.locator(".piece").all_inner_texts()
    assert buttons
    assert all(each.strip() for each in buttons)


def test_the_hint_and_the_error_agree(look: Any, models: Any) -> None:
    page = look.open("attention?model=lm&text=" + "+".join(["mat"] * 200))
    problem = page.locator(".problem").inner_text()
    assert "48" in problem  # the model's own bound
    hint = page.locator(".hint").first.inner_text()
    assert "512" not in hint
    assert "256" not in hint
    assert "as many pieces as the model takes" in hint


def test_columns_of_the_runs_are_whole(visit: Any) -> None:
    page = visit.open("runs")
    for width in (1440, 820, 375):
        page.set_viewport_size({"width": width, "height": 900})
        visit.idle()
        state = page.locator("table", has_text="state").locator("tbody tr").first.locator("td")
        clipped = state.evaluate_all(
            "cells => cells.filter((cell) => cell.scrollWidth > cell.clientWidth + 1).length"
        )
        assert clipped == 0
        region = page.locator(".scroll", has=page.locator("table", has_text="state")).first
        assert region.get_attribute("tabindex") == "0"


def test_layers_and_channels_are_counted_from_one(look: Any) -> None:
    page = look.open(f"attention?model=t5&part=cross&text={URL}")
    assert page.locator(".layer-name").first.inner_text() == "1"
    assert "layer 2" in page.locator("figure h3").first.inner_text()  # of two, the last
    page = look.open(f"steps?on=model&model=t5&stage=1&all=1&text={URL}")
    numbers = page.locator("[data-stage='1'] .channel").all_inner_texts()
    channels = {int(each.strip(" []")) for each in numbers if "others" not in each}
    assert channels
    assert min(channels) >= 1
    assert max(channels) == 8  # 16 channels, two heads


def test_what_takes_long_says_so(visit: Any) -> None:
    page = visit.open("scale")
    page.route("**/api/scale/*", lambda route: (page.wait_for_timeout(900), route.continue_()))
    page.get_by_role("button", name="Draw others").click()
    page.wait_for_selector(".slow")
    visit.idle()
    assert page.locator(".slow").count() == 0


def test_the_latency_of_a_page_is_measured(look: Any) -> None:
    sys.path.insert(0, str(Path(heedful.__file__).parents[1] / "tools"))
    tool = importlib.import_module("studio_latency")
    page = look.open("scale")
    rows = list(tool.measure(page, "scale", 1))
    names = [row["interaction"] for row in rows]
    assert any("channels" in name.lower() or "width" in name.lower() for name in names)
    assert all(row["median_ms"] > 0 and row["times"] == 1 for row in rows)


def test_a_bias_by_distance_is_added_to_the_scores_of_typed_matrices() -> None:
    rows = [[1.0, 0.0], [0.0, 1.0]]
    found = attend_to(AttendRequest(q=rows, k=rows, v=rows, bias="alibi"), Workspace([]))
    assert found["added"][1][0] == -(2**-8)
    assert found["scores"][1][0] == pytest.approx(found["scaled"][1][0] - 2**-8)
