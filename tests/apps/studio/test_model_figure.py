"""The whole model as a figure: all of its parts and no other, opened where they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import reject, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from heedful import inspect
from heedful.apps.studio.app import build_app
from heedful.apps.studio.model_figure import KINDS, figure_of
from heedful.apps.studio.workspace import Workspace
from heedful.errors import ConfigError
from heedful.models.cost import count_parameters
from heedful.models.preset_files import preset_names, preset_spec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.pretrained.catalogue import models_at_hand

TEXT = "the cat sat on a mat"
URL = TEXT.replace(" ", "+")


def boxes(found: dict[str, Any], name: str, layer: int = 0) -> list[dict[str, Any]]:
    """The boxes of a stack with one of its blocks, from the input to the output."""
    (stack,) = (each for each in found["stacks"] if each["name"] == name)
    return [*stack["input"], *stack["blocks"][layer], *stack["output"]]


def total(found: dict[str, Any]) -> int:
    """The parameters of all boxes of all layers."""
    return sum(
        box["parameters"]
        for stack in found["stacks"]
        for part in (stack["input"], *stack["blocks"], stack["output"])
        for box in part
    )


def titles(found: dict[str, Any], name: str) -> list[str]:
    return [box["title"] for box in boxes(found, name)]


def test_the_figure_of_the_paper() -> None:
    found = figure_of(preset_spec("transformer-base", 37_000))
    assert [stack["layers"] for stack in found["stacks"]] == [6, 6]
    block = ["Multi-Head Attention", "Add & Norm", "Feed Forward", "Add & Norm"]
    assert titles(found, "encoder") == ["Input Embedding", "Positional Encoding", *block]
    assert titles(found, "decoder") == [
        "Output Embedding",
        "Positional Encoding",
        "Masked Multi-Head Attention",
        "Add & Norm",
        *block,
        "Linear",
        "Softmax",
    ]
    assert boxes(found, "encoder")[2]["note"] == "8 heads of 64"
    assert boxes(found, "encoder")[4]["note"] == "512 → 2,048 → 512"


@pytest.mark.parametrize("name", preset_names())
def test_every_parameter_of_a_preset_is_in_one_box(name: str) -> None:
    spec = preset_spec(name)
    assert spec.kind in KINDS
    found = figure_of(spec)
    assert total(found) == found["parameters"] == count_parameters(spec)
    for stack in found["stacks"]:
        keys = [box["key"] for box in boxes(found, stack["name"])]
        assert len(set(keys)) == len(keys)


SHAPES = st.fixed_dictionaries(
    {
        "positions": st.sampled_from(["sinusoidal", "learned", "rotary", "alibi", "t5", "none"]),
        "norm": st.sampled_from(["layer", "rms"]),
        "norm_placement": st.sampled_from(["pre", "post"]),
        "num_kv_heads": st.sampled_from([1, 2, 4]),
        "mixer": st.sampled_from(["attention", "mamba", "ssru", "rwkv"]),
        "share_embeddings": st.sampled_from(["all", "target", "none"]),
        "decoder_layers": st.integers(1, 3),
    }
)


@settings(max_examples=12, deadline=None)
@for_all(options=SHAPES, writes=st.booleans())
def test_every_parameter_of_any_model_is_in_one_box(options: dict[str, Any], writes: bool) -> None:
    sizes = {"width": 16, "num_heads": 4, "feedforward": 24, "encoder_layers": 2, "max_length": 32}
    try:
        shape = TranslatorShape.parse(sizes | options)
        spec: Any = causal_lm_spec(shape, 50, 32) if writes else translator_spec(shape, 50, 50)
    except ConfigError:
        reject()  # such as rotary positions where nothing attends
    found = figure_of(spec)
    assert total(found) == count_parameters(spec)
    decoder = titles(found, "decoder")
    # Norms stand on the sum in post-norm, and alone before their parts in pre-norm.
    assert ("Add & Norm" in decoder) == (options["norm_placement"] == "post")
    assert ("Masked Multi-Head Attention" in decoder) == (options["mixer"] == "attention")


def test_other_models_are_refused_in_words(tmp_path: Path, given: Any) -> None:
    client = TestClient(build_app(Workspace([given.t5])), base_url="http://localhost")
    refused = client.post("/api/tour/figure", json={"model": "nobody"})
    assert refused.status_code == 400
    assert "nobody" in str(refused.json())
    assert client.post("/api/tour/figure", json={"model": "t5"}).json()["kind"] == "translator"


def test_a_box_opens_where_it_stands(visit: Any, given: Any, axe: str) -> None:
    page = visit.open(f"tour?model=learned&text={URL}")
    box = page.locator("[data-box='encoder.self']")
    assert box.get_attribute("aria-expanded") == "false"
    assert page.locator(".model-inside").count() == 0
    box.click()
    visit.until("location.search.includes('open=encoder.self')")
    visit.idle()
    assert box.get_attribute("aria-expanded") == "true"
    assert page.locator(".model-box.open .model-inside").count() == 1
    assert page.locator(".model-inside [data-head]").count() == 2
    subject = inspect.load(given.learned)
    reading = inspect.read(subject, TEXT, "")
    flow = inspect.block_flow(subject, reading, "encoder", 0)
    parts = {part.key: part for part in flow.parts}
    cells = page.locator(".model-inside tbody tr").first.locator("td").all_inner_texts()
    assert cells[0] == " × ".join(map(str, parts["self.query"].shape[1:]))
    length = parts["self.query"].figures["mean length"]
    assert cells[1] == f"mean length {visit.shown(length, 3)}"
    assert visit.violations(axe) == []
    page.go_back()
    visit.idle()
    assert page.locator(".model-inside").count() == 0
    page.set_viewport_size({"width": 375, "height": 760})
    page = visit.open(f"tour?model=learned&text={URL}&open=decoder.feedforward&block=2")
    assert page.locator("[data-stack=decoder] .model-times select").input_value() == "1"
    visit.check_everyone_can_use_it(axe)


def test_boxes_are_reached_by_keys(visit: Any) -> None:
    page = visit.open(f"tour?model=learned&text={URL}")
    page.locator("[data-box='encoder.positions']").focus()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.dataset.box") == "encoder.self"
    page.keyboard.press("Enter")
    visit.until("location.search.includes('open=encoder.self')")
    visit.idle()
    assert page.evaluate("document.activeElement.dataset.box") == "encoder.self"
    page.keyboard.press("Escape")
    visit.until("!location.search.includes('open=')")
    assert page.evaluate("document.activeElement.dataset.box") == "encoder.self"


ADDRESSES = "() => [...document.querySelectorAll('[data-box]')].map((each) => each.dataset.box)"


@pytest.mark.parametrize("name", ["en-de", "english", "english-masked", "digits", "coin-player"])
def test_every_box_of_every_model_at_hand_opens(visit_at: Any, serve: Any, name: str) -> None:
    """Each says something, and nothing is refused: in models of text, images and tokens."""
    visit = visit_at(serve([models_at_hand()[name].path]))
    page = visit.open(f"tour?model={name}")
    for address in page.evaluate(ADDRESSES):
        page.locator(f"[data-box='{address}']").click()
        visit.idle()
        assert page.locator(".problem").count() == 0, address
        assert page.locator(".model-inside").inner_text(), address
    assert page.get_by_role("button", name="Next", exact=True).is_disabled() == (
        name in ("digits", "coin-player")
    )
    if name in ("digits", "coin-player"):
        assert not page.get_by_label("Text", exact=True).is_visible()


def test_wires_go_around_each_sublayer(visit: Any) -> None:
    """One bypass for each sum, two lines into each cross-attention, all inside of the drawing."""
    page = visit.open(f"tour?model=learned&text={URL}")
    sums = page.locator(".model-box.sum").count()
    assert sums == 5
    assert page.locator(".model-wire.bypass").count() == sums
    assert page.locator(".model-wire.memory").count() == 2
    outside = page.evaluate(
        """() => {
          const own = document.querySelector(".model-wires").getBoundingClientRect();
          return [...document.querySelectorAll(".model-wire")].filter((wire) => {
            const box = wire.getBoundingClientRect();
            return box.left < own.left - 1 || box.right > own.right + 1 || box.top < own.top - 1;
          }).length;
        }"""
    )
    assert outside == 0


GAPS = """() => [...document.querySelectorAll(".model-box.sum")].map((sum) => {
  const box = sum.getBoundingClientRect();
  const ends = [...document.querySelectorAll(".model-wire.bypass")].map((wire) => {
    const { x, y } = wire.getPointAtLength(wire.getTotalLength());
    const svg = wire.ownerSVGElement.getBoundingClientRect();
    return { x: x + svg.left, y: y + svg.top };
  });
  return Math.min(...ends.map(({ x, y }) => Math.hypot(
    Math.min(Math.abs(x - box.left), Math.abs(x - box.right)),
    Math.max(0, box.top - y, y - box.bottom))));
})"""


@pytest.mark.parametrize("opened", ["encoder.self", "decoder.cross", "decoder.embedding"])
def test_wires_follow_what_opens(visit: Any, opened: str) -> None:
    """Each sum is met by the end of a bypass, also once the open box has its numbers."""
    page = visit.open(f"tour?model=learned&text={URL}")
    page.locator(f"[data-box='{opened}']").click()
    visit.idle()
    page.locator(".model-inside :is(table, figure)").first.wait_for()
    visit.until(f"Math.max(...({GAPS})()) < 2")
