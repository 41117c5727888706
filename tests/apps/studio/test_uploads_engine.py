"""Uploaded pictures and sounds in the browser: they have the pixels that Pillow makes of them."""

from __future__ import annotations

import base64
import gzip
import io
import json
import math
import shutil
import threading
import wave
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from heedful.apps.studio.app import STATIC
from heedful.apps.studio.export.site import model_script, runs_in_page
from heedful.apps.studio.pages.image_page import SPOKEN
from heedful.apps.studio.spoken_words import say
from heedful.apps.studio.workspace import Workspace
from heedful.data.image_files import read_image, to_square
from heedful.pretrained.catalogue import models_at_hand

from .chromium import Chromium
from .firefox import Firefox
from .test_browser_engine import CALLS, Engine, assert_alike, check_answer, decoded, engine
from .test_export import QuietFiles, opened

__all__ = ["engine", "opened"]

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not here")
SIDE = 28


def base64_of(picture: Image.Image, kind: str, **options: Any) -> str:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def pixels_of(upload: str, side: int = SIDE) -> npt.NDArray[np.uint8]:
    picture = read_image(io.BytesIO(base64.b64decode(upload)), 1, "upload")
    return np.asarray(to_square(picture, side, "bilinear", "upload")[0])


@given(data=st.data(), width=st.integers(1, 70), height=st.integers(1, 70))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_colours_become_the_grey_square_of_pillow(
    engine: Engine, data: st.DataObject, width: int, height: int
) -> None:
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    rgba = draw.integers(0, 256, (height, width, 4), dtype=np.uint8)
    rgba[..., 3] = 255
    side = data.draw(st.sampled_from([1, 8, SIDE, 32]))
    found = engine.ask(None, "squared", rgba=rgba.reshape(-1).tolist(), width=width, side=side)
    own = pixels_of(base64_of(Image.fromarray(rgba), "PNG"), side)
    # Both passes round, and which of them comes first depends on the shape since version 13.
    most = 0 if int(PIL.__version__.split(".")[0]) >= 13 else 1
    assert np.abs(np.array(found["rows"]) - own.astype(int)).max() <= most


def sound(samples: npt.NDArray[np.float64], rate: int, width: int, channels: int) -> str:
    """A WAV file in base64."""
    whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype("<i4")
    content = (whole + 128).astype("u1") if width == 1 else whole.view("u1").reshape(-1, 4)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.setframerate(rate)
        each = content.tobytes() if width == 1 else content[:, :width].tobytes()
        out.writeframes(each)
    return base64.b64encode(file.getvalue()).decode()


def glide(seconds: float, rate: int, channels: int = 1) -> npt.NDArray[np.float64]:
    """A tone that rises, with a little noise."""
    time = np.arange(int(seconds * rate) * channels) / rate / channels
    noise = np.random.default_rng(1).normal(0, 0.01, len(time))
    return 0.7 * np.sin(2 * math.pi * (200 + 700 * time) * time) + noise


SOUNDS = {
    "a word": base64.b64encode(say("seven")).decode(),
    "16 bits": sound(glide(0.8, 16000), 16000, 2, 1),
    "stereo": sound(glide(0.3, 44100, 2), 44100, 2, 2),
    "8 bits": sound(glide(0.5, 8000), 8000, 1, 1),
    "24 bits": sound(glide(0.05, 11025), 11025, 3, 1),
}


@pytest.mark.parametrize("name", SOUNDS)
def test_a_sound_is_heard_as_by_the_page(engine: Engine, name: str) -> None:
    path = models_at_hand()["spoken-digits"].path
    body = {"upload": SOUNDS[name], "layer": 1, "head": 2, "patch": 3}
    call = CALLS["image/look"]
    theirs = engine.ask(path, "answer", page="image", name="look", body=body)["result"]
    own = json.loads(
        json.dumps(
            call.answer(call.request.parse({"model": "spoken-digits", **body}), Workspace([path]))
        )
    )
    pixels = [decoded(each.pop("patches"), "u1").astype(int) for each in (theirs, own)]
    # Logarithms of the two differ in the last bit, so a shade at the edge of two may be either.
    assert np.abs(pixels[0] - pixels[1]).max() <= 1
    assert (pixels[0] != pixels[1]).mean() < 0.01
    assert [each["label"] for each in theirs["labels"]] == [each["label"] for each in own["labels"]]
    assert_alike(theirs["shares"], own["shares"], name)


@pytest.mark.parametrize(
    "upload",
    [
        base64.b64encode(b"GIF89a").decode(),
        base64_of(Image.fromarray(np.full((9, 9), 9, np.uint16)), "PNG"),
        sound(np.zeros(8000), 8000, 2, 1),
        sound(np.ones(99), 8000, 2, 1),
        sound(np.ones(8000 * 61), 8000, 1, 1),
    ],
    ids=["neither", "16 bits", "silent", "short", "long"],
)
def test_what_is_no_picture_is_refused(engine: Engine, upload: str) -> None:
    path = models_at_hand()["digits"].path
    check_answer(
        engine, {"digits": path}, Workspace([path]), "image/look", "digits", {"upload": upload}
    )


@pytest.mark.parametrize("cut", [4, 30, 44, 600])
def test_a_damaged_sound_is_refused(engine: Engine, cut: int) -> None:
    body = {"upload": base64.b64encode(say("one")[:cut] + b"WAVE"[: 12 - cut]).decode()}
    asked = {"page": "image", "name": "look", "body": body}
    found = engine.ask(models_at_hand()["digits"].path, "answer", **asked)
    assert found["what"].startswith(("The sound is damaged", "The sound cannot be", "It is no"))


def test_a_word_of_the_site_is_heard_in_the_page(engine: Engine, tmp_path: Path) -> None:
    place = Workspace([models_at_hand()["spoken-digits"].path]).place("spoken-digits")
    assert runs_in_page(place)
    texts = model_script(place)
    assert len(texts) < 250_000
    model = tmp_path / "spoken-digits"
    shutil.copytree(place.path, model)
    files = json.loads(texts[texts.index("= ") + 2 : -2])
    own = json.loads(gzip.decompress(base64.b64decode(files["texts"])))
    assert list(own["pictures.json"]) == list(SPOKEN)
    (model / "pictures.json").write_text(json.dumps(own["pictures.json"]), encoding="utf-8")
    for body in ({"example": SPOKEN[4]}, {"example": SPOKEN[7], "patch": 9, "layer": 0, "head": 3}):
        check_answer(
            engine,
            {"spoken-digits": model},
            Workspace([model]),
            "image/look",
            "spoken-digits",
            body,
        )


def photograph() -> Image.Image:
    """Soft colours and a dark bar, as in a photograph of a written digit."""
    down, across = np.mgrid[:90, :120] / 100
    soft = np.stack([200 - 60 * down, 180 + 40 * across, 150 + 0 * down], 2)
    soft[20:70, 55:70] = (30, 40, 60)
    return Image.fromarray(soft.astype(np.uint8))


def turned(picture: Image.Image) -> dict[str, Any]:
    """The options that write a picture with a note that it lies on its side."""
    exif = picture.getexif()
    exif[0x0112] = 6
    return {"exif": exif.tobytes()}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty page beside the engine."""
    folder = tmp_path_factory.mktemp("engine")
    shutil.copytree(Path(str(STATIC)) / "engine", folder / "engine")
    (folder / "page.html").write_text("<!doctype html><h1>x</h1>", encoding="utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/page.html"
        server.shutdown()
        thread.join(10)


def test_a_file_has_the_pixels_of_pillow_in_a_browser(
    opened: Firefox | Chromium, address: str
) -> None:
    opened.open(address)
    # A PNG has its pixels. A JPEG is decoded by another library: waves and colours are rounded
    # to whole numbers on the way, each by at most a level or two, and a square is their mean.
    for kind, options, most in (
        ("PNG", {}, 0),
        ("JPEG", {"quality": 90}, 3),
        ("JPEG", {"quality": 90, **turned(photograph())}, 3),
    ):
        upload = base64_of(photograph(), kind, **options)
        asked = json.dumps({"spec": {"image_size": SIDE, "pixels": {"resample": "bilinear"}}})
        found = opened.value(
            "import('./engine/uploads.js').then(async ({ rowsOf }) => "
            f"JSON.stringify(await rowsOf({asked}, '{upload}')))"
        )
        far = np.abs(np.array(json.loads(found)) - pixels_of(upload).astype(int))
        assert far.max() <= most, (kind, options.keys(), far.max())
        assert far.mean() <= most / 3
    ghost = base64_of(Image.new("RGBA", (9, 9), (200, 0, 0, 90)), "PNG")
    found = opened.value(
        f"import('./engine/uploads.js').then(async ({{ rowsOf }}) => "
        f"String(await rowsOf({asked}, '{ghost}')))"
    )
    assert found == "undefined"
