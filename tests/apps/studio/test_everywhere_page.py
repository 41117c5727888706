"""The page of text, pictures and music: what is shown is what the library computes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from heedful.apps.studio.app import build_app
from heedful.apps.studio.music_events import MusicNote
from heedful.apps.studio.pages.everywhere_page import read_tunes, recurrence
from heedful.apps.studio.workspace import Workspace
from heedful.models.checkpoint import load_model
from heedful.pretrained.catalogue import models_at_hand
from tests.apps.studio.decoded_events import decode_events, event_of

AT_HAND = [each.path for each in models_at_hand().values()]
TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(build_app(Workspace(AT_HAND)), base_url="http://127.0.0.1:8765") as made:
        yield made


@pytest.fixture(scope="module")
def address(serve: Callable[..., str]) -> str:
    return serve(AT_HAND)


@pytest.fixture
def at(visit_at: Callable[[str], Any], address: str) -> Any:
    return visit_at(address)


# Music


@pytest.mark.parametrize("name", sorted(read_tunes()))
def test_events_of_a_tune_are_its_notes(client: TestClient, name: str) -> None:
    found = client.post("/api/everywhere/music", json={"tune": name}).json()
    events = [event_of(number) for _, _, number in found["events"]]
    assert [[event.kind, event.value] for event in events] == [e[:2] for e in found["events"]]
    notes = [MusicNote(start, pitch, end) for start, pitch, end in found["notes"]]
    assert decode_events(events) == notes == read_tunes()[name].notes()
    assert np.array(found["vectors"]).shape == (len(events), found["width"])
    # The same event has the same vector, wherever it stands.
    assert len({tuple(row) for row in found["vectors"]}) == len(set(events))


def test_the_first_notes_by_hand() -> None:
    """Frère Jacques: do re mi do, a beat each, with the second voice two bars later."""
    tunes = {name: tune.notes() for name, tune in read_tunes().items()}
    assert [(note.pitch, note.start, note.end) for note in tunes["round"][:4]] == [
        (60, 0, 50),
        (62, 50, 100),
        (64, 100, 150),
        (60, 150, 200),
    ]
    both = {(note.start, note.pitch) for note in tunes["round"]}
    assert len(both) == 64
    assert {(at + 400, pitch + 12) for at, pitch in both if at < 400} <= both
    assert len(tunes["cadence"]) == 16
    chords = [sorted(n.pitch for n in tunes["cadence"] if n.start == at) for at in (0, 120, 240)]
    assert chords == [[48, 55, 64, 72], [53, 57, 65, 72], [43, 55, 65, 71]]


def test_what_comes_again_is_counted() -> None:
    """A tune of four notes that is sung twice, an octave higher the second time."""
    once = [MusicNote(start, pitch, start + 5) for start, pitch in ((0, 60), (10, 62), (20, 64))]
    again = [MusicNote(note.start + 30, note.pitch + 12, note.end + 30) for note in once]
    assert recurrence([*once, *again], 10) == [[1, 0.0], [2, 0.0]]
    twice = [*once, *again, MusicNote(60, 60, 65)]
    found = dict(map(tuple, recurrence(twice, 10)))
    assert found[3] == 1.0  # all four that could: three notes, and the first of the repeat
    assert found[1] == found[2] == 0.0


# Text and pictures


def test_pieces_are_the_tokenizer_s(client: TestClient) -> None:
    asked = {"model": "en-de", "text": TEXT}
    found = client.post("/api/everywhere/text", json=asked).json()
    model, tokenizers = load_model(models_at_hand()["en-de"].path)
    assert tokenizers is not None
    ids = tokenizers.source.encode_batch([TEXT])[0]
    assert found["ids"] == [*ids, tokenizers.source.eos]
    assert found["vocabulary"] == model.spec.source_vocabulary
    assert (len(found["vectors"]), found["width"]) == (len(found["ids"]), model.spec.width)
    assert found["parts"] == ["self-attention", "the feed-forward network"]


def test_a_patch_becomes_a_vector_by_a_matrix_and_its_position(client: TestClient) -> None:
    asked = {"model": "digits", "example": "two"}
    found = client.post("/api/everywhere/image", json=asked).json()
    model, _ = load_model(models_at_hand()["digits"].path)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    patches = np.frombuffer(base64.b64decode(found["patches"]), np.uint8).reshape(49, 16)
    mean, std = model.spec.pixels.mean[0], model.spec.pixels.std[0]
    scaled = (patches / 255 - mean) / std
    linear = scaled @ weights["patches.projection.weight"].T + weights["patches.projection.bias"]
    expected = linear + weights["positions.weight"]
    np.testing.assert_allclose(np.array(found["vectors"]), expected, atol=2e-3)
    assert found["label"] == "2"
    assert found["first"] == 0


@pytest.mark.parametrize(
    ("call", "body", "said"),
    [
        ("music", {"tune": "ronud"}, "Did you mean 'round'"),
        ("text", {"model": "en-de", "text": "x" * 401}, "401 characters"),
        ("text", {"model": "en-de", "text": " "}, "no text"),
        ("text", {"model": "digits", "text": "cat"}, "takes no text"),
        ("image", {"model": "en-de", "example": "two"}, "reads no patches of images"),
        ("image", {"model": "digits"}, "give one of drawing"),
    ],
)
def test_wrong_requests(client: TestClient, call: str, body: dict[str, Any], said: str) -> None:
    answer = client.post(f"/api/everywhere/{call}", json=body)
    assert answer.status_code == 400
    assert said in answer.text


# In a browser


def test_a_token_of_each_kind_is_chosen(at: Any) -> None:
    page = at.open("everywhere?kind=text&text=The+cat+sat.")
    columns = page.locator(".domain")
    assert columns.count() == 3
    text, image, music = (columns.nth(i) for i in range(3))
    text.get_by_role("button", name="cat").click()
    assert "Token 2: “·cat”" in text.locator(".chosen-token").inner_text()
    music.locator(".roll-note").nth(3).click()
    assert "C4 begins" in music.locator(".chosen-token").inner_text()
    assert music.locator(".roll-note.on").count() == 1
    strip = image.locator("canvas[aria-label*='reading order']")
    strip.focus()
    for key in ("ArrowRight", "ArrowRight"):
        image.locator("canvas[aria-label*='reading order']").press(key)
    assert "Patch 27: row 4, column 6" in image.locator(".chosen-token").inner_text()
    for part in ("piece=1", "patch=26", "event="):
        assert part in at.address()
    assert page.locator(".joint-name").last.text_content() == "Attention, then a network"
    headings = [each.locator("h2").inner_text() for each in (text, image, music)]
    assert [each.rsplit(" → ", 1)[1] for each in headings] == ["vectors"] * 3
    shapes = [each.locator(".shape-line strong").last.inner_text() for each in (text, image, music)]
    assert page.locator(".joint .tick").all_text_contents()[:3] == shapes  # they leave as they came
    page.set_viewport_size({"width": 390, "height": 800})  # one kind at a time
    at.until("document.querySelectorAll('.domain')[1].offsetHeight === 0")
    page.get_by_role("button", name="A picture", exact=True).click()
    image.wait_for()
    assert not text.is_visible()


def test_a_digit_is_drawn(at: Any) -> None:
    page = at.open("everywhere")
    page.get_by_role("button", name="Clear and draw").click()
    at.idle()
    box = page.locator(".easel .pad").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y + box["height"] * 0.6, steps=8)
    page.mouse.up()
    at.until("document.querySelectorAll('.domain')[1].innerText.includes('reads “1”')")
    at.until("location.search.includes('drawing=')")


def test_the_tune_plays_and_stops(at: Any) -> None:
    page = at.open("everywhere?tune=cadence")
    assert "41" in page.locator(".domain").nth(2).locator(".shape-line").inner_text()
    page.get_by_role("button", name="Play", exact=True).click()
    page.get_by_role("button", name="Stop").wait_for()
    at.until(
        "document.querySelector('.domain .roll-head').getAttribute('visibility') === 'visible'"
    )
    at.until(
        "parseFloat(document.querySelector('.domain .roll-head')"
        ".getAttribute('transform').slice(10)) > 8"
    )
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Play", exact=True).wait_for()
    at.until("document.querySelector('.domain .roll-head').getAttribute('visibility') === 'hidden'")
    page.get_by_label("Tune", exact=True).select_option("joy")
    at.until("document.body.innerText.includes('Ludwig van Beethoven')")


def test_everyone_can_use_it(at: Any, axe: str) -> None:
    at.open("everywhere")
    at.check_everyone_can_use_it(axe)


def test_without_a_model_the_music_is_there(
    serve: Callable[..., str], visit_at: Callable[[str], Any], tmp_path: Any
) -> None:
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "config.toml").write_text("", encoding="utf-8")
    page = visit_at(serve([tmp_path / "young"])).open("everywhere")
    assert page.locator(".domain").count() == 3
    assert page.locator(".domain .roll-note").count() == 64
    assert "None of the models at hand" in page.locator(".domain").first.inner_text()
