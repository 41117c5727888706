"""Jobs: large documents that are ordered, asked for and fetched, and outlast their worker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import heedful
from heedful.apps.documents.formats import format_of
from heedful.apps.serve.clients import Clients
from heedful.apps.serve.exchange import RefusedRequest
from heedful.apps.serve.file_store import FileStore
from heedful.apps.serve.jobs import Jobs, Order
from heedful.apps.serve.keys import Keys, key_hash
from heedful.apps.serve.scheduler import DeadlinePassed, QueueFull
from heedful.apps.serve.server_settings import Limits

from .conftest import client_of, make_parts, wait_until

ORDER = Order(name="a.txt", format=format_of(Path("a.txt")), route=("en-de",), language="en")


def finished(client: TestClient, address: str, **headers: str) -> Any:
    """Ask for a job until it is finished."""
    states: list[Any] = []

    def is_finished() -> bool:
        states.append(client.get(address, headers=headers).json())
        return states[-1]["status"] in ("done", "failed")

    wait_until(is_finished, 60)
    return states[-1]


def test_a_document_is_ordered_asked_for_and_fetched(tmp_path: Path) -> None:
    text = "".join(f"A dog has {number} cats.\r\n" for number in range(150))
    with client_of(make_parts("en-de", jobs=Jobs(tmp_path))) as client:
        values = {"source": "en-US", "target": "de"}
        answer = client.post("/v1/jobs", data=values, files={"file": ("ü.txt", text.encode())})
        assert answer.status_code == 202
        assert answer.json()["status"] == "waiting"
        address = answer.headers["location"]
        early = client.get(f"{address}/result")
        assert (early.status_code, early.json()["reason"]) == (409, "unfinished")
        state = finished(client, address)
        assert (state["status"], state["done"], state["total"]) == ("done", 150, 150)
        for _ in range(2):  # it stays until it is deleted
            fetched = client.get(f"{address}/result")
            assert fetched.status_code == 200
        assert fetched.headers["content-disposition"].endswith("%C3%BC.txt")
        assert fetched.content.count(b"\r\n") == 150
        assert client.delete(address).status_code == 204
        assert client.get(address).status_code == 404
        assert list(tmp_path.iterdir()) == []


def test_a_long_text_is_a_job_too_and_mistakes_are_said(tmp_path: Path) -> None:
    own = str(heedful.load("en-de").translate(["A dog runs."])[0])
    with client_of(make_parts("en-de", jobs=Jobs(tmp_path))) as client:
        body = {"text": "A dog runs.\n", "model": "en-de"}
        address = client.post("/v1/jobs", json=body).headers["location"]
        assert finished(client, address)["status"] == "done"
        assert client.get(f"{address}/result").text == f"{own}\n"
        wrong = {"file": ("a.json", b"{")}
        values = {"source": "en", "target": "de"}
        address = client.post("/v1/jobs", files=wrong, data=values).headers["location"]
        state = finished(client, address)
        assert (state["status"], "no JSON" in state["error"]) == ("failed", True)
        assert "no JSON" in client.get(f"{address}/result").json()["error"]
        for body in (
            {"text": "x"},
            {"model": "en-de"},
            {"text": "x", "source": "xx", "target": "y"},
        ):
            assert client.post("/v1/jobs", json=body).status_code == 400
        for name in ("../x", "a" * 32):
            assert client.get(f"/v1/jobs/{name}").status_code == 404


def test_a_job_is_there_for_its_key_alone(tmp_path: Path) -> None:
    clients = Clients(Keys({"alice": key_hash("1"), "bob": key_hash("2")}))
    alice, bob = ({"authorization": f"Bearer {key}"} for key in "12")
    with client_of(make_parts("en-de", jobs=Jobs(tmp_path), clients=clients)) as client:
        body = {"text": "A dog.", "model": "en-de"}
        address = client.post("/v1/jobs", json=body, headers=alice).headers["location"]
        assert finished(client, address, **alice)["status"] == "done"
        for method in ("GET", "DELETE"):
            assert client.request(method, address, headers=bob).status_code == 404
            assert client.request(method, address).status_code == 403
        assert client.get(f"{address}/result", headers=alice).status_code == 200


def test_the_next_worker_begins_the_job_of_a_dead_one_again(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    id = jobs.create(ORDER, b"A dog runs.\n")
    claim = jobs.claim()
    assert claim is not None
    assert jobs.claim() is None
    claim.lock.close()  # as the system does when a process ends
    with client_of(make_parts("en-de", jobs=jobs)) as client:
        assert finished(client, f"/v1/jobs/{id}")["status"] == "done"
    assert jobs.claim() is None


def test_jobs_are_limited_and_expire(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, most=2, most_bytes=5000)
    first, _ = (jobs.create(ORDER, b"x") for _ in range(2))
    with pytest.raises(RefusedRequest, match="2 jobs wait") as refused:
        jobs.create(ORDER, b"x")
    assert refused.value.status == 429
    other = jobs.create(ORDER.model_copy(update={"owner": "bob"}), b"x" * 4000)
    with pytest.raises(RefusedRequest, match="fill the disk"):
        jobs.create(ORDER.model_copy(update={"owner": "bob"}), b"x" * 1000)
    for id in (first, other):
        (tmp_path / id / "result").write_bytes(b"y")
    os.utime(tmp_path / other / "result", (time.time() - 2 * jobs.seconds,) * 2)
    jobs.create(ORDER, b"x" * 1000)
    assert (tmp_path / first).exists()  # unfetched results never make room
    assert not (tmp_path / other).exists()


def test_a_file_is_translated_part_by_part_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = make_parts("en-de", files=FileStore(tmp_path), limits=Limits(texts=5))
    service = parts.service
    monkeypatch.setattr("heedful.apps.serve.service.PASSAGES_AT_ONCE", 4)
    translate, sizes = service.translate, []

    async def slow(texts: Any, *given: Any, **options: Any) -> Any:
        sizes.append(len(texts))
        if len(sizes) == 2:
            raise QueueFull(0)
        if len(sizes) == 3:
            raise DeadlinePassed
        return await translate(texts, *given, **options)

    monkeypatch.setattr(service, "translate", slow)
    text = "\n".join(f"A dog {number}." for number in range(8))
    with client_of(parts) as client:
        values = {"source": "en", "target": "de"}
        sent = {"file": ("a.txt", text.encode())}
        answer = client.post("/translate_file", files=sent, data=values)
        assert answer.status_code == 200, answer.text
        assert client.get(answer.json()["translatedFileUrl"]).text.count("\n") == 7
    assert sizes == [4, 4, 4, 1, 1, 1, 1]  # a smaller part after one that came too late


def test_a_body_with_a_file_may_be_larger(tmp_path: Path) -> None:
    with client_of(make_parts("en-de", jobs=Jobs(tmp_path), files=FileStore(tmp_path))) as client:
        large = {"text": "x" * (3 << 20), "source": "xx", "target": "de"}
        assert client.post("/v1/jobs", json=large).status_code == 400
        assert client.post("/translate", json=large | {"q": large["text"]}).status_code == 413


def test_jobs_go_on_after_a_restart(start: Callable[..., Any], tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    id = jobs.create(ORDER, b"A dog runs.\n" * 3)
    start("en-de", "--jobs", "kept", "--split", "lines")
    wait_until(lambda: jobs.result(tmp_path / "kept" / id) == "Ein Hund läuft.\n".encode() * 3, 30)
