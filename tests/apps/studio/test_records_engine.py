"""Models of records in the browser: samples, completions and attention are those of the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.apps.studio.workspace import Workspace
from heedful.pretrained.catalogue import models_at_hand

from .test_browser_engine import Engine, check_answer, engine, pytestmark

__all__ = ["engine", "pytestmark"]

NAMES = ("bach-chorales", "coin-player", "digit-pixels", "seasonal-series")


@pytest.fixture(scope="module")
def records() -> dict[str, Path]:
    return {name: models_at_hand()[name].path for name in NAMES}


@pytest.fixture(scope="module")
def workspace(records: dict[str, Path]) -> Workspace:
    return Workspace([*records.values()])


def examples_of(workspace: Workspace, name: str) -> list[str]:
    return [each["text"] for each in workspace.place(name).plain()["examples"]]


ASKED: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("bach-chorales", 0, {"keep": 236, "temperature": 0.8}),
    ("bach-chorales", 1, {"keep": 248, "temperature": 0, "seed": 4}),
    ("bach-chorales", 2, {"keep": 1000}),
    ("digit-pixels", 1, {"keep": 183, "temperature": 0.8, "seed": 2}),
    ("digit-pixels", 2, {"keep": 197}),
    ("seasonal-series", 0, {"temperature": 0.8}),
    ("seasonal-series", 2, {"keep": 110, "temperature": 0}),
    ("coin-player", 0, {"temperature": 0.8, "seed": 3}),
    ("coin-player", 1, {"keep": 1, "temperature": 0.8, "seed": 3}),
    ("coin-player", 3, {"keep": 0, "temperature": 0}),
)


@pytest.mark.parametrize(("name", "example", "body"), ASKED)
def test_a_sample_goes_on_as_in_the_page(
    engine: Engine,
    records: dict[str, Path],
    workspace: Workspace,
    name: str,
    example: int,
    body: dict[str, Any],
) -> None:
    body = {"record": examples_of(workspace, name)[example], **body}
    own = check_answer(engine, records, workspace, "everywhere/complete", name, body)
    record = own["samples"][0]["record"]
    last = len(own["samples"][0]["tokens"])
    for asked in ({"token": 0}, {"token": last, "head": 1}, {"token": last // 2, "layer": 1}):
        check_answer(
            engine, records, workspace, "everywhere/weights", name, {"record": record, **asked}
        )


MOMENT = st.tuples(st.integers(0, 7), st.integers(8, 32), st.integers(33, 36))


@given(
    moments=st.lists(MOMENT, min_size=9, max_size=12),
    keep=st.none() | st.integers(20, 36),
    temperature=st.sampled_from([0, 0.5, 1.5]),
    seed=st.integers(0, 1_000_000),
)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_episode_goes_on_as_in_the_page(
    engine: Engine,
    records: dict[str, Path],
    workspace: Workspace,
    moments: list[tuple[int, int, int]],
    keep: int | None,
    temperature: float,
    seed: int,
) -> None:
    values = [list(moment) for moment in moments]
    flat = [value for moment in values for value in moment]
    record = json.dumps({"moments": values if len(values) == 12 else flat})
    body = {"record": record, "keep": keep, "temperature": temperature, "seed": seed}
    check_answer(engine, records, workspace, "everywhere/complete", "coin-player", body)


@pytest.mark.parametrize(
    "record", ["", "{}]", "[1]", '{"moments": [99]}', '{"moments": [[1]]}', '{"other": 1}']
)
def test_what_is_no_record_has_no_answer(
    engine: Engine, records: dict[str, Path], record: str
) -> None:
    for name in ("complete", "weights"):
        body = {"record": record, "token": 0}
        asked = {"page": "everywhere", "name": name, "body": body}
        assert engine.ask(records["coin-player"], "answer", **asked)["result"] is None


def test_a_model_of_rooms_is_refused(engine: Engine) -> None:
    asked = {"page": "everywhere", "name": "complete", "body": {"record": "{}"}}
    refused = engine.ask(models_at_hand()["room-actor"].path, "answer", **asked)
    assert "cannot be run here" in refused["what"]
