"""Requests that no client would send: an answer in words, never a failure of the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

FIELDS = [
    "q", "source", "target", "format", "alternatives", "api_key", "model", "prompt", "messages",
    "role", "content", "max_tokens", "n", "stop", "stream", "temperature", "top_p", "seed",
    "logprobs", "texts", "search", "beam", "alignment", "stream_options",
]  # fmt: skip
WORDS = ["en", "de", "fr", "auto", "en-de", "english", "user", "text", "A dog runs.", ""]
LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.sampled_from(WORDS)
    | st.text(max_size=12)
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)
    ),
    max_leaves=6,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6)
PATHS = ["/translate", "/detect", "/v1/completions", "/v1/chat/completions", "/v1/translate"]


@pytest.mark.parametrize("path", PATHS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=BODIES)
def test_any_values_get_an_answer_in_words(
    client: TestClient, path: str, body: dict[str, Any]
) -> None:
    answer = client.post(path, content=json.dumps(body).encode())
    assert answer.status_code in (200, 400, 404, 503), answer.text
    if answer.status_code != 200:
        assert "error" in answer.json()


@pytest.mark.parametrize("path", PATHS)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    body=st.binary(max_size=40),
    kind=st.sampled_from(
        [
            "application/json",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "multipart/form-data; boundary=x",
        ]
    ),
)
def test_any_bytes_get_an_answer_in_words(
    client: TestClient, path: str, body: bytes, kind: str
) -> None:
    answer = client.post(path, content=body, headers={"content-type": kind})
    assert answer.status_code in (200, 400), answer.text
