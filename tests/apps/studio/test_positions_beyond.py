"""Positions past the trained length: what training never showed, counted another way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from heedful.apps.studio.app import build_app
from heedful.apps.studio.workspace import Workspace
from heedful.models.checkpoint import load_model


@pytest.fixture(scope="module")
def client(workspace: Workspace) -> Iterator[TestClient]:
    with TestClient(build_app(workspace), base_url="http://127.0.0.1:8765") as made:
        yield made


def beyond(client: TestClient, **body: Any) -> Any:
    answer = client.post("/api/positions/beyond", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("trained", [16, 40])
def test_angles_that_training_never_showed(client: TestClient, trained: int) -> None:
    """By looking for the nearest angle among many of the stretch that training went through."""
    found = beyond(client, scheme="sinusoidal", width=16, trained=trained, times=3)
    places = np.array(found["places"])
    assert places[-1] == 3 * trained
    for pair, new in enumerate(found["new"]):
        speed = 10_000 ** (-2 * pair / 16)
        np.testing.assert_allclose(found["cosines"][pair], np.cos(places * speed), atol=1e-4)
        passed = np.exp(1j * np.linspace(0, speed * (trained - 1), 20_000))
        away = [np.abs(passed - np.exp(1j * place * speed)).min() for place in places]
        # Farther than two samples are apart, but for numbers on the edge.
        sure = np.abs(np.array(away) - speed * trained / 20_000) > speed * trained / 10_000
        expected = np.array(away) > speed * trained / 20_000
        np.testing.assert_array_equal(np.array(new)[sure], expected[sure])
    assert found["share"] == pytest.approx(np.mean(found["new"], axis=0))


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_dividing_positions_stays_within_what_was_shown(client: TestClient, factor: float) -> None:
    settings = {"width": 32, "trained": 32, "times": 6, "factor": factor}
    plain = beyond(client, scheme="rotary", **settings)
    for scaling in ("linear", "yarn"):
        found = beyond(client, scheme="rotary", scaling=scaling, **settings)
        for place, share in zip(found["places"], found["share"], strict=True):
            assert (share == 0) == (place <= factor * 31), (scaling, place)
    assert all(
        (share > 0) == (place > 31)
        for place, share in zip(plain["places"], plain["share"], strict=True)
    )
    near = beyond(client, scheme="rotary", scaling="ntk", **settings)
    assert sum(near["share"]) < sum(plain["share"])


def test_scaling_says_how_far_it_reaches(client: TestClient) -> None:
    settings = {"scheme": "rotary", "trained": 64, "times": 8, "factor": 4}
    yarn = beyond(client, scaling="yarn", **settings)
    assert yarn["reach"] == 4 * 63
    assert beyond(client, scaling="ntk", **settings)["reach"] is None
    # A column that stands for several positions has their mean, not false waves of one of them.
    assert yarn["step"] == 4
    mean = np.cos(np.arange(len(yarn["places"])) * 4 + np.arange(4)[:, None]).mean(0)
    np.testing.assert_allclose(yarn["cosines"][0], mean, atol=1e-4)


def test_a_learned_table_ends_and_says_so(client: TestClient, given: Any) -> None:
    found = beyond(client, scheme="learned", trained=24, times=2)
    assert (found["trained"], found["last"]) == (24, 48)
    assert "Position 24 lies past the learned positions, which end at 23" in found["said"]
    table = {"model": "learned", "table": "source_input.positions"}
    model, _ = load_model(given.learned)
    found = beyond(client, scheme="learned", **table)
    assert found["trained"] == len(model.source_input.positions.weight)


def test_a_penalty_goes_on(client: TestClient) -> None:
    found = beyond(client, scheme="alibi", heads=4, trained=8, times=4)
    assert found["distances"] == list(range(33))
    for head, row in enumerate(found["added"]):
        slope = 2 ** (-8 * (head + 1) / 4)
        assert row == pytest.approx([-slope * distance for distance in range(33)], rel=1e-5)


def test_rows_that_training_never_reached(client: TestClient) -> None:
    """Shaw's distances are cut at the longest: with 10 trained tokens, 10 to 16 are never seen."""
    found = beyond(client, scheme="relative", max_distance=16, trained=10, times=3)
    assert found["buckets"] == [16 - min(distance, 16) for distance in range(31)]
    assert found["unseen"] == 31 - 10
    reached = beyond(client, scheme="relative", max_distance=8, trained=10, times=3)
    assert reached["unseen"] == 0
    buckets = beyond(client, scheme="t5", buckets=8, max_distance=16, trained=64)
    assert buckets["unseen"] == 0
    exact = [distance for distance, row in enumerate(buckets["buckets"]) if row == distance]
    assert exact == [0, 1, 2]  # half of one side's four, and the first of the growing ones
    assert len(set(buckets["buckets"])) == 4
    assert math.isfinite(sum(buckets["buckets"]))


def test_the_unseen_part_is_shaded(visit: Any) -> None:
    page = visit.open(
        "positions?scheme=relative&max_distance=16&trained=16&times=2"
    )  # opens the fold
    picture = page.locator("figure", has_text="Learned row in use").locator("svg[role=img]")
    plot = picture.bounding_box()
    shade = page.locator(".unseen-part").bounding_box()
    share = (shade["x"] - plot["x"]) / plot["width"]
    assert 0.45 < share < 0.6  # half of the axis, after the room for its numbers
    page.get_by_role("button", name="Learned").click()
    page.wait_for_selector("text=lies past the learned positions")
    page.get_by_role("button", name="Rotary").click()
    page.wait_for_selector("text=Each pair of channels, by position")
    visit.idle()
    page.get_by_label("Stretched by").select_option("yarn")
    page.wait_for_selector("text=They last to position 60")
