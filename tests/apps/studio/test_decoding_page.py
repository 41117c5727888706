"""The page of decoding in a browser: every number is the library's."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful import inspect
from heedful.apps.studio.pages import decoding_page
from heedful.apps.studio.workspace import Workspace
from heedful.inspect.decoding_steps import follow_search, next_token
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import save_model
from heedful.models.model_spec import CausalLMSpec
from heedful.search.dispatch import search
from heedful.search.sampling import distribution
from heedful.search.search_settings import SearchSettings
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

TEXT = "the cat sat on a mat"
PROMPT = "a cat"


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained language model of characters."""
    pair = train_pair(TokenizerSpec(kind="characters"), ["the cat sat on a mat"] * 3, ["a"] * 3)
    block = {
        "norm_placement": "pre",
        "self_attention": {"num_heads": 2, "mask": {"kind": "causal"}},
        "feedforward": {"width": 24},
    }
    spec = {
        "width": 16,
        "vocabulary": pair.source.size,
        "max_length": 64,
        "decoder": {"num_layers": 3, "block": block, "final_norm": {}},
    }
    torch.manual_seed(3)
    model = CausalLM(CausalLMSpec.parse(spec))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    directory = tmp_path_factory.mktemp("models") / "letters"
    save_model(model, pair, directory)
    return directory


@pytest.fixture(scope="module")
def address(serve: Callable[..., str], given: Any, language_model: Path) -> str:
    return serve([given.learned, language_model])


@pytest.fixture
def at(visit_at: Callable[[str], Any], address: str) -> Any:
    return visit_at(address)


def percent(share: float) -> str:
    """A share as the page writes it."""
    if share == 0:
        return "0 %"
    if share < 0.0001:
        return "< 0.01 %"
    text = f"{float(f'{100 * share:.2e}'):.10f}".rstrip("0").rstrip(".")
    return f"{text} %"


def chance(score: float) -> str:
    """The chance of a whole text as the page writes it, which can be very small."""
    if score > math.log(0.0001):
        return percent(math.exp(score))
    return "1 in "


def told(page: Any) -> list[list[str]]:
    """The candidates: for each its two shares."""
    rows = page.locator(".candidates li").all()
    return [row.locator(".count").all_inner_texts() for row in rows]


def test_walking_through_a_translation(at: Any, given: Any) -> None:
    page = at.open(f"decoding?model=learned&text={TEXT}&chosen=")
    subject = inspect.load(given.learned)
    chosen: list[int] = []
    for _ in range(3):
        known = next_token(subject, TEXT, chosen)
        best = known.scores.argsort(kind="stable")[::-1][:12]
        assert [row[0] for row in told(page)] == [percent(math.exp(known.scores[i])) for i in best]
        chosen.append(int(best[0]))
        page.get_by_role("button", name="Most probable").click()
        at.until(f"location.search.split('chosen=').length === {len(chosen) + 1}")
        at.idle()
        at.until(f"document.querySelector('[data-fact=written]').innerText === '{len(chosen)}'")
    known = next_token(subject, TEXT, chosen)
    row = len(chosen)
    assert at.fact("score") == at.shown(math.fsum(known.chosen_scores))
    page.get_by_text("What the model keeps from step to step").click()
    assert at.fact("shape") == " × ".join(map(str, known.cache_sizes[-1].shape))
    assert at.fact("bytes") == f"{known.cache_sizes[-1].bytes:,} bytes"
    assert at.fact("each") == f"{known.cache_sizes[0].bytes:,} bytes"

    seen = inspect.attention(subject, known.reading, "decoder").mean()
    triangle = page.locator("figure", has_text="The causal triangle")
    triangle.locator("summary").click()
    triangle.locator("tbody tr").first.wait_for()
    cells = [each.locator("td").all_inner_texts() for each in triangle.locator("tbody tr").all()]
    assert cells == [
        [at.shown(float(weight), 3) for weight in seen[i, : i + 1]] + ["hidden"] * (row - i + 3)
        for i in range(row + 1)
    ]
    page.locator(".side summary", has_text="Attention that is drawn").click()
    page.get_by_label("Attention of layer").select_option("2")
    page.get_by_label("Head", exact=True).select_option("1")
    at.until("location.search.includes('head=1')")
    at.idle()
    looked = inspect.attention(subject, known.reading, "cross", layers=[1], heads=[0], rows=[row])
    lines = {
        tuple(map(int, line.get_attribute("data-link").split(",")))[:2]: float(
            line.get_attribute("data-weight")
        )
        for line in page.locator("path.link").all()
    }
    assert lines == pytest.approx(
        {(row, j): w for j, w in enumerate(looked.weights[0, 0, 0].tolist()) if w >= 0.02}, abs=1e-6
    )

    page.reload()
    at.idle()
    assert at.fact("written") == "3"
    page.get_by_role("button", name="Start again").click()
    at.until("/chosen=(&|$)/.test(location.search)")
    at.idle()
    page.get_by_role("button", name="Greedy to the end").click()
    best = heedful.load(given.learned).translate([TEXT], beam=1)[0]
    count = len(best.tokens) + best.finished  # the end is chosen where the model wants it
    at.until(f"location.search.split('chosen=').length === {count + 1}")
    at.idle()
    at.until(f"document.querySelector('[data-fact=written]').innerText === '{len(best.tokens)}'")
    assert page.locator("#written").inner_text().strip() == str(best)
    assert at.fact("score") == at.shown(math.fsum(best.token_scores[:count]))
    page.get_by_role("button", name="Back one").click()
    at.until(f"location.search.split('chosen=').length === {count}")
    page.get_by_label("Text", exact=True).fill("a dog ran")
    at.until("!location.search.includes('chosen=')")


@pytest.mark.parametrize(("model", "text"), [("learned", TEXT), ("letters", PROMPT)])
def test_the_page_opens_on_a_triangle(
    at: Any, given: Any, language_model: Path, model: str, text: str
) -> None:
    """The first tokens of greedy search are written, so that there are rows to look at."""
    subject = inspect.load(given.learned if model == "learned" else language_model)
    best: list[int] = []
    for _ in range(4):
        best.append(int(next_token(subject, text, best).scores.argmax()))
    page = at.open(f"decoding?model={model}&text={text}")
    at.until("document.querySelector('[data-fact=written]')?.innerText === '4'")
    assert "chosen" not in at.address()
    assert (
        page.locator("#written").inner_text().strip()
        == next_token(subject, text, best).text.strip()
    )
    page.get_by_role("button", name="Back one").click()
    at.until(f"location.search.includes('{'&'.join(f'chosen={id}' for id in best[:3])}')")


def test_any_candidate_can_be_chosen(at: Any, given: Any) -> None:
    page = at.open(f"decoding?model=learned&text={TEXT}&chosen=")
    other = page.locator(".candidates button").nth(4)
    id = int(other.get_attribute("data-id"))
    other.click()
    at.until(f"location.search.includes('chosen={id}')")
    at.idle()
    known = next_token(inspect.load(given.learned), TEXT, [id])
    at.until("document.querySelector('[data-fact=written]').innerText === '1'")
    assert page.locator("#written").inner_text().strip() == known.text.strip()
    assert at.fact("score") == at.shown(known.chosen_scores[0])
    assert "1 token, chance " in page.locator(".decoding .result").last.inner_text()
    assert at.fact("chance") == percent(math.exp(known.chosen_scores[0]))


def test_the_end_keeps_its_candidates(at: Any, given: Any) -> None:
    """Another token can take the place of the end, and the last row says that it is written."""
    end = inspect.load(given.learned).target.eos
    page = at.open(f"decoding?model=learned&text={TEXT}&chosen=9&chosen={end}")
    assert page.locator(".tri-word").last.text_content() == "(end)"
    other = page.locator(".candidates li").first.locator("button").first
    if other.get_attribute("aria-pressed") == "true":
        other = page.locator(".candidates li").nth(1).locator("button").first
    id = other.get_attribute("data-id")
    other.click()
    at.until(f"location.search.includes('chosen=9&chosen={id}')")
    at.until("document.querySelector('[data-fact=written]').innerText === '2'")


def test_sampling(at: Any, language_model: Path) -> None:
    page = at.open(
        f"decoding?model=letters&text={PROMPT}&chosen=&temperature=0.7&k=9&p=0.8&least=0.02"
    )
    subject = inspect.load(language_model)
    known = next_token(subject, PROMPT)
    settings = SearchSettings(
        sampling=True, temperature=0.7, top_k=9, top_p=0.8, min_p=0.02, seed=5, max_length=4
    )
    shares = distribution(torch.from_numpy(known.scores)[None, None], settings)[0, 0].numpy()
    best = known.scores.argsort(kind="stable")[::-1][:12]
    assert told(page) == [[percent(math.exp(known.scores[i])), percent(shares[i])] for i in best]
    possible = int(np.isfinite(known.scores).sum())
    assert at.fact("drawable") == f"{int((shares > 0).sum())} of {possible}"
    positive = shares[shares > 0]
    entropy = -float((positive * np.log(positive)).sum())
    assert at.fact("drawn-entropy") == f"{at.shown(entropy, 3)} nats"

    page.locator(".side summary", has_text="Sampling").click()
    page.get_by_label("Seed of the draws, number").fill("5")
    page.get_by_label("Seed of the draws, number").press("Enter")
    at.until("location.search.includes('seed=5')")
    at.idle()
    tokenizer = subject.source
    prompt = torch.tensor([[tokenizer.bos, *tokenizer.encode(PROMPT)]])
    from heedful.search.step_model import Continuation

    model = Continuation(subject.model, vocabulary=tokenizer.size, ends=(tokenizer.eos,), limit=4)
    positions = torch.arange(prompt.shape[1])[None]
    drawn = search(model, prompt, positions, settings, specials=model.specials)[0][0].tokens
    for count in range(1, min(4, len(drawn)) + 1):
        page.get_by_role("button", name="Draw one").click()
        at.until(f"location.search.split('chosen=').length === {count + 1}")
        at.idle()
    ids = [int(part.split("&")[0]) for part in at.address().split("chosen=")[1:]]
    assert ids == list(drawn[:4])


def test_temperature_0_is_greedy(language_model: Path) -> None:
    request = decoding_page.StepRequest(model="letters", text=PROMPT, temperature=0.0, seed=7)
    shown = decoding_page.step(request, Workspace([language_model]))
    best = int(next_token(inspect.load(language_model), PROMPT).scores.argmax())
    assert shown["drawn"] == best
    assert (shown["drawable"], shown["drawn_entropy"]) == (1, 0.0)
    assert [(each["id"], each["drawn"]) for each in shown["candidates"]][:2] == [
        (best, 1.0),
        (shown["candidates"][1]["id"], 0.0),
    ]


def test_the_slider_goes_down_to_temperature_0(at: Any, language_model: Path) -> None:
    page = at.open(f"decoding?model=letters&text={PROMPT}&chosen=&temperature=0")
    known = next_token(inspect.load(language_model), PROMPT)
    assert at.fact("drawable") == f"1 of {int(np.isfinite(known.scores).sum())}"
    page.get_by_role("button", name="Draw one").click()
    at.until(f"location.search.includes('chosen={int(known.scores.argmax())}')")


@pytest.mark.parametrize("name", ["learned", "letters"])
def test_the_beam_as_a_tree(at: Any, given: Any, language_model: Path, name: str) -> None:
    path = given.learned if name == "learned" else language_model
    page = at.open(f"decoding?model={name}&text={PROMPT}&beam=3&n=2&longest=9&penalty=1&dropped=1")
    settings = SearchSettings(beam=3, n_best=2, length_penalty=1.0, max_length=9)
    known = follow_search(inspect.load(path), PROMPT, settings)
    looked = [each for step in known.steps for each in step.ranked]
    figure = page.locator("figure", has_text="The beam as a tree")
    figure.locator("summary").click()
    assert at.fact("steps") == str(len(known.steps))
    assert at.fact("looked") == str(len(looked))
    for fate in ("lived", "ended", "dropped"):
        count = sum(each.fate == fate for each in looked)
        assert page.locator(f".tree .node.{fate}").count() == count
    assert page.locator(".tree .node.returned").count() == len(known.hypotheses) == 2
    alone = follow_search(
        inspect.load(path), PROMPT, settings.model_copy(update={"beam": 1, "n_best": 1})
    )
    assert at.fact("greedy").removesuffix(" …").strip() in alone.texts[0].replace("\n", "⏎")
    ranks = page.locator(".ranks .found [dir=auto]")
    same = len({each.strip() for each in ranks.all_inner_texts()}) == 1
    assert ("Here both find the same." in page.locator(".ranks + .note").inner_text()) == same
    rows = page.locator(".ranks .found").all_inner_texts()[1:]
    for row, hypothesis, text in zip(rows, known.hypotheses, known.texts, strict=True):
        assert chance(hypothesis.score) in row
        assert at.shown(hypothesis.normalized_score) in row
        assert text.replace("\n", "⏎").strip() in row
    bold = page.locator(".tree .node.bold text:first-of-type").all_inner_texts()
    assert len(bold) == len(known.hypotheses[0].tokens) + 2  # its tokens, start and end

    bars = "(all) => all.map((each) => each.width.baseVal.value / 100)"  # of the box's width
    lengths = page.locator(".tree .node[data-column='0'] .chance").evaluate_all(bars)
    scores = [each.score for each in known.steps[0].ranked][: len(lengths)]
    assert lengths == pytest.approx([math.exp(score) for score in scores], abs=1e-4)

    tree = page.locator(".tree svg")
    tree.focus()
    for key in ("ArrowRight", "ArrowDown"):
        tree.press(key)
    readout = page.locator("figure", has_text="The beam as a tree").locator(".readout")
    second = known.steps[0].ranked[1]
    assert readout.inner_text().startswith("Step 1, “")
    assert f"has {percent(math.exp(second.score))} in all and went on" in readout.inner_text()
    tree.press("Enter")  # the text of the box is what is written
    at.until(f"location.search.includes('chosen={second.token}')")
    at.until("document.querySelector('[data-fact=written]').innerText === '1'")
    at.until("document.querySelector('.node.here')?.dataset.row === '1'")
    first = known.steps[1].ranked[0]
    before = next(each for each in known.steps[0].ranked if each.beam == first.parent)
    page.locator(".node[data-column='1'][data-row='0']").click()
    at.until(f"location.search.includes('chosen={before.token}&chosen={first.token}')")
    at.until("document.querySelector('.node.here')?.dataset.column === '1'")
    assert figure.locator("tbody tr").count() == len(looked)
    ranked = figure.locator("tbody tr", has_text="ended, ranked by").count()
    assert ranked == sum(each.fate == "ended" for each in looked)

    page.locator(".side summary", has_text="Beam search").click()
    page.get_by_label("Show what was dropped").uncheck()
    assert page.locator(".tree .node.dropped").count() == 0
    assert page.locator(".tree .node.lived").count() == sum(e.fate == "lived" for e in looked)
    before, narrow = page.viewport_size, "document.querySelector('.tree rect').width.baseVal.value"
    page.set_viewport_size({"width": 390, "height": 800})  # the boxes are narrow, not cut off
    at.until(f"{narrow} < 70")
    page.set_viewport_size(before)
    at.until(f"{narrow} > 100")


def test_the_tree_grows_and_stops(at: Any) -> None:
    page = at.open(f"decoding?model=learned&text={PROMPT}&beam=3&longest=9")
    assert page.get_by_role("button", name="Play").count() == 0  # who asks for no motion sees none
    page.emulate_media(reduced_motion="no-preference")
    page.reload()
    at.idle()
    page.get_by_role("button", name="Play").click()
    page.locator(".node.to-come").first.wait_for(state="attached")
    page.get_by_role("button", name="Stop").click()
    assert page.locator(".to-come").count() == 0
    # What is written goes along the tree, a token at a time.
    page.get_by_role("button", name="Start again").click()
    at.until("document.querySelector('[data-fact=written]').innerText === '0'")
    page.get_by_role("button", name="Greedy to the end").click()
    for count in (1, 2, 3):
        at.until(f"document.querySelector('[data-fact=written]').innerText === '{count}'")
    page.get_by_role("button", name="Back one").click()  # and stops where somebody goes elsewhere
    page.wait_for_timeout(1200)
    assert at.fact("written") == "2"
    page.emulate_media(reduced_motion="reduce")


@pytest.mark.parametrize(("model", "text"), [("learned", TEXT), ("letters", PROMPT)])
def test_why_a_candidate_is_likely(at: Any, model: str, text: str, request: Any) -> None:
    """The section of Translate, for a candidate of this step and for the token written last."""
    page = at.open(f"decoding?model={model}&text={text}&chosen=")
    path = request.getfixturevalue("given").learned
    subject = inspect.load(
        request.getfixturevalue("language_model") if model == "letters" else path
    )
    first = next_token(subject, text)
    best, second = (int(id) for id in first.scores.argsort(kind="stable")[::-1][:2])
    rows = page.locator(".candidates li")
    rows.nth(1).get_by_role("button", name="Why").click()
    said = page.locator(".why .sentence")
    said.filter(has_text=f"is {at.shown(float(first.scores[second]), 3)}").wait_for()
    assert f"why={second}" in at.address()
    title = "Translate again" if model == "learned" else "Continue again"
    page.locator(".why h3", has_text=title).wait_for()
    at.idle()
    # What can fall silent is the text, without what is written.
    given = subject.source.encode(text)
    words = page.locator(".why .row", has_text="Silent:").get_by_role("button").all_inner_texts()
    assert "".join(words) == "".join(subject.source.pieces(given)).replace("\u2581", "")

    rows.first.get_by_role("button", name="Write").click()
    at.until("!document.querySelector('.why section')")  # another step: the reasons are gone
    page.get_by_role("button", name="Why “").click()
    said.filter(has_text=f"is {at.shown(float(first.scores[best]), 3)}").wait_for()
    assert "why=last" in at.address()
    page.reload()
    said.filter(has_text=f"is {at.shown(float(first.scores[best]), 3)}").wait_for()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", None),
        ("x" * 100_000, "100,000 characters"),
        ("\x07", "model's tokenizer knows nothing"),
        ("القطة 🐈‍⬛", ""),
        ("one\ntwo", "several lines"),
    ],
)
def test_any_text(at: Any, text: str, message: str | None) -> None:
    page = at.open("decoding?model=learned")
    page.get_by_label("Text", exact=True).fill(text)
    at.idle()
    if message is None:
        assert page.locator("text=Type a text first").count() == 2
    elif message:
        page.wait_for_selector(".problem")
        assert message in page.locator(".problem").first.inner_text()
        page.get_by_label("Text", exact=True).fill(TEXT)
        page.wait_for_selector(".candidates")
        at.until("!document.querySelector('.problem')")
    else:
        page.wait_for_selector(".candidates")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("&chosen=99999&chosen=5", "token 99999"),
        ("&chosen=x", "chosen"),
        ("&chosen=5" * 60, "more than the 49"),
        ("&longest=60", "learned 49 positions"),
        ("&model=nobody", "nobody"),
    ],
)
def test_wrong_addresses_say_so(at: Any, query: str, message: str) -> None:
    page = at.open(f"decoding?text={TEXT}{query}")
    page.wait_for_selector(".problem")
    assert message in " ".join(page.locator(".problem").all_inner_texts())


def test_everyone_can_use_it(at: Any, axe: str) -> None:
    at.open(f"decoding?model=learned&text={TEXT}&chosen=9&p=0.9")
    at.check_everyone_can_use_it(axe)
