"""Wrong requests to every call: the answer is short and in words that a person uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from heedful.apps.studio.app import build_app
from heedful.apps.studio.page import Call
from heedful.apps.studio.pages import PAGES
from heedful.apps.studio.workspace import Workspace
from heedful.errors import ConfigError

LONGEST = 2000
"""Characters of an answer that refuses something."""

JARGON = re.compile(
    r"Input should|should be a valid|validation error|[Vv]alue error|Tuple|pydantic|Config\b|"
    r"\btuple\b|\bdict\b|\bstr\b|\bint\b|\barray\b|Traceback|NoneType|model_type|__"
)
"""Words of the libraries beneath, which say nothing to a person."""

NESTED: Any = "deep"
for _ in range(60):
    NESTED = [NESTED]

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1.5,
    -1e300,
    "x" * 100_000,
    "9",
    [],
    {},
    [[0.25] * 100] * 100,
    {"a" * 5000: {"b": [1] * 5000}},
    [None],
    [{}] * 1000,
    ["x" * 3000] * 30,
    [[]],
    list(range(10_000)),
    NESTED,
)

CALLS = {f"{page.name}/{name}": call for page in PAGES for name, call in page.calls.items()}


@pytest.fixture(scope="module")
def client(workspace: Workspace) -> Iterator[TestClient]:
    with TestClient(build_app(workspace), base_url="http://127.0.0.1:8765") as made:
        yield made


def in_words(text: str) -> None:
    assert len(text) < LONGEST, text[:300]
    found = JARGON.search(text)
    assert found is None, f"{found}: {text[:600]}"


def refused(call: Call, body: dict[str, Any]) -> str | None:
    """The refusal of a request; None where it is as it should be."""
    try:
        call.request.parse(body, where="the page's request")
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", CALLS)
def test_wrong_values_of_every_setting_are_refused_in_words(name: str) -> None:
    call = CALLS[name]
    refusals = 0
    for setting in call.request.model_fields:
        for value in WRONG:
            said = refused(call, {setting: value})
            if said is not None:
                refusals += 1
                in_words(said)
    assert refusals or not call.request.model_fields


@pytest.mark.parametrize("name", CALLS)
def test_all_of_it_wrong_at_once(client: TestClient, name: str) -> None:
    fields = CALLS[name].request.model_fields
    for value in ([[0.25] * 70] * 70, {"a": "b" * 9000}):
        body = dict.fromkeys(fields, value) | {"n" * 50_000: 1, "o": value}
        answer = client.post(f"/api/{name}", json=body)
        assert answer.status_code == 400
        in_words(answer.text)


@pytest.mark.parametrize("name", CALLS)
def test_texts_that_are_too_long(client: TestClient, name: str) -> None:
    """A name of no model, a text without end, each in the place of every text."""
    texts = [key for key, field in CALLS[name].request.model_fields.items() if _is_text(field)]
    for key in texts:
        body = {"model": "learned", "text": "the cat"} if key not in ("model", "text") else {}
        body = {k: v for k, v in body.items() if k in CALLS[name].request.model_fields}
        answer = client.post(f"/api/{name}", json=body | {key: "x" * 100_000})
        if answer.status_code != 200:
            assert answer.status_code == 400, answer.text[:300]
            in_words(answer.text)


def _is_text(field: Any) -> bool:
    return field.annotation is str


def test_numbers_without_end_are_no_numbers(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    for number in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000):
        body = f'{{"width": {number}}}'
        answer = client.post("/api/scale/compare", content=body, headers=headers)
        assert answer.status_code == 400, number
        in_words(answer.text)


def test_the_words_name_the_bound_and_the_value() -> None:
    said = refused(CALLS["positions/show"], {"width": 1000, "length": "9", "factor": 99})
    assert said is not None
    assert "Setting 'width' = 1000: must be at most 512" in said
    assert "Setting 'length' = '9': must be a whole number" in said
    assert "Setting 'factor' = 99: must be at most 16" in said
    assert json.dumps(said)
