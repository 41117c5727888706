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
ADDRESS = "attention?model=learned&text=the+cat+sat&part=cross&layer=0&heads=1&row=1"


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
    links = page.locator("figure path.link").count()
    root = ElementTree.fromstring(save(page, "SVG"))
    words = " ".join(each.text or "" for each in root.iter(f"{SVG}text"))
    caption = words.partition("Attention – ")[2]
    assert caption.startswith(f"Cross, layer 1 Model: learned, “{TEXT}” ")
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
    page.wait_for_selector(".saves")
    root = ElementTree.fromstring(save(page, "SVG", "main"))
    assert len(list(root.iter())) > 5
    values = [
        value for each in root.iter() for name, value in each.attrib.items() if name != "href"
    ]
    assert not any("NaN" in value for value in values)


def test_a_map_of_colours_is_saved_as_an_image(visit: Any) -> None:
    page = visit.open("block?model=learned&text=the+cat")
    maps = page.locator("section figure").first
    maps.locator("canvas").wait_for()
    image = ElementTree.fromstring(save(page, "SVG", "section figure")).find(f".//{SVG}image")
    assert image is not None
    content = base64.b64decode(image.attrib["href"].partition(",")[2])
    assert Image.open(io.BytesIO(content)).width > 100
