"""Stories of the course: words in another order, a word in several sentences, recorded lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from heedful.apps.studio.app import build_app
from heedful.apps.studio.workspace import Workspace
from heedful.inspect.subject import capture
from heedful.models.checkpoint import load_model


@pytest.fixture(scope="module")
def client(workspace: Workspace) -> TestClient:
    return TestClient(build_app(workspace), base_url="http://localhost")


def asked(client: TestClient, call: str, **body: Any) -> Any:
    answer = client.post(f"/api/{call}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@drawn(words=st.lists(st.sampled_from(list("abcdef")), min_size=2, max_size=8))
@settings(max_examples=20, deadline=None)
def test_without_positions_a_word_is_the_same_in_any_order(client: Any, words: list[str]) -> None:
    found = asked(client, "positions/shuffled", text=" ".join(words), order="shuffled")
    assert sorted(found["order"]) == list(range(len(words)))
    first, second = (np.array(found["without"][name]) for name in ("first", "second"))
    # Answers have six digits: equal sums may be rounded to neighbours in the last.
    np.testing.assert_allclose(second, first[found["order"]], rtol=1e-5, atol=2e-6)
    # Words that come twice are told apart by their positions alone.
    for i, word in enumerate(words):
        twin = words.index(word)
        np.testing.assert_allclose(first[i], first[twin], rtol=1e-5, atol=2e-6)
        if twin != i:
            assert np.abs(np.subtract(*np.array(found["with"]["first"])[[i, twin]])).max() > 1e-3


def test_with_positions_the_order_counts(client: TestClient) -> None:
    found = asked(client, "positions/shuffled", text="dog bites man")
    assert found["without"]["difference"] < 1e-6
    assert found["with"]["difference"] > 0.1
    assert found == asked(client, "positions/shuffled", text="dog bites man", scheme="sinusoidal")
    answer = client.post("/api/positions/shuffled", json={"text": "alone"})
    assert answer.status_code == 400
    assert "Two to 8 words" in answer.text


@pytest.mark.parametrize(
    ("scheme", "knows_place", "knows_side"),
    [
        ("sinusoidal", True, True),
        ("learned", True, True),
        ("rotary", False, True),
        ("alibi", False, False),
        ("t5", False, True),
        ("relative", False, True),
    ],
)
def test_a_scheme_says_place_or_distance(
    client: TestClient, scheme: str, knows_place: bool, knows_side: bool
) -> None:
    """Moved words change where a place counts; turned ones do where the side of a word counts."""
    found = asked(client, "positions/shuffled", text="dog bites man", scheme=scheme)
    assert found["without"]["difference"] < 1e-6
    assert (found["later"]["difference"] > 0.1) == knows_place
    assert (found["later"]["difference"] < 1e-5) == (not knows_place)
    assert (found["with"]["difference"] > 0.1) == knows_side
    # Any other order changes distances, too.
    other = asked(
        client, "positions/shuffled", text="dog bites man", scheme=scheme, order="shuffled"
    )
    assert other["with"]["difference"] > 0.1
    assert other["with"]["first"] == found["with"]["first"] == found["later"]["first"]


def test_strips_follow_the_chosen_scheme(visit: Any) -> None:
    page = visit.open("positions")
    strips = page.locator(".order")
    strips.get_by_role("rowheader", name="with sinusoids").first.wait_for()
    told = page.locator("h2", has_text="Without positions attention cannot tell")
    assert told.inner_text().startswith("“dog bites man” or “man bites dog”?")
    assert told.bounding_box()["y"] < page.locator(".hands").first.bounding_box()["y"]
    heading = strips.locator("figure thead th").last
    assert heading.inner_text() == "largest change of a number"
    assert visit.fact("order-without") == "0"
    assert float(visit.fact("order-later")) > 1
    page.get_by_role("button", name="Rotary").click()
    strips.get_by_role("rowheader", name="with rotation").first.wait_for()
    visit.idle()
    assert visit.fact("order-later") == "0"
    assert float(visit.fact("order-with")) > 0.1
    later = strips.locator("figure tbody tr").last
    assert later.locator("td").all_inner_texts() == ["the same"] * 3 + ["0"]
    page.get_by_role("button", name="ALiBi").click()
    strips.get_by_text("not which comes first").wait_for()


def test_vectors_of_a_word_are_those_of_the_pass(client: TestClient, given: Any) -> None:
    lines = ["the cat sat", "a cat ran", "dogs and cat"]
    found = asked(client, "block/contexts", model="learned", word="cat", text="\n".join(lines))
    assert found["sentences"] == lines
    model, tokenizers = load_model(given.learned)
    assert tokenizers is not None
    tokenizer, vectors = tokenizers.source, []
    for line in lines:
        ids = [*tokenizer.encode(line), tokenizer.eos]
        places = torch.arange(len(ids))[None]
        target = torch.tensor([[tokenizer.bos]])
        seen = capture(
            model,
            (torch.tensor([ids]), places, target, torch.zeros_like(target)),
            ["encoder.0.feedforward.stream"],
        )["encoder.0.feedforward.stream"][0]
        end = len(tokenizer.encode(line[: line.index("cat") + 3]))
        begin = len(tokenizer.encode(line[: line.index("cat")].rstrip()))
        vectors.append(seen[begin:end].mean(0))
    unit = [v / np.linalg.norm(v) for v in vectors]
    np.testing.assert_allclose(found["depths"][-1]["cosines"], np.inner(unit, unit), atol=1e-4)
    answer = client.post(
        "/api/block/contexts", json={"model": "learned", "word": "bank", "text": "\n".join(lines)}
    )
    assert answer.status_code == 400
    assert "has no word 'bank'" in answer.text
    assert "the cat sat" in answer.text


def test_recorded_lengths_are_complete(client: TestClient) -> None:
    found = asked(client, "paths/by_length")
    assert [len(each["bleu"]) for each in found["networks"]] == [len(found["words"])] * 3
    one, attention, transformer = (np.mean(each["bleu"], axis=1) for each in found["networks"])
    # What the page says: one vector is worse at every length.
    assert (one < attention).all()
    assert (one < transformer).all()
