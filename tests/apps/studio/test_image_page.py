"""The page of images in a browser: drawn, uploaded, looked at; equal to the library."""

from __future__ import annotations

import base64
import http.client
import json
import math
import re
import struct
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch
from PIL import Image

from heedful import inspect
from heedful.apps.studio.pages import MOST_IMAGE_BYTES, image_page
from heedful.apps.studio.pages.image_page import EXAMPLES, example_image
from heedful.apps.studio.workspace import Workspace
from heedful.models.checkpoint import save_model
from heedful.models.images.vision import VisionModel
from heedful.models.images.vision_spec import VisionSpec
from heedful.pipelines.image_classification import ImagePipeline


def write_vision(directory: Path, *, channels: int, seed: int, **changes: Any) -> Path:
    """An untrained model of images that is sure of what it sees."""
    block = {"self_attention": {"num_heads": 2}, "feedforward": {"width": 24}}
    spec = {
        "width": 16,
        "image_size": 12,
        "patch_size": 4,
        "channels": channels,
        "encoder": {"num_layers": 3, "block": block},
        "labels": ["ant", "bee", "cat"],
        "pixels": {"resample": "bilinear", "mean": [0.2] * channels, "std": [0.4] * channels},
        **changes,
    }
    torch.manual_seed(seed)
    model = VisionModel(VisionSpec.parse(spec))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    save_model(model, None, directory)
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vision")
    return {
        "grey": write_vision(root / "grey", channels=1, seed=1, pooling="mean"),
        "colour": write_vision(root / "colour", channels=3, seed=2, image_size=24, patch_size=8),
    }


@pytest.fixture(scope="module")
def address(serve: Callable[..., str], models: dict[str, Path]) -> str:
    return serve([*models.values()])


@pytest.fixture
def at(visit_at: Callable[[str], Any], address: str) -> Any:
    return visit_at(address)


GLOW = "#ff8a1f"
"""The colour of attention in the style sheet."""


def labels(page: Any) -> list[tuple[str, str]]:
    rows = page.locator(".classes li").all()
    return [tuple(row.inner_text().split("\n")) for row in rows]


def expected_labels(pipeline: ImagePipeline, picture: Any) -> list[tuple[str, str]]:
    found = []
    for each in pipeline.classify([picture])[0]:
        share = f"{float(f'{100 * each.probability:.2e}'):.10f}".rstrip("0").rstrip(".")
        found.append((each.label, "< 0.01 %" if each.probability < 1e-4 else f"{share} %"))
    return found


def shares(page: Any) -> list[list[str]]:
    """The numbers of attention to each patch."""
    folded = page.locator("details", has_text="Attention to each patch")
    if folded.get_attribute("open") is None:
        folded.locator("summary").click()
    rows = folded.locator("tbody tr")
    rows.first.wait_for()
    return [row.locator("td").all_inner_texts() for row in rows.all()]


def grid(at: Any, values: np.ndarray) -> list[list[str]]:
    side = math.isqrt(len(values))
    return [[at.shown(float(v), 3) for v in row] for row in values.reshape(side, side)]


def attention_of(pipeline: ImagePipeline, picture: Any, **options: Any) -> np.ndarray:
    subject = inspect.Subject(pipeline.model)
    reading = inspect.see(subject, pipeline.prepare([picture])[0].numpy())
    return inspect.attention(subject, reading, "encoder", **options)


def in_colour(grey: np.ndarray) -> np.ndarray:
    return np.stack([grey] * 3, -1)


def test_examples_are_what_the_library_says(at: Any, models: dict[str, Path]) -> None:
    page = at.open("image?model=grey")
    pipeline = ImagePipeline.load(models["grey"])
    picture = example_image(EXAMPLES[0], 12)
    assert labels(page) == expected_labels(pipeline, picture)
    leading = page.locator("figure", has_text="Where it looks")
    assert "3 × 3 patches" in leading.inner_text()
    whole = attention_of(pipeline, picture, layers=[2]).mean().mean(0)
    assert shares(page) == grid(at, whole)

    # The patches themselves, in the picture: the colour in the middle of the pixels of its edge,
    # where no share is written, dimmed below the orange of their share.
    canvas = leading.locator("canvas")
    size = canvas.evaluate("canvas => canvas.width")
    places = [(y, x) for y in range(12) for x in range(12) if {y % 4, x % 4} & {0, 3}]
    centres = [[round((v + 0.5) * size / 12) for v in (x, y)] for y, x in places]
    drawn = canvas.evaluate(
        """(canvas, centres) => {
          const {width, height} = canvas;
          const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
          return centres.map(([x, y]) => data[4 * (y * width + x)]);
        }""",
        centres,
    )
    red = int(GLOW[1:3], 16)
    covered = [0.9 * whole[y // 4 * 3 + x // 4] / whole.max() for y, x in places]
    expected = [
        (1 - a) * 0.6 * picture[at] + a * red for at, a in zip(places, covered, strict=True)
    ]
    assert drawn == pytest.approx(expected, abs=3)

    page.get_by_label("Picture", exact=True).select_option("four")
    at.until("location.search.includes('picture=four')")
    at.idle()
    at.until(f"document.querySelectorAll('.classes li').length === {len(labels(page))}")
    picture = example_image("four", 12)
    assert labels(page) == expected_labels(pipeline, picture)


def test_where_a_patch_looks(at: Any, models: dict[str, Path]) -> None:
    page = at.open("image?model=colour&picture=seven")
    pipeline = ImagePipeline.load(models["colour"])
    picture = in_colour(example_image("seven", 24))
    assert labels(page) == expected_labels(pipeline, picture)
    from_class = attention_of(pipeline, picture, layers=[2], rows=[0]).mean()[0]
    assert shares(page) == grid(at, from_class[1:])
    looking = page.locator("figure", has_text="[CLS]")
    assert f"[CLS] itself has {at.shown(float(from_class[0]), 3)}" in looking.inner_text()

    canvas = page.locator("figure", has_text="Where it looks").locator("canvas")
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * 0.5, "y": box["height"] * 0.9})
    at.until("location.search.includes('patch=7')")
    page.locator(".side summary", has_text="Layer and head").click()
    page.get_by_label("Layer", exact=True).select_option("2")
    page.get_by_label("Head", exact=True).select_option("1")
    at.until("location.search.includes('head=1')")
    at.idle()
    chosen = attention_of(pipeline, picture, layers=[1], heads=[0], rows=[8]).weights[0, 0, 0]
    assert shares(page) == grid(at, chosen[1:])
    # Every head of the patch has a thumbnail, all on one scale; a click opens it.
    every = attention_of(pipeline, picture, rows=[8]).weights[:, :, 0, 1:]
    pixels = "each => each.map(c => c.getContext('2d').getImageData(0, 0, 3, 3).data[0])"
    thumbs = page.locator("[data-head]")
    assert thumbs.count() == every.shape[0] * every.shape[1]
    red = thumbs.locator("canvas").evaluate_all(pixels)
    corner = every[:, :, 0].ravel()
    assert red[int(corner.argmax())] == min(red)
    assert page.locator("[data-head][aria-pressed=true]").get_attribute("data-layer") == "1"
    thumbs.first.click()
    at.until("location.search.includes('layer=1')")
    page.go_back()
    at.until("location.search.includes('layer=2')")
    at.idle()
    canvas = page.locator("figure", has_text="Where the framed patch looks").locator("canvas")
    canvas.press("ArrowUp")
    at.until("location.search.includes('patch=4')")
    at.idle()
    page.get_by_label("Rollout").check()
    at.until("location.search.includes('rollout=1')")
    at.idle()
    traced = inspect.rollout(attention_of(pipeline, picture)).weights[1, 5]
    at.until("document.body.innerText.includes('followed through')")
    assert shares(page) == grid(at, traced[1:])
    page.get_by_role("button", name="The whole image").click()
    at.until("!location.search.includes('patch=')")
    page.go_back()
    at.until("location.search.includes('patch=4')")


def decoded(text: str, side: int) -> np.ndarray:
    """A drawing of an address: hexadecimal levels, `*N.` after one that is repeated."""
    levels: list[int] = []
    while text:
        match = re.match(r"([0-9a-f])(?:\*(\d+)\.)?", text)
        levels += [int(match[1], 16)] * int(match[2] or 1)
        text = text[match.end() :]
    return np.array(levels, dtype=np.uint8).reshape(side, side) * 17


def drawn_until(at: Any, row: int, column: int) -> np.ndarray:
    """The drawing in the address, once the stroke that ends at a pixel is in it, 12 x 12.

    Strokes are written there a moment after they were drawn, in the end all of them.
    """
    deadline = time.monotonic() + 40
    while True:
        query = parse_qs(at.address().removeprefix("?"))
        drawn = decoded(query.get("drawing", ["0*144."])[0], 12)
        if drawn[row, column] == 255 or time.monotonic() > deadline:
            return drawn
        at.page.wait_for_timeout(50)


def test_drawing(at: Any, models: dict[str, Path]) -> None:
    page = at.open("image?model=grey")
    pad = page.get_by_label("A place to draw on")
    pad.scroll_into_view_if_needed()
    box = pad.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.25 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.25 * box["height"], steps=4)
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.8 * box["height"], steps=4)
    page.mouse.up()
    at.until("location.search.includes('picture=drawing')")
    drawn = drawn_until(at, 9, 5)
    at.idle()
    assert drawn[3, 4:8].min() == 255
    assert drawn[0].max() == drawn[:, 0].max() == 0
    expected = expected_labels(ImagePipeline.load(models["grey"]), drawn)
    assert labels(page) == expected
    page.reload()
    at.idle()
    assert labels(page) == expected

    page.get_by_role("button", name="Clear").click()
    at.until("!location.search.includes('drawing=')")
    at.idle()
    at.until("document.querySelector('[data-fact=label]')?.textContent.startsWith('Nothing')")
    assert labels(page) == []  # an empty square is no digit
    leading = page.locator("figure:has(h3:text-is('Where it looks'))")
    assert leading.locator(".key").is_hidden()  # no colours of attention
    assert leading.locator("figcaption").inner_text().startswith("Draw one large digit")
    pad.focus()
    for key in (" ", "ArrowRight", " "):
        pad.press(key)
    assert drawn_until(at, 6, 7)[6, 6:8].min() == 255


def test_erased_patches_change_the_label(models: dict[str, Path]) -> None:
    """Each time the patch goes that lowers the probability of the image's own label most."""
    workspace = Workspace([models["grey"]])
    pipeline = ImagePipeline.load(models["grey"])
    for name in ("zero", "four"):
        image = example_image(name, pipeline.spec.image_size)
        own = pipeline.classify([image])[0][0].label
        found = image_page.erase(image_page.ImageRequest(model="grey", example=name), workspace)
        patch = pipeline.spec.patch_size
        count = pipeline.spec.image_size // patch
        chances = []
        for i in range(count**2):
            rest = image.copy()
            row, column = i // count * patch, i % count * patch
            rest[row : row + patch, column : column + patch] = 0
            labels = pipeline.classify([rest])[0]
            chances.append(next(e.probability for e in labels if e.label == own))
        assert chances[found["patches"][0]] == pytest.approx(min(chances), abs=1e-6)
        for i in found["patches"]:
            row, column = i // count * patch, i % count * patch
            image[row : row + patch, column : column + patch] = 0
        first = pipeline.classify([image])[0][0]
        if found["label"] is None:
            assert first.label == own
        else:
            assert (first.label, own) == (found["label"], own)
            assert first.label != own
            assert first.probability == pytest.approx(found["probability"], abs=1e-6)


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_uploads(at: Any, models: dict[str, Path], tmp_path: Path, kind: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (50, 40, 3), dtype=np.uint8)
    path = tmp_path / f"picture.{kind}"
    Image.fromarray(noise).save(path)
    page = at.open("image?model=colour")
    page.locator("#file").set_input_files(str(path))
    at.until("location.search.includes('picture=upload')")
    at.idle()
    pipeline = ImagePipeline.load(models["colour"])
    assert labels(page) == expected_labels(pipeline, path)
    whole = attention_of(pipeline, path, layers=[2], rows=[0]).mean()[0, 1:]
    assert shares(page) == grid(at, whole)
    page.reload()
    page.wait_for_selector(".problem")
    assert "Choose the file again" in page.locator(".problem").inner_text()


def bomb() -> bytes:
    """A small file that says it has 900 million pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1 << 20))
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def whole_picture() -> bytes:
    noise = np.random.default_rng(2).integers(0, 256, (64, 64), dtype=np.uint8)
    from io import BytesIO

    Image.fromarray(noise).save(held := BytesIO(), "PNG")
    return held.getvalue()


WRONG = {
    "a text": (b"hello, I am no picture" * 20, "no PNG or JPEG"),
    "empty": (b"", "no PNG or JPEG"),
    "half": (whole_picture()[:900], "cannot be read"),
    "a bomb": (bomb(), "pixels that are safe to open"),
    "a page": (b"<svg xmlns='x'><script>alert(1)</script></svg>", "no PNG or JPEG"),
    "gigantic": (bytes(MOST_IMAGE_BYTES + 1), "at most 8,388,608"),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_no_pictures(at: Any, tmp_path: Path, name: str) -> None:
    content, message = WRONG[name]
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    page = at.open("image?model=grey")
    page.locator("#file").set_input_files(str(path))
    page.wait_for_selector(".problem")
    assert message in page.locator(".problem").inner_text()
    page.get_by_label("Picture", exact=True).select_option("one")
    at.until("!document.querySelector('.problem')")
    at.idle()
    assert page.locator(".classes li").count() == 3


def post(address: str, body: bytes) -> tuple[int, dict[str, Any]]:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{address}api/image/look", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_calls_that_no_page_makes(address: str) -> None:
    """What a program could send: each is refused in a sentence."""
    for asked, message in (
        ({}, "one of drawing, upload and example"),
        ({"example": "one", "drawing": [[0]]}, "one of drawing, upload and example"),
        ({"example": "../../etc/passwd"}, "no example"),
        ({"upload": "***"}, "no base64"),
        ({"drawing": [[0, 1], [0]]}, "not of the same length"),
        ({"drawing": [[300]]}, "255"),
        ({"drawing": [[0] * 65]}, "64"),
        ({"example": "one", "patch": 9}, "no patch 9"),
        ({"example": "one", "layer": 3}, "no layer with index 3"),
        ({"example": "one", "layer": 3, "rollout": True}, "no layer with index 3"),
        ({"example": "one", "head": 2}, "no head with index 2"),
        ({"upload": base64.b64encode(bytes(MOST_IMAGE_BYTES + 1)).decode()}, "at most 8,388,608"),
    ):
        status, told = post(address, json.dumps({"model": "grey", **asked}).encode())
        assert status == 400, asked
        assert message in told["what"], (told, message)
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    connection.putrequest("POST", "/api/image/look")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(2 << 30))
    connection.endheaders()  # two gigabytes are refused before any of them comes
    assert connection.getresponse().status == 413
    connection.close()
    status, _ = post(address, json.dumps({"model": "grey", "example": "one"}).encode())
    assert status == 200


def test_a_model_of_text_is_no_model_of_images(visit: Any) -> None:
    page = visit.open("image")
    assert "None of the models at hand reads images" in page.locator("main").inner_text()
    page = visit.open("decoding")
    assert page.get_by_label("Text", exact=True).is_visible()


def test_a_model_of_images_writes_nothing(at: Any) -> None:
    page = at.open("decoding")
    assert (
        "None of the models at hand is a translator or a language model"
        in page.locator("main").inner_text()
    )


def test_everyone_can_use_it(at: Any, axe: str) -> None:
    at.open("image?model=colour&picture=house&patch=3")
    at.check_everyone_can_use_it(axe)
