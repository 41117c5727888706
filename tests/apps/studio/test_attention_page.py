"""Page "Attention", and "Step by step" on a model: every weight is the library's."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful import inspect
from heedful.apps.studio.head_labels import LabelsRequest
from heedful.apps.studio.pages import attention_page as attention
from heedful.apps.studio.pages import steps_page as steps_model
from heedful.apps.studio.workspace import Workspace
from heedful.errors import UserError
from heedful.models.build import build_model
from heedful.models.checkpoint import save_model
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.model_spec import CausalLMSpec
from heedful.search.search_settings import SearchSettings
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

ALPHABET = "abcdefgh ijklmnopqrstuvwxyz."
CORPUS = "\n".join("the cat sat on a mat"[n:] + " a dog ran" for n in range(12))


def write(directory: Path, kind: str, num_heads: int, head_width: int) -> Path:
    """An untrained model of characters: of running text, with rotation and shared keys, or not."""
    tokenizers = train_pair(TokenizerSpec(kind="characters"), [ALPHABET] * 3, [ALPHABET] * 3)
    heads = {"num_heads": num_heads, "head_width": head_width}
    values = {"width": 16, "vocabulary": tokenizers.source.size, "max_length": 700}
    torch.manual_seed(1)
    if kind == "causal_lm":
        heads |= {"mask": {"kind": "causal"}, "rotary": {}, "num_kv_heads": 2, "softcap": 9.0}
    stack = {"num_layers": 2, "block": {"self_attention": heads, "feedforward": {"width": 24}}}
    spec: Any
    if kind == "causal_lm":
        spec = CausalLMSpec.parse({**values, "decoder": stack})
    else:
        spec = EncoderSpec.parse({**values, "encoder": stack, "heads": [{"kind": "masked_lm"}]})
    model = build_model(spec).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        if kind == "encoder":  # in the first layer every token looks everywhere alike
            model.encoder.blocks[0].self_attention.projection.weight[: 2 * 16].zero_()
            model.encoder.blocks[0].self_attention.projection.bias[: 2 * 16].zero_()
    save_model(model, tokenizers, directory)
    return directory


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory, given: Any) -> list[Path]:
    """A translator, a language model with wide heads, a text encoder with many."""
    root = tmp_path_factory.mktemp("readers")
    lm = write(root / "lm", "causal_lm", 4, 64)
    return [given.t5, lm, write(root / "encoder", "encoder", 8, 2)]


@pytest.fixture(scope="module")
def at(readers: list[Path], serve: Callable[..., str]) -> str:
    """The address of a studio with these models."""
    return serve(readers)


@pytest.fixture
def look(visit_at: Callable[..., Any], at: str) -> Any:
    """A window on it."""
    return visit_at(at)


def unpacked(found: dict[str, Any]) -> np.ndarray:
    data = base64.b64decode(found["weights"]["float32"])
    return np.frombuffer(data, "<f4").reshape(found["weights"]["shape"])


def ask(call: Any, readers: list[Path], **values: Any) -> Any:
    request, answer = call
    return answer(request.parse(values), Workspace(readers))


SHOW = (attention.ShowAttentionRequest, attention.show)
LABELS = (LabelsRequest, attention.labels)
FOLLOW = (steps_model.QueryRequest, steps_model.follow)


@pytest.mark.parametrize(
    ("number", "second", "which"),
    [
        (0, None, ""),
        (0, "a dog", "typed"),
        (1, None, ""),
        (1, None, "own"),
        (1, "dog", "typed"),
        (2, None, ""),
    ],
)
def test_weights_are_the_librarys(readers, number, second, which) -> None:
    path = readers[number]
    subject = inspect.load(path)
    search = SearchSettings(beam=1, max_length=32) if which == "own" else None
    reading = inspect.read(subject, "the cat sat", second, search=search)
    for part in inspect.parts_of(subject.model):
        asked = {"model": path.name, "text": "the cat sat", "second": second or "", "given": which}
        whole = inspect.attention(subject, reading, part)
        for layer in whole.layers:
            found = ask(SHOW, readers, **asked, part=part, layer=layer)
            assert np.array_equal(unpacked(found), whole.weights[layer])
            assert tuple(found["rows"]["pieces"]) == whole.rows
            assert tuple(found["columns"]["pieces"]) == whole.columns
            assert found["target"] == reading.target
        one = ask(SHOW, readers, **asked, part=part, heads=[1])
        assert one["heads"] == [1]
        assert np.array_equal(unpacked(one)[0], whole.weights[-1, 1])


def test_long_texts_get_the_heads_that_fit(readers, monkeypatch) -> None:
    monkeypatch.setattr(attention, "MOST_WEIGHTS", 3 * 12 * 12)
    found = ask(SHOW, readers, model="encoder", text="the cat sat")
    assert (found["heads"], found["weights"]["shape"]) == ([0, 1, 2], [3, 12, 12])


BAD = {
    "empty": ({"text": " \n"}, "no text"),
    "long": ({"text": "x" * 100_000}, "100,000 characters"),
    "tokens": ({"text": "ab " * 200, "model": "encoder"}, "tokens are more than"),
    "part": ({"text": "a cat", "part": "cross", "model": "lm"}, "no cross attention"),
    "unheard": ({"text": "a cat", "part": "no"}, "no attention called"),
    "layer": ({"text": "a cat", "layer": 7}, "no layer with index 7"),
    "head": ({"text": "a cat", "heads": [9]}, "no head with index 9"),
    "model": ({"text": "a cat", "model": "../etc"}, "no model or run called"),
    "untyped": ({"text": "a cat", "given": "typed"}, "No second text is typed"),
    "writes": ({"text": "a cat", "given": "own", "model": "encoder"}, "writes no text"),
    "reads": ({"text": "a cat", "given": "none"}, "reads a translation"),
    "pair": ({"text": "a", "second": "b", "given": "typed", "model": "encoder"}, "two texts"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused(readers, name) -> None:
    values, why = BAD[name]
    with pytest.raises(UserError, match=why):
        ask(SHOW, readers, **{"model": "t5"} | values)


def test_labels_come_with_evidence(readers) -> None:
    subject = inspect.load(readers[2])
    texts = CORPUS.splitlines()
    found = ask(LABELS, readers, model="encoder", corpus=CORPUS)
    measured = inspect.measure(subject, inspect.read_all(subject, texts))
    meant = [(h.layer, h.head, h.label.why) for h in measured.heads if h.label]
    clear = [each for each in found["labels"] if each["clear"]]
    assert [(each["layer"], each["head"], each["why"]) for each in clear] == meant
    assert {layer for layer, _, _ in meant} >= {0}
    assert found["enough"]
    few = ask(LABELS, readers, model="encoder", corpus="\n".join(texts[:3]))
    assert (few["labels"], few["enough"], few["sentences"]) == ([], False, 3)
    for corpus, why in (("\n", "no sentence"), ("a\n" * 201, "at most 200"), ("a\tb\na", "a tab")):
        with pytest.raises(UserError, match=why):
            ask(LABELS, readers, model="t5", corpus=corpus)
    pairs = "\n".join(f"{line}\ta dog" for line in texts)
    crossed = ask(LABELS, readers, model="t5", corpus=pairs, part="cross")
    assert crossed["sentences"] == 12


def links(page: Any) -> dict[tuple[int, int, int], float]:
    """(row, column, head) to weight of the lines that are drawn."""
    found = page.locator("path.link").evaluate_all(
        "lines => lines.map(line => [line.dataset.link, line.dataset.weight])"
    )
    return {tuple(map(int, name.split(","))): float(weight) for name, weight in found}


def drawn(weights: np.ndarray) -> dict[tuple[int, int, int], float]:
    """Lines that are strong enough to be seen, of weights [heads, rows, columns]."""
    strong = np.argwhere(weights >= 82 / 4096)  # the first of 4096 steps above 0.02
    return {(int(r), int(c), int(h)): float(weights[h, r, c]) for h, r, c in strong}


def test_lines_of_a_translator(look, readers) -> None:
    subject = inspect.load(readers[0])
    text = "the dog sat on a mat"
    reading = inspect.read(subject, text)
    cross = inspect.attention(subject, reading, "cross", layers=[1]).weights[0]
    page = look.open(f"attention?model=t5&part=cross&text={text.replace(' ', '+')}")
    assert page.locator("#written").inner_text() == reading.target
    assert links(page) == pytest.approx(drawn(cross))
    assert page.locator("[data-side=row]").count() == cross.shape[1]

    # A word's lines alone: under the pointer, by keyboard, and kept by a click.
    page.locator("[data-side=row]").nth(1).hover()
    assert links(page) == {at: w for at, w in drawn(cross).items() if at[0] == 1}
    page.locator("[data-side=column]").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert links(page) == {at: w for at, w in drawn(cross).items() if at[1] == 2}
    page.keyboard.press("Enter")
    look.until("location.search.includes('column=2')")
    lit = page.locator("[data-side=row]").evaluate_all(
        "words => words.map(word => Number(word.style.getPropertyValue('--weight')))"
    )
    assert lit == pytest.approx(cross.mean(0)[:, 2], abs=1e-4)

    page.get_by_role("button", name="2", exact=True).click()
    kept = {at: w for at, w in drawn(cross).items() if at[1] == 2 and at[2] == 0}
    assert links(page) == pytest.approx(kept)
    page.reload()
    look.idle()
    assert links(page) == pytest.approx(kept)
    assert page.locator("path.pale").count() == len(
        {at for at in drawn(cross) if at[1] == 2}
    ) - len(kept)
    page.get_by_role("button", name="All", exact=True).click()
    assert links(page) == pytest.approx({at: w for at, w in drawn(cross).items() if at[1] == 2})

    page.get_by_label("Attention of").select_option("encoder")
    look.idle()
    encoder = inspect.attention(subject, reading, "encoder").weights[0]
    assert links(page) == pytest.approx(drawn(encoder))
    page.get_by_role("button", name="Matrix").click()
    cells = look.numbers_of(page.locator("figure").first, 2)
    large = [(cell, w) for cell, w in zip(cells, encoder.mean(0)[2], strict=True) if w > 1e-3]
    assert [cell for cell, _ in large] == [look.shown(float(w), 3) for _, w in large]
    page.get_by_text("More settings").click()
    page.get_by_label("Translation", exact=True).select_option("typed")
    assert page.get_by_label("Translation, typed").input_value() == reading.target


TEXTS = ["", "\x07\x00", "القطة على", "🐈‍⬛ cat", "x" * 100_000]


@pytest.mark.parametrize("text", TEXTS, ids=["empty", "control", "rtl", "emoji", "long"])
def test_any_text(look, text) -> None:
    page = look.open("attention?model=t5&view=lines")
    page.get_by_label("Text", exact=True).fill(text)
    look.idle()
    if len(text) > 4000:
        page.wait_for_selector(".problem")
        assert "100,000 characters" in page.locator(".problem").inner_text()
    elif text:
        page.wait_for_selector("[data-side=column], .problem")
        assert page.locator(".problem").count() == int(text == TEXTS[1])
    else:
        assert "Type a text" in page.locator(".result").inner_text()


def test_a_part_that_is_missing_is_said_to(look) -> None:
    page = look.open("attention?model=encoder&part=cross&text=a+cat")
    problem = page.locator(".problem").inner_text()
    assert "no cross attention" in problem
    assert "encoder" in problem
    page.get_by_label("Attention of").select_option("encoder")
    page.wait_for_selector("path.link")
    assert page.locator(".problem").count() == 0


CHOOSE = """async view => {
  const views = [...document.querySelectorAll("[aria-label='Drawn as'] button")];
  const [before, after] = view.map(name => views.find(each => each.innerText === name));
  if (before.getAttribute("aria-pressed") !== "true") throw new Error(view[0]);
  after.click();
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""


def seconds_to_choose(visit: Any, before: str, after: str) -> float:
    """What the page's thread worked until another view was painted; others may use the machine."""
    asked = visit.context.new_cdp_session(visit.page)
    asked.send("Performance.enable", {"timeDomain": "threadTicks"})

    def worked() -> float:
        found = asked.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))

    start = worked()
    visit.page.evaluate(CHOOSE, [before, after])
    return worked() - start


def test_256_tokens_are_drawn_in_less_than_a_second(look) -> None:
    text = ("the cat sat on a mat. " * 12)[:254] + "x"
    page = look.open(f"attention?model=encoder&view=matrix&text={text.replace(' ', '+')}")
    page.wait_for_selector("canvas")
    assert "256 × 256" in page.locator("figcaption").first.inner_text()
    assert 0 < seconds_to_choose(look, "Matrix", "Lines") < 1
    assert page.locator("[data-side=row]").count() == 256
    assert 0 < page.locator("path.link").count() <= 1200
    page.locator(
        "figure .note", has_text=re.compile(r"A weight below 0\.\d+ has no line")
    ).wait_for()
    assert 0 < seconds_to_choose(look, "Lines", "Matrix") < 1
    assert page.locator(".pair figure:not(.overview) canvas").count() == 1


def test_heads_are_named_where_it_is_clear(look, axe) -> None:
    page = look.open("attention?model=encoder&layer=1&text=the+cat+sat")
    page.get_by_text("Names of the heads").click()
    page.get_by_label("Sentences of your own, one a line").fill(CORPUS)
    page.get_by_role("button", name="Measure the heads").click()
    page.wait_for_selector(".head .label")
    assert page.locator(".head .label").all_inner_texts() == ["broad"] * 8
    assert "entropy of" in page.locator(".figures tbody tr").first.inner_text()
    look.check_everyone_can_use_it(axe)


# Step by step


def test_steps_on_a_model(look, readers) -> None:
    subject = inspect.load(readers[1])
    reading = inspect.read(subject, "the cat sat on a mat in")
    asked = {"layer": 1, "head": 3, "row": 21}
    found = inspect.attention_steps(subject, reading, "decoder", **asked)
    counted = asked | {"layer": asked["layer"] + 1, "head": asked["head"] + 1}  # as the page does
    query = "&".join(f"{name}={value}" for name, value in counted.items())
    page = look.open(f"steps?stage=6&all=1&on=model&model=lm&text=the+cat+sat+on+a+mat+in&{query}")
    page.wait_for_selector("[data-stage='6']")
    shown = np.sort(np.argsort(-found.weights, kind="stable")[:16])

    def results(stage: int) -> list[str]:
        rows = page.locator(f"[data-stage='{stage}'] .sums strong")
        return list(rows.all_inner_texts())

    told = {1: found.raw, 2: found.scaled, 4: found.scores, 5: found.weights}
    for stage, values in told.items():
        assert results(stage) == [look.shown(float(v)) for v in values[shown]]
    assert page.locator("[data-stage='3']").count() == 0  # there is no bias, and so no step for it
    assert "60 others" in page.locator("[data-stage='1'] td").first.inner_text()
    assert "rotary" in page.locator("[data-stage='0']").inner_text()
    best = np.sort(np.argsort(-np.abs(found.context), kind="stable")[:4])
    numbers = ", ".join(look.shown(float(v)) for v in found.context[best])
    assert results(6)[-1] == f"({numbers})"


def test_steps_on_a_model_are_chosen(look, readers, axe) -> None:
    page = look.open("steps?stage=6&all=1")
    assert page.locator("[data-stage]").count() == 5
    page.get_by_role("button", name="A word in a model").click()
    page.wait_for_selector("[data-stage='6'] code")
    assert "encoder.0.self.context" in page.locator("[data-stage='6']").inner_text()
    page.get_by_label("Attention of").select_option("cross")
    page.wait_for_selector("[data-stage='6'] code:text('cross.context')")
    assert "decoder.1.cross.context" in page.locator("[data-stage='6']").inner_text()
    page.get_by_label("Attention of").select_option("encoder")
    page.wait_for_selector(
        "text=The number that this model adds for the positions of query and key"
    )
    page.get_by_label("Head", exact=True).select_option(index=1)
    look.until("location.search.includes('head=2')")
    look.idle()
    text = page.get_by_label("Text", exact=True).input_value()
    subject = inspect.load(readers[0])
    reading = inspect.read(subject, text)
    found = inspect.attention_steps(subject, reading, "encoder", layer=0, head=1, row=0)
    first = page.locator("[data-stage='3'] .sums td").first.inner_text()
    assert found.bias is not None
    amount = look.shown(abs(float(found.bias[0])))
    assert first.split(" ")[1:] == ["−" if found.bias[0] < 0 else "+", amount]
    assert page.locator("[data-stage]").count() == 6  # a bias, and nothing hidden
    page.get_by_role("button", name="Back").click()
    page.locator(".reached[data-stage='5']").wait_for()
    assert page.locator("[data-stage]").count() == 6  # all of them, whichever is reached
    page.get_by_label("Text", exact=True).fill("a cat")
    look.until("document.querySelectorAll(\"[data-stage='1'] tr\").length < 5")
    look.check_everyone_can_use_it(axe)


def test_steps_of_every_part(readers) -> None:
    subject = inspect.load(readers[0])
    reading = inspect.read(subject, "the cat sat on a mat", "a dog")
    asked = {"model": "t5", "text": "the cat sat on a mat", "second": "a dog", "given": "typed"}
    for part in ("encoder", "decoder", "cross"):
        found = ask(FOLLOW, readers, **asked, part=part, head=1, row=2)
        meant = inspect.attention(subject, reading, part, heads=[1], rows=[2]).weights[-1, 0, 0]
        assert np.array_equal(np.float32(found["weights"]), meant)
        json.dumps(found, allow_nan=False)  # what is hidden is null
        for key in found["keys"]:
            whole = sum(value for _, value in key["leading"]) + key["rest"]
            assert whole == pytest.approx(key["raw"], abs=1e-6)
        added = np.sum([key["parts"] for key in found["keys"]], axis=0) + found["others"]["parts"]
        np.testing.assert_allclose(added, found["context"], atol=1e-5)
    with pytest.raises(UserError, match="no row with index 99"):
        ask(FOLLOW, readers, **asked, part="cross", row=99)


def test_all_heads_at_a_glance(look, readers, axe) -> None:
    subject = inspect.load(readers[0])
    reading = inspect.read(subject, "the dog sat on a mat")
    maps = inspect.attention(subject, reading, "encoder").weights
    page = look.open("attention?model=t5&part=encoder&text=the+dog+sat+on+a+mat")
    assert page.locator(".head-grid [data-head]").count() == maps.shape[0] * maps.shape[1]
    page.get_by_label("Layer 1, head 2", exact=True).click()
    look.until("location.search.includes('heads=2')")
    look.idle()
    pressed = page.locator(".head-grid [aria-pressed=true]")
    assert pressed.count() == 1
    assert pressed.get_attribute("aria-label") == "Layer 1, head 2"
    expected = {at: w for at, w in drawn(maps[0]).items() if at[2] == 1}
    assert links(page) == pytest.approx(expected)
    page.get_by_text("More settings").click()
    page.get_by_label("Lines from this weight on", exact=True).fill("0.3")
    look.idle()
    assert links(page) == pytest.approx({at: w for at, w in expected.items() if w >= 0.3})
    assert look.violations(axe) == []


def test_the_neuron_view_is_the_models(look, readers) -> None:
    subject = inspect.load(readers[0])
    reading = inspect.read(subject, "the dog sat")
    steps = inspect.attention_steps(subject, reading, "encoder", layer=0, head=1, row=2)
    page = look.open(
        "attention?model=t5&part=encoder&layer=1&heads=2&row=2&view=neurons&text=the+dog+sat"
    )
    page.wait_for_selector("[data-weight]")
    shown = page.locator("[data-weight]").evaluate_all(
        "bars => bars.map(bar => Number(bar.dataset.weight))"
    )
    assert shown == pytest.approx(steps.weights.tolist(), abs=1e-6)
    page.locator(".word-row [data-word='0']").click()
    look.until("location.search.includes('row=0')")
    look.idle()
    other = inspect.attention_steps(subject, reading, "encoder", layer=0, head=1, row=0)
    look.until(
        "Math.abs(Number(document.querySelector('[data-weight]').dataset.weight)"
        f" - {float(other.weights[0])}) < 1e-5"
    )
