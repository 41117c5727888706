"""Pictures, numbers and addresses that are saved below a drawing."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from heedful import inspect
from heedful.inspect.subject import Subject

SVG = "{http://www.w3.org/2000/svg}"
TEXT = "the cat sat"
ADDRESS = "attention?model=learned&text=the+cat+sat&part=cross&layer=1&heads=2&row=1"


def save(page: Any, kind: str, place: str = "figure") -> bytes:
    """The content of the file as which the first drawing is saved."""
    control = page.locator(f"{place} .saves").first
    if control.get_by_role("button", name="Save").get_attribute("aria-expanded") == "false":
        control.get_by_role("button", name="Save").click()
    with page.expect_download() as waiting:
        control.get_by_role("button", name=kind, exact=True).click()
    found = waiting.value
    assert found.suggested_filename.endswith(f".{kind.lower()}")
    return Path(found.path()).read_bytes()


@pytest.fixture(scope="module")
def subject(given: Any) -> Subject:
    return inspect.load(given.learned)


def test_numbers_are_offered_as_soon_as_there_is_a_drawing(visit: Any) -> None:
    page, held = visit.page, []
    page.route("**/api/scale/*", lambda route: held.append(route))
    page.goto(visit.studio + "scale")
    control = page.locator("figure .saves").first
    control.get_by_role("button", name="Save").click()
    offered = control.locator(".row button:visible")
    assert offered.all_inner_texts() == ["SVG", "PNG", "Copy link"]
    page.wait_for_timeout(200)  # a question waits for a slider's next word
    for route in held:
        route.continue_()
    page.unroute("**/api/scale/*")
    visit.idle()
    assert offered.all_inner_texts() == ["SVG", "PNG", "JSON", "CSV", "Copy link"]
    control.get_by_role("button", name="Save").click()
    assert offered.all_inner_texts() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_saved_picture_is_what_is_seen(visit: Any, theme: str) -> None:
    """The drawing is laid over its own screenshot; only the edges of letters differ."""
    visit.page.emulate_media(color_scheme=theme)
    page = visit.open(ADDRESS)
    drawing = page.locator("figure .drawing").first
    page.mouse.move(0, 0)
    seen = Image.open(io.BytesIO(drawing.screenshot())).convert("RGB")
    box = page.evaluate(
        """() => {
          const [figure, drawing] = ["figure", "figure .drawing"]
            .map((name) => document.querySelector(name).getBoundingClientRect());
          return [drawing.left - figure.left, drawing.top - figure.top];
        }"""
    )
    saved = Image.open(io.BytesIO(save(page, "PNG"))).convert("RGB")
    saved = saved.resize((saved.width // 2, saved.height // 2), Image.Resampling.BOX)
    theirs = np.asarray(seen.reduce(4), float)  # letters are smoothed in two ways
    assert theirs.std() > 5
    differences = []
    for down in (-1, 0, 1):  # a place on the page need not be a whole pixel
        left, top = round(box[0]) + 14, round(box[1]) + 14 + down
        part = saved.crop((left, top, left + seen.width, top + seen.height))
        differences.append(np.abs(np.asarray(part.reduce(4), float) - theirs).max(-1).mean())
    assert min(differences) < 1


def test_an_svg_names_model_text_layer_and_head(visit: Any) -> None:
    page = visit.open(ADDRESS)
    links = page.locator("figure path.link, figure path.pale").count()
    root = ElementTree.fromstring(save(page, "SVG"))
    words = " ".join(each.text or "" for each in root.iter(f"{SVG}text"))
    caption = words.partition("Attention – ")[2]
    assert caption.startswith(f"Cross-attention, layer 1, head 2 Model: learned, “{TEXT}” ")
    assert all(each in caption for each in ("Layer: 1", "heads: 2", "chosen word"))
    assert len(list(root.iter(f"{SVG}path"))) == links
    # Other programs read it: no styles, scripts or parts of a page.
    text = ElementTree.tostring(root, encoding="unicode")
    assert not any(
        each in text for each in ("var(", "oklch", "foreignObject", " class=", " style=")
    )


def test_numbers_are_those_of_the_library(visit: Any, subject: Subject) -> None:
    reading = inspect.read(subject, TEXT)
    weights = inspect.attention(subject, reading, "cross", layers=[0], heads=[1]).weights[0, 0]
    page = visit.open(ADDRESS)
    rows = list(csv.reader(save(page, "CSV").decode("utf-8").splitlines()))
    assert rows[0][0] == "head"
    assert {row[0] for row in rows[1:]} == {"2"}
    np.testing.assert_allclose([float(row[3]) for row in rows[1:]], weights[1], rtol=1e-5)
    found = json.loads(save(page, "JSON"))
    assert found["caption"][1] == f"Model: learned, “{TEXT}”"
    assert [row[3] for row in found["tables"][0]["rows"]] == [float(row[3]) for row in rows[1:]]


def tables(page: Any, place: str = "figure") -> list[dict[str, Any]]:
    """The tables of a saved JSON file; the CSV file has the same cells."""
    found = json.loads(save(page, "JSON", place))["tables"]
    cells = [
        ["" if cell is None else str(cell).lower() for cell in row]
        for table in found
        for row in (table["columns"], *table["rows"])
    ]
    lines = list(csv.reader(io.StringIO(save(page, "CSV", place).decode("utf-8"), newline="")))
    flat = [[cell.lower() for cell in line] for line in lines if line]
    assert [row[:2] for row in flat] == [row[:2] for row in cells]
    assert list(map(len, flat)) == list(map(len, cells))
    return list(found)


def answer(page: Any, call: str, **asked: Any) -> dict[str, Any]:
    """What the studio's server answers a call of a page."""
    address = page.url.split("/", 3)
    found = page.request.post(f"{address[0]}//{address[2]}/api/{call}", data=asked)
    assert found.ok, found.text()
    return dict(found.json())


def test_the_tree_is_saved_with_every_hypothesis(visit: Any) -> None:
    page = visit.open("decoding?model=learned&text=the+cat&beam=2&n=1&longest=3&dropped=1")
    (tree,) = tables(page, "figure:has(.tree)")
    steps = answer(page, "decoding/beam", model="learned", text="the cat", beam=2, n_best=1,
                   length_penalty=0.6, max_length=3)["steps"]  # fmt: skip
    looked = [(i + 1, each) for i, step in enumerate(steps) for each in step["looked"]]
    assert len(tree["rows"]) == len(looked) > 3
    for row, (step, each) in zip(tree["rows"], looked, strict=True):
        cells = dict(zip(tree["columns"], row, strict=True))
        assert (cells["step"], cells["log-probability"]) == (step, each["score"])
        if step > 1:
            parent = steps[step - 2]["looked"][cells["continues row"] - 1]
            assert parent["beam"] == each["parent"]
            assert cells["outcome"].startswith(("ended", each["fate"]))


def test_the_neuron_view_is_saved_with_its_channels(visit: Any, subject: Subject) -> None:
    page = visit.open(ADDRESS + "&view=neurons")
    page.locator("figure svg[aria-label^='The query']").wait_for()
    (found,) = tables(page)
    reading = inspect.read(subject, TEXT)
    steps = inspect.attention_steps(subject, reading, "cross", layer=0, head=1, row=1)
    first, *keys, last = found["rows"]
    np.testing.assert_allclose(first[4:], steps.query, rtol=1e-5)
    for name, vectors in (
        ("key k", steps.keys),
        ("q × k", steps.products),
        ("value v", steps.values),
    ):
        rows = [row for row in keys if row[0] == name]
        assert [row[1] for row in rows] == list(steps.columns)
        np.testing.assert_allclose([row[4:] for row in rows], vectors, rtol=1e-5, atol=1e-7)
    products = [row for row in keys if row[0] == "q × k"]
    np.testing.assert_allclose([row[2] for row in products], steps.scores, rtol=1e-5)
    np.testing.assert_allclose([row[3] for row in products], steps.weights, rtol=1e-5)
    np.testing.assert_allclose(last[4:], steps.context, rtol=1e-5, atol=1e-7)


def test_the_grid_of_heads_is_saved_with_every_cell(visit: Any, subject: Subject) -> None:
    page = visit.open(ADDRESS + "&view=model")
    page.locator(".head-grid").wait_for()
    (found,) = tables(page, "figure:has(.head-grid)")
    reading = inspect.read(subject, TEXT)
    weights = inspect.attention(subject, reading, "cross").weights
    expected = [[*(i + 1 for i in place), value] for place, value in np.ndenumerate(weights)]
    np.testing.assert_allclose(found["rows"], expected, atol=0.5 / 255 + 1e-6)


@pytest.mark.parametrize("stop", range(2, 14))  # before: the figure of the model, and the text
def test_every_stop_of_the_tour_is_saved(visit: Any, stop: int) -> None:
    page = visit.open(f"tour?model=learned&text={TEXT.replace(' ', '+')}&stop={stop}&query=2")
    page.locator("main .drawing svg").first.wait_for()  # which has no numbers before
    saved = {each["title"]: each for each in tables(page, "main")}
    walk = answer(page, "tour/walk", model="learned", text=TEXT, chosen=[], layer=-1, head=0)

    def by_channel(title: str, vector: str) -> Any:
        return np.array([row[2:] for row in saved[title]["rows"] if row[0] == vector]).T

    if stop == 2:
        assert (by_channel("Embedding + position", "token") == np.array(walk["tokens"])).all()
        assert (by_channel("Embedding + position", "= input") == np.array(walk["embedding"])).all()
    if 2 < stop < 9:  # what is folded is seen as a strip
        strip = by_channel("Embedding, folded to a strip", "Embedding")
        assert (strip == np.array(walk["embedding"])).all()
    if stop == 4:
        assert (by_channel("Head 1", "key") == np.array(walk["key"])).all()
    if stop == 5:
        assert [row[1:] for row in saved["Scores"]["rows"]] == walk["scores"]
    if 5 < stop < 9:
        assert [row[1:] for row in saved["Scores"]["rows"]] == [walk["scores"][2]]
    if stop == 7:
        assert saved["× share"]["rows"] == [walk["weights"][2]]
    if stop == 8:
        assert (by_channel("Feed-forward", "neurons") == np.array(walk["inner"])).all()
    if stop >= 9:  # beside the decoder the encoder is one row
        memory = by_channel("The encoder's output", "after the last block")
        assert (memory == np.array(walk["after"][-1])).all()
        rows = saved["Attention to what is written"]["rows"]
        assert [row[1] for row in rows] == walk["cross"]["back"]
    if stop >= 10:
        rows = saved["Attention to the source"]["rows"]
        assert [row[1] for row in rows] == walk["cross"]["weights"]
    if stop >= 11:
        stream = walk["cross"]["stream"]
        found = np.array(saved["The decoder's newest column"]["rows"])[:, 1:].T
        assert found.tolist() == list(stream.values())
    if stop == 12:
        assert [row[1] for row in saved["Logits"]["rows"]] == [
            each["logit"] for each in walk["candidates"]
        ]
    if stop == 13:
        assert [row[1] for row in saved["Next word"]["rows"]] == [
            each["probability"] for each in walk["candidates"]
        ]


def test_a_copied_link_shows_the_same(visit: Any) -> None:
    page = visit.open("tour?model=t5&text=a+dog+ran&stop=6&query=1")
    page.evaluate(
        "() => { navigator.clipboard.writeText = async (text) => { window.got = text; }; }"
    )
    page.get_by_label("Text", exact=True).fill("dogs and cats")
    visit.idle()
    control = page.locator(".saves").first
    control.get_by_role("button", name="Save").click()
    control.get_by_role("button", name="Copy link").click()
    visit.until("window.got")
    link = page.evaluate("window.got")
    assert "while this studio runs" in control.inner_text()
    seen = page.locator(".drawing").first.inner_html()
    # The tab may remember another sentence by then; what the link says wins.
    page.evaluate("sessionStorage.clear()")
    page.goto(link)
    visit.idle()
    assert page.get_by_label("Text", exact=True).input_value() == "dogs and cats"
    assert page.locator(".drawing").first.inner_html() == seen


@pytest.mark.parametrize(
    "address",
    ["tour?stop=5", "steps", "scale", "positions", "block", "masks", "decoding", "builder",
     "without", "schedule", "results", "everywhere", "translate", "runs"],
)  # fmt: skip
def test_every_page_with_a_drawing_saves_it(visit: Any, address: str) -> None:
    page = visit.open(address)
    if address == "translate":
        page.locator("summary", has_text="Alignment of all words").click()
    page.wait_for_selector(".saves")
    root = ElementTree.fromstring(save(page, "SVG", "main"))
    assert len(list(root.iter())) > 5
    values = [
        value for each in root.iter() for name, value in each.attrib.items() if name != "href"
    ]
    assert not any("NaN" in value for value in values)


def test_a_map_of_colours_is_saved_as_an_image(visit: Any) -> None:
    page = visit.open("block?model=learned&text=the+cat&measure=added")  # which opens its fold
    maps = page.locator("details[open] figure").first
    maps.locator("canvas").wait_for()
    image = ElementTree.fromstring(save(page, "SVG", "details[open] figure")).find(f".//{SVG}image")
    assert image is not None
    content = base64.b64decode(image.attrib["href"].partition(",")[2])
    assert Image.open(io.BytesIO(content)).width > 100
