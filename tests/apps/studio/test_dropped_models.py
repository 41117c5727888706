"""A model dropped onto a page: what is taken, what is refused, and that nothing stays behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example
from hypothesis import given as for_all
from hypothesis import strategies as st
from starlette.testclient import TestClient

from heedful.apps.studio import dropped_models
from heedful.apps.studio.app import build_app
from heedful.apps.studio.dropped_models import is_taken
from heedful.apps.studio.guard import MAX_BODY
from heedful.apps.studio.workspace import Workspace

HOME = "http://127.0.0.1:8765"
BYTES = {"content-type": "application/octet-stream"}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder under which the studio keeps what is dropped."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def workspace_of_run(given: Any) -> Workspace:
    return Workspace([given.run])


@pytest.fixture
def client(workspace_of_run: Workspace, kept: Path) -> Iterator[TestClient]:
    with TestClient(build_app(workspace_of_run), base_url=HOME) as made:
        yield made


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def begin(client: TestClient, files: dict[str, bytes], name: str = "own") -> Any:
    facts = [{"name": each, "size": len(content)} for each, content in files.items()]
    return client.post("/api/dropped/begin", json={"name": name, "files": facts})


def send(client: TestClient, drop: Any, name: str, content: Any) -> Any:
    where = {"drop": drop, "name": name}
    return client.post("/api/dropped/file", params=where, content=content, headers=BYTES)


def drop(client: TestClient, files: dict[str, bytes], name: str = "own") -> Any:
    """Drop a folder as a page does; the last answer."""
    begun = begin(client, files, name)
    if begun.status_code != 200:
        return begun
    answer = begun.json()
    for each in answer["files"]:
        sent = send(client, answer["drop"], each, files[each])
        assert sent.status_code == 200, sent.text
    return client.post("/api/dropped/end", json={"drop": answer["drop"]})


def test_a_dropped_model_is_listed_and_answers(client: TestClient, given: Any, kept: Path) -> None:
    place = drop(client, contents(given.learned), "my model").json()
    assert (place["name"], place["kind"]) == ("my model", "translator")
    listed = client.get("/api/studio").json()["places"]
    assert [each["name"] for each in listed] == ["run", "my model"]
    asked = {"model": "my model", "text": "the cat sat"}
    assert client.post("/api/translate/text", json=asked).status_code == 200
    again = drop(client, contents(given.t5), "my model").json()
    assert again["name"] == "my model (2)"
    assert len(list(kept.rglob("config.json"))) == 2


def test_a_run_is_dropped_with_its_curves(client: TestClient, given: Any) -> None:
    place = drop(client, contents(given.other), "other run").json()
    assert place["run"]
    assert place["kind"] == "translator"
    curves = client.post("/api/runs/curves", json={"runs": ["other run"]})
    assert curves.status_code == 200


def test_nothing_stays_when_the_studio_stops(given: Any, kept: Path) -> None:
    with TestClient(build_app(Workspace([given.run])), base_url=HOME) as client:
        assert drop(client, contents(given.learned)).status_code == 200
        assert list(kept.iterdir())
    assert list(kept.iterdir()) == []


NAMES = [
    "../config.json",
    "/etc/passwd",
    "/config.json",
    "//config.json",
    "model/../../config.json",
    "..\\config.json",
    "model/model/config.json",
    "checkpoints/model.safetensors",
    "config.json/",
    "config.json\x00.txt",
    "C:config.json",
    "./config.json",
    "model//config.json",
    "pytorch_model.bin",
    "model.pt",
    "weights.safetensors",
    "model.py",
    "tokenizer.JSON",
    "",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_no_file_of_a_model(
    client: TestClient, given: Any, kept: Path, name: str
) -> None:
    files = contents(given.learned) | {name: b"{}"}
    begun = begin(client, files).json()
    assert name in begun["left_out"]
    assert name not in begun["files"]
    before = contents(kept)
    sent = send(client, begun["drop"], name, b"{}")
    assert sent.status_code == 400
    assert contents(kept) == before
    assert contents(kept.parent) == {f"kept/{each}": content for each, content in before.items()}


PARTS = ["..", ".", "/", "\\", "model", "config.json", "model.safetensors", "\x00", "\n", "a"]


@for_all(st.lists(st.sampled_from(PARTS), max_size=5).map("".join) | st.text(max_size=20))
@example("/config.json")
@example("model//model.safetensors")
def test_what_is_taken_stays_in_its_folder(name: str) -> None:
    if is_taken(name):
        inside = (Path("/folder") / name).resolve()
        assert inside.parent in (Path("/folder"), Path("/folder/model"))
        assert inside.suffix in (".json", ".toml", ".safetensors", ".txt", ".jsonl")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "neither a model directory nor a run directory"),
        ({"README.md": b"x"}, "no config.json"),
        ({"config.json": b"{}"}, "model.safetensors is missing"),
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "can run code"),
        ({"config.json": b"{}", "model.safetensors": b"x"}, "model"),
        ({"config.json": b"[" * 9999, "model.safetensors": b"x"}, "config.json"),
        ({"config.json": b"\xff", "model.safetensors": b"x"}, "config.json"),
        ({"config.toml": b"[["}, ""),
    ],
)
def test_what_is_no_model_is_refused_in_words(
    client: TestClient, kept: Path, files: dict[str, bytes], said: str
) -> None:
    answer = drop(client, files)
    if said:
        assert answer.status_code == 400
        assert said in answer.text
        assert str(kept) not in answer.text
        assert len(answer.text) < 2000
        assert len(client.get("/api/studio").json()["places"]) == 1
        assert contents(kept) == {}
    else:  # a run that has no model yet; the page of runs says what is wrong with its settings
        assert answer.json()["kind"] is None


def test_a_damaged_model_is_refused_and_removed(client: TestClient, given: Any, kept: Path) -> None:
    files = contents(given.learned)
    weights = bytearray(files["model.safetensors"])
    weights[-1] ^= 1
    answer = drop(client, files | {"model.safetensors": bytes(weights)})
    assert answer.status_code == 400
    assert "own/model.safetensors" in answer.json()["where"]
    assert contents(kept) == {}
    assert drop(client, files).status_code == 200  # its room is free again


# Sizes


def test_more_than_a_start_takes(given: Any, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = contents(given.learned)
    most = sum(map(len, files.values())) + 10
    monkeypatch.setattr(dropped_models, "MOST_BYTES", most)
    monkeypatch.setattr(dropped_models.DroppedModels.__init__, "__defaults__", (most,))
    with TestClient(build_app(Workspace([given.run])), base_url=HOME) as client:
        assert drop(client, files).status_code == 200
        answer = begin(client, files)
        assert answer.status_code == 400
        assert f"{most:,}" in answer.json()["what"]
        assert "heedful studio DIR" in answer.json()["remedy"]


def test_a_text_file_of_a_gigabyte(client: TestClient, given: Any) -> None:
    facts = [{"name": "config.json", "size": 1 << 30}, {"name": "model.safetensors", "size": 9}]
    answer = client.post("/api/dropped/begin", json={"name": "x", "files": facts})
    assert answer.status_code == 400
    assert "1,073,741,824" in answer.json()["what"]


@pytest.mark.parametrize("change", [-1, 1, 70_000])
def test_another_size_than_announced(
    client: TestClient, given: Any, kept: Path, change: int
) -> None:
    files = contents(given.learned)
    begun = begin(client, files).json()
    content = files["config.json"]
    other = content[:change] if change < 0 else content + b" " * change
    answer = send(client, begun["drop"], "config.json", iter([other[:100], other[100:]]))
    assert answer.status_code == 400
    assert f"{len(content):,} bytes" in answer.json()["what"]
    assert contents(kept) == {}
    ended = client.post("/api/dropped/end", json={"drop": begun["drop"]})
    assert "still missing" in ended.json()["what"]


def test_a_file_sent_twice(client: TestClient, given: Any) -> None:
    files = contents(given.learned)
    begun = begin(client, files).json()
    assert send(client, begun["drop"], "config.json", files["config.json"]).status_code == 200
    assert send(client, begun["drop"], "config.json", files["config.json"]).status_code == 400


def test_a_folder_never_ended_gives_its_room_back(
    client: TestClient, given: Any, kept: Path
) -> None:
    files = contents(given.learned)
    first = begin(client, files).json()
    send(client, first["drop"], "config.json", files["config.json"])
    begin(client, files)
    assert contents(kept) == {}
    assert send(client, first["drop"], "tokenizer.json", b"").status_code == 400


@pytest.mark.parametrize("number", ["-1", "99", "x", "", "9" * 5000, "²"])
def test_numbers_of_no_drop(client: TestClient, number: str) -> None:
    assert send(client, number, "config.json", b"{}").status_code == 400


def test_other_calls_keep_their_limit(client: TestClient) -> None:
    body = b"x" * (MAX_BODY + 1)
    for path in ("/api/dropped/begin", "/api/dropped/end", "/api/masks/draw"):
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 413


# Strangers


CALLS = ["begin", "file?drop=1&name=config.json", "end"]


@pytest.mark.parametrize("call", CALLS)
def test_other_sites_drop_nothing(client: TestClient, call: str) -> None:
    headers = {"origin": "https://evil.example", **BYTES}
    answer = client.post(f"/api/dropped/{call}", content=b"{}", headers=headers)
    assert answer.status_code == 403
    for kind in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded"):
        form = client.post(f"/api/dropped/{call}", content=b"{}", headers={"content-type": kind})
        assert form.status_code == 400


@pytest.mark.parametrize("call", CALLS)
def test_nobody_drops_anything_without_the_key(given: Any, kept: Path, call: str) -> None:
    app = build_app(Workspace([given.run]), token="key")
    with TestClient(app, base_url=HOME) as client:
        assert client.post(f"/api/dropped/{call}", json={}).status_code == 401
    assert list(kept.iterdir()) == []
