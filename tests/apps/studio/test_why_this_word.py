"""Why a model writes a word, on the page "Translate"."""

from __future__ import annotations

import math
from typing import Any

import pytest
from starlette.testclient import TestClient

from heedful import inspect
from heedful.apps.studio.app import build_app
from heedful.apps.studio.workspace import Workspace
from heedful.inspect.attribution import attribute
from heedful.pretrained.catalogue import models_at_hand

LINE = "The cat sat on the mat because it was tired."
ASKED = {"model": "en-de", "line": LINE, "before": "Die Katze saß auf der Matte, weil"}


@pytest.fixture(scope="module")
def client() -> TestClient:
    workspace = Workspace([models_at_hand()["en-de"].path])
    return TestClient(build_app(workspace), base_url="http://localhost")


def ask(client: TestClient, call: str, **asked: Any) -> dict[str, Any]:
    answer = client.post(f"/api/translate/{call}", json=asked)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_the_answer_is_the_librarys(client: TestClient) -> None:
    subject = inspect.load(models_at_hand()["en-de"].path)
    es, sie = (subject.target.encode(word)[0] for word in ("es", "sie"))
    found = ask(client, "why", **ASKED, word="es", against=sie)
    assert found["token"] == es
    begun = subject.target.encode(ASKED["before"])
    reading = inspect.next_token(subject, LINE, begun).reading
    expected = attribute(subject, reading, es, against=sie)
    assert found["value"] == pytest.approx(expected.value, abs=1e-4)
    for name, side in found["sides"].items():
        assert side["pieces"] == list(reading.tokens(name).pieces)
        assert side["scores"] == pytest.approx(expected.scores[name].tolist(), abs=1e-3)
    alone = ask(client, "why", **ASKED, word="es")
    own = next(each for each in alone["candidates"] if each["id"] == es)
    assert alone["value"] == pytest.approx(math.log(own["probability"]), abs=1e-3)


def test_integrated_gradients_add_up_at_the_pages_number_of_points(client: TestClient) -> None:
    found = ask(client, "why", **ASKED, word="sie", way="gradients")
    total = sum(sum(side["scores"]) for side in found["sides"].values())
    assert total == pytest.approx(found["value"] - found["baseline"], rel=0.05)


def test_a_word_by_its_ids_is_that_by_its_text(client: TestClient) -> None:
    """Decoding names the word by ids, Translate by text; the answers are the same."""
    subject = inspect.load(models_at_hand()["en-de"].path)
    by_text = ask(client, "why", **ASKED, word="es")
    tokens = subject.target.encode(ASKED["before"])
    asked = {"model": "en-de", "line": LINE, "tokens": tokens, "token": by_text["token"]}
    assert ask(client, "why", **asked) == by_text
    assert by_text["given"] == len(by_text["sides"]["encoder"]["pieces"])
    assert ask(client, "inside", **asked) == ask(client, "inside", **ASKED, word="es")


def test_a_language_model_says_why_and_goes_on_without_a_word() -> None:
    place = models_at_hand()["english"].path
    workspace = Workspace([place])
    client = TestClient(build_app(workspace), base_url="http://localhost")
    subject = inspect.load(place)
    result = inspect.next_token(subject, "The cat sat on the")
    best = int(result.scores.argmax())
    asked = {"model": "english", "line": "The cat sat on the"}
    found = ask(client, "why", **asked, token=best)
    assert found["value"] == pytest.approx(float(result.scores[best]), abs=1e-3)
    assert found["given"] == len(result.reading.tokens("decoder"))
    then = ask(client, "why", **asked, tokens=[best], token=result.end)
    assert (then["token"], then["given"]) == (subject.target.eos, found["given"])
    assert len(then["sides"]["decoder"]["pieces"]) == found["given"] + 1
    layers = ask(client, "inside", **asked, token=best)["layers"]
    assert layers[-1]["best"] == found["piece"]
    whole = ask(client, "again", **asked, beam=1)
    assert ask(client, "again", **asked, beam=1, silent=[1, 2])["text"] != whole["text"]


def test_layers_and_parts_end_at_the_prediction(client: TestClient) -> None:
    alone = ask(client, "why", **ASKED, word="es")
    es = next(each for each in alone["candidates"] if each["id"] == alone["token"])
    other = next(each for each in alone["candidates"] if each["id"] != alone["token"])
    found = ask(client, "inside", **ASKED, word="es", against=other["id"])
    last = found["layers"][-1]["shown"]
    assert last == pytest.approx([es["probability"], other["probability"]], abs=1e-3)
    difference = math.log(es["probability"] / other["probability"])
    assert sum(part["score"] for part in found["parts"]) == pytest.approx(difference, abs=0.05)
    assert len(found["heads"]) == 8


def test_it_is_translated_again(client: TestClient) -> None:
    whole = ask(client, "again", model="en-de", line="I love cats.")
    assert whole["text"] == "Ich liebe Katzen."
    off = [f"decoder.{layer}.cross.head.{head}" for layer in range(3) for head in range(8)]
    assert (
        ask(client, "again", model="en-de", line="I love cats.", heads=off)["text"] != whole["text"]
    )
    assert (
        ask(client, "again", model="en-de", line="I love cats.", silent=[2])["text"]
        != whole["text"]
    )
    # What is off is off in this answer alone.
    assert ask(client, "again", model="en-de", line="I love cats.") == whole


@pytest.mark.parametrize(
    ("call", "asked", "words"),
    [
        ("why", {"line": "x" * 700}, "at most 600"),
        ("why", {"line": "a", "word": "es", "against": 10**6}, "no token"),
        ("why", {"line": "a", "model": "nobody"}, "nobody"),
        ("why", {"line": "a", "word": "es", "token": 5}, "as text and as a token"),
        ("why", {"line": "a", "tokens": [10**6], "token": 5}, "cannot go on from token"),
        ("again", {"line": "a", "silent": [99]}, "token"),
        ("again", {"line": "a", "heads": ["decoder.99"]}, "no part"),
    ],
)
def test_mistakes_are_named(
    client: TestClient, call: str, asked: dict[str, Any], words: str
) -> None:
    answer = client.post(f"/api/translate/{call}", json={"model": "en-de", **asked})
    assert answer.status_code == 400
    assert words in answer.text


def test_checks_that_fail_are_told_with_their_places(client: TestClient) -> None:
    line = "I paid 17 euros for 3 books."
    found = ask(client, "text", model="en-de", text=line, prefix="Ich habe 18 Euro")
    numbers = next(each for each in found["checks"] if each["name"] == "numbers")
    assert numbers["passes"].startswith("each number of the source")
    spans = [each for each in numbers["evidence"] if each["side"] == "source"]
    assert [line[each["start"] : each["end"]] for each in spans] == ["17", "3"]
    assert ask(client, "text", model="en-de", text="I love cats.")["checks"] == []
