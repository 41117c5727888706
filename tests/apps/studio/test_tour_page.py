"""The tour: every number on the drawing is the model's, and a word that is clicked is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from heedful import inspect
from heedful.apps.studio.app import build_app
from heedful.apps.studio.pages.tour_page import SHOWN_CHANNELS
from heedful.apps.studio.workspace import Workspace
from heedful.pretrained.catalogue import models_at_hand

TEXT = "the cat sat on a mat"


@pytest.fixture(scope="module")
def client(given: Any) -> TestClient:
    return TestClient(build_app(Workspace([given.learned, given.t5])), base_url="http://localhost")


def walk(client: TestClient, **settings: Any) -> Any:
    return client.post("/api/tour/walk", json={"text": TEXT, **settings})


@pytest.mark.parametrize("name", ["learned", "t5"])
def test_the_tensors_are_those_of_the_model(client: TestClient, given: Any, name: str) -> None:
    way = walk(client, model=name, head=1).json()
    subject = inspect.load(getattr(given, name))
    reading = inspect.read(subject, TEXT, "")
    inputs = inspect.tensors(subject, [reading])
    wanted = ["encoder.embedding", "encoder.0.self.*", "encoder.0.feedforward.*"]
    own = inspect.capture(subject.model, inputs, wanted)
    for part in ("query", "key", "value", "context", "scores", "weights"):
        expected = own[f"encoder.0.self.{part}"][0, 1]
        np.testing.assert_allclose(np.array(way[part], float), expected, rtol=1e-5, atol=1e-5)
    embedding = own["encoder.embedding"][0, :, :SHOWN_CHANNELS]
    np.testing.assert_allclose(way["embedding"], embedding, rtol=1e-5)
    np.testing.assert_allclose(way["after"][way["layer"]], way["output"])
    inner = own["encoder.0.feedforward.inner"][0]
    assert way["inner_width"] == inner.shape[1]
    np.testing.assert_allclose(way["active"], (np.abs(inner) > 1e-6).mean(1))
    if way["positions"] is not None:
        total = np.add(way["tokens"], way["positions"])
        np.testing.assert_allclose(total, way["embedding"], rtol=1e-4, atol=1e-4)
    assert (way["positions"] is None) == (name == "t5")


def test_candidates_are_those_of_the_search(client: TestClient, given: Any) -> None:
    subject = inspect.load(given.learned)
    first = walk(client, model="learned").json()["candidates"][0]
    expected = inspect.next_token(subject, TEXT)
    assert first["id"] == int(expected.scores.argmax())
    assert first["probability"] == pytest.approx(float(np.exp(expected.scores.max())))
    after = walk(client, model="learned", chosen=[first["id"]]).json()
    back = after["cross"]["back"]  # the last token looks at itself and all before it
    assert (len(back), sum(back)) == (len(after["read"]), pytest.approx(1, abs=1e-3))
    assert len(back) == 2
    again = inspect.next_token(subject, TEXT, [first["id"]])
    assert after["candidates"][0]["id"] == int(again.scores.argmax())
    assert after["written"] == again.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"text": "the cat ran " * 8}, "more than the tour can show: 20"),
        ({"text": "x" * 301}, "at most 300"),
        ({"text": " "}, "text"),
        ({"layer": 7}, "layer"),
        ({"head": 9}, "head"),
        ({"chosen": [10**9]}, "token"),
        ({"model": "nobody"}, "nobody"),
    ],
)
def test_wrong_requests_are_refused_in_words(
    client: TestClient, settings: dict[str, Any], words: str
) -> None:
    answer = walk(client, **{"model": "learned", **settings})
    assert answer.status_code == 400
    content = answer.json()
    assert words in f"{content['what']} {content['where']} {content['remedy']}"


STOPS = [
    "Model", "Pieces", "Embedding", "Block, one of 1", "Head", "Scores", "Softmax", "Values",
    "Feed-forward", "Written", "Source", "Sum", "Logits", "Next word",
]  # fmt: skip


def test_the_way_is_walked(visit: Any, axe: str) -> None:
    page = visit.open(f"tour?text={TEXT.replace(' ', '+')}")
    assert page.locator(".map").is_hidden()  # the figure is the map of itself
    assert sorted(page.locator(".map button").all_text_contents()) == sorted(STOPS)
    for number, name in enumerate(STOPS[1:], start=1):
        page.get_by_role("button", name="Next", exact=True).click()
        visit.idle()
        assert page.locator(".map [aria-current]").inner_text() == name
        assert page.locator(".told h2").inner_text().startswith(f"{number}. ")
        parts = page.locator(".drawing svg [data-part]").count()
        # In the decoder's stops what the encoder did is one row.
        assert parts == (number + 1 if number < 9 else min(number - 5, 7))
        if name == "Pieces":
            check_entries(page)
            visit.until("!document.querySelector('.zoomed')")  # the figure has faded
    assert page.get_by_role("button", name="Next", exact=True).is_disabled()
    page.go_back()
    visit.idle()
    assert page.locator(".map [aria-current]").inner_text() == "Logits"
    assert visit.violations(axe) == []


def check_entries(page: Any) -> None:
    """Check that pieces stand in the list of all pieces as far as their numbers say."""
    numbers = [int(each) for each in page.locator("[data-at^='number:']").all_text_contents()]
    place = "(all) => all.map((each) => Number(each.getAttribute('x')))"
    places = page.locator(".way-entry").evaluate_all(place)
    assert len(places) == len(numbers)
    line = np.polyfit(sorted(numbers), sorted(places), 1)
    assert np.allclose(np.polyval(line, sorted(numbers)), sorted(places), atol=0.5)


def test_the_row_of_a_word_is_followed(visit: Any, given: Any) -> None:
    page = visit.open(f"tour?stop=6&text={TEXT.replace(' ', '+')}")
    page.locator("[data-part='weights'] [data-column='2']").click()
    visit.until("location.search.includes('query=2')")
    subject = inspect.load(given.learned)
    reading = inspect.read(subject, TEXT, "")
    weights = inspect.attention(subject, reading, "encoder", layers=[0], heads=[0]).weights[0, 0]
    shown = page.locator("[data-part='weights'] .way-mark ~ .way-value").all_text_contents()
    assert len(shown) == weights.shape[1]
    large = [i for i, value in enumerate(weights[2]) if value > 1e-3]  # others have powers of ten
    assert [shown[i] for i in large] == [visit.shown(float(weights[2, i]), 2) for i in large]
    # A cell that is pointed at shows its number, in the followed row too.
    label = page.locator(".cell-label")
    assert not label.is_visible()
    for row in (1, 2):
        page.locator(f"[data-at='weight:{row}:0']").hover()
        words = f"{TEXT.split()[row]} → the: {visit.shown(float(weights[row, 0]), 3)}"
        assert label.text_content() == words
        assert label.is_visible()
    page.locator(".told").hover()
    assert not label.is_visible()


def test_a_word_is_chosen(visit: Any) -> None:
    page = visit.open(f"tour?stop=13&text={TEXT.replace(' ', '+')}")
    second = page.locator(".way-next button").nth(1)
    second.click()
    visit.until("location.search.includes('chosen=')")
    visit.idle()
    assert page.locator("#written").inner_text() != "Nothing is written yet."
    page.get_by_role("button", name="Take the last word back").click()
    visit.idle()
    assert page.locator("#written").inner_text() == "Nothing is written yet."


def test_the_decoder_has_columns_beside_the_encoder(visit: Any, client: TestClient) -> None:
    """Its newest column is the followed one, and each share leads there from the encoder."""
    page = visit.open(f"tour?stop=10&text={TEXT.replace(' ', '+')}")
    page.wait_for_timeout(800)  # the parts have found their places
    newest = page.locator(".way-piece.written.chosen rect").bounding_box()
    last = page.locator("[data-part='pieces'] [data-column] rect").last.bounding_box()
    band = page.locator(".way-band").bounding_box()
    assert newest["y"] == pytest.approx(last["y"], abs=1)
    assert newest["x"] > last["x"] + last["width"]
    assert band["x"] + band["width"] / 2 == pytest.approx(newest["x"] + newest["width"] / 2, abs=1)
    lines = page.locator("[data-part='source'] .carried")
    shares = lines.evaluate_all("(all) => all.map((each) => Number(each.dataset.share))")
    assert shares == pytest.approx(walk(client, model="learned").json()["cross"]["weights"])


def test_a_long_text_is_refused_in_its_field(visit: Any) -> None:
    """Before the tour begins."""
    page = visit.open(f"tour?text={'+'.join(['cat'] * 34)}")
    said = page.locator("[aria-invalid=true] ~ .hint").inner_text()
    assert "more than the tour can show: 20" in said
    assert page.get_by_role("button", name="Next", exact=True).is_disabled()
    page.get_by_label("Text", exact=True).fill(TEXT)
    visit.until("!document.querySelector('[aria-invalid=true]')")
    visit.idle()
    assert page.get_by_role("button", name="Next", exact=True).is_enabled()


def test_what_the_parts_of_a_decoder_block_add_is_its_output() -> None:
    """In a block with norms before its parts."""
    place = models_at_hand()["en-de"]
    with TestClient(build_app(Workspace([place.path])), base_url="http://localhost") as client:
        stream = walk(client, model="en-de", text=TEXT, chosen=[9]).json()["cross"]["stream"]
    parts = [stream[name] for name in ("incoming", "self", "cross", "feedforward")]
    np.testing.assert_allclose(np.sum(parts, 0), stream["output"], rtol=1e-4, atol=1e-4)


def test_the_decoder_writes_by_itself(visit: Any, client: TestClient) -> None:
    """Each next word is the likeliest one, until it is stopped."""
    page = visit.open(f"tour?stop=9&text={TEXT.replace(' ', '+')}")
    best: list[int] = []
    for _ in range(3):
        way = walk(client, model="learned", chosen=best).json()
        best.append(way["candidates"][0]["id"])
    page.get_by_role("button", name="Let it write").click()
    ids = ",".join(map(str, best))
    visit.until(f"String(new URLSearchParams(location.search).getAll('chosen')) === '{ids}'")
    page.get_by_role("button", name="Stop writing").click()
    visit.idle()
    page.wait_for_timeout(1500)  # longer than from word to word
    assert page.locator("#written button").count() == len(best)
    assert page.get_by_role("button", name="Let it write").is_visible()


def test_the_sentence_is_carried_from_page_to_page(visit: Any) -> None:
    page = visit.open("tour?stop=2")
    page.get_by_label("Text", exact=True).fill("a dog ran")
    visit.idle()
    page.get_by_role("link", name="Attention", exact=True).first.click()
    page.wait_for_selector(".links")
    assert page.get_by_label("Text", exact=True).input_value() == "a dog ran"
    visit.until("location.search.includes('dog')")
