"""The outermost layer: hosts, sizes, pace, other sites, and the log of requests."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from heedful.apps.serve.application import build_app
from heedful.apps.serve.gate import AccessLog
from heedful.apps.serve.server_settings import GateSettings

from .conftest import client_of, make_parts

BODY = {"q": "A secret dog.", "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(scope="module")
def client(log: io.StringIO) -> Iterator[TestClient]:
    gate = GateSettings(body=1000, origins=("https://example.org",))
    with client_of(make_parts("en-de", gate=gate, log=AccessLog(log))) as client:
        yield client


def test_another_host_is_refused(client: TestClient) -> None:
    answer = client.post("/translate", json=BODY, headers={"host": "evil.example"})
    assert answer.status_code == 403
    for host in ("localhost:5000", "127.0.0.1", "[::1]:5000"):
        assert client.get("/health", headers={"host": host}).status_code == 200


def test_a_public_server_answers_by_any_name() -> None:
    with client_of(make_parts("en-de", gate=GateSettings("0.0.0.0"))) as client:
        assert client.get("/health", headers={"host": "mt.example"}).status_code == 200


def test_bodies_beyond_the_limit_are_refused_in_the_form_of_the_interface(
    client: TestClient,
) -> None:
    long = json.dumps(BODY | {"q": "x" * 1000}).encode()

    def in_parts() -> Iterator[bytes]:
        for start in range(0, len(long), 100):
            yield long[start : start + 100]

    for content in (long, in_parts()):
        answer = client.post("/translate", content=content)
        assert answer.status_code == 413
        assert answer.headers["connection"] == "close"
        assert "1,000 bytes" in answer.json()["error"]
    answer = client.post("/v1/completions", content=long)
    assert "1,000 bytes" in answer.json()["error"]["message"]


def test_pages_of_named_origins_may_ask_and_no_others(client: TestClient) -> None:
    asked = {"origin": "https://example.org", "access-control-request-method": "POST"}
    answer = client.options("/translate", headers=asked)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    allowed = client.post("/translate", json=BODY, headers={"origin": "https://example.org"})
    assert allowed.headers["access-control-allow-origin"] == "https://example.org"
    other = client.options("/translate", headers=asked | {"origin": "https://evil.example"})
    assert other.status_code == 405
    assert "access-control-allow-origin" not in other.headers


def test_the_log_has_no_texts(client: TestClient, log: io.StringIO) -> None:
    log.truncate(0)
    log.seek(0)
    client.post("/translate", json=BODY)
    client.post("/translate", json={"q": "A secret dog."})
    entries = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(e["path"], e["status"], e.get("refusal")) for e in entries] == [
        ("/translate", 200, None),
        ("/translate", 400, "invalid"),
    ]
    assert entries[0]["texts"] == 1
    assert entries[0]["milliseconds"] > 0
    assert "secret" not in log.getvalue()


def test_a_log_without_room_ends_no_connection() -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    app = build_app(make_parts("en-de", log=AccessLog(Full())))
    with TestClient(app, base_url="http://127.0.0.1") as client:  # which raises what the app does
        assert client.get("/health").status_code == 200


def test_addresses_and_methods_that_are_not_there(client: TestClient) -> None:
    assert client.get("/nothing").status_code == 404
    answer = client.get("/translate")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert "error" in answer.json()


def test_a_defect_counts_as_500_and_not_as_a_client_that_hung_up() -> None:
    stream = io.StringIO()
    parts = make_parts("en-de", log=AccessLog(stream))

    def fail() -> str:
        raise ZeroDivisionError("a defect of a test")

    with client_of(parts) as client:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts.metrics, "text", fail)
            assert client.get("/metrics").status_code == 500
        counted = client.get("/metrics").text
    assert json.loads(stream.getvalue().splitlines()[0])["status"] == 500
    assert 'status="500"} 1.0' in counted
    assert 'status="499"' not in counted
