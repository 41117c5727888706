"""LibreTranslate's interface for pages and files, in this process and in the real server."""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

import heedful
from heedful.apps.serve.file_store import FileStore
from heedful.apps.serve.server_settings import Limits
from heedful.pretrained.catalogue import models_at_hand

from .conftest import client_of, make_parts

DOG = "A dog runs in the snow."
PAGE = f'<p class=x>{DOG} <b>A man</b> rides a bicycle.</p>\n<img alt="{DOG}"><script>a<b</script>'


@pytest.fixture(scope="module")
def dog() -> str:
    """What the library says by itself."""
    return str(heedful.load("en-de").translate([DOG])[0])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    return FileStore(tmp_path_factory.mktemp("files"), most_bytes=10_000)


@pytest.fixture(scope="module")
def client(files: FileStore) -> Iterator[TestClient]:
    path = models_at_hand()["en-de"].path
    with client_of(make_parts("en-de", f"de-fr={path}", files=files)) as client:
        yield client


def send(client: Any, name: str, content: bytes, **values: str) -> Any:
    fields = {"source": "en", "target": "de"} | values
    return client.post("/translate_file", files={"file": (name, content)}, data=fields)


@pytest.mark.parametrize("way", ["json", "form"])
def test_pages_are_translated(client: TestClient, dog: str, way: str) -> None:
    values = {"q": PAGE, "source": "en", "target": "de", "format": "html"}
    answer = (
        client.post("/translate", json=values)
        if way == "json"
        else client.post("/translate", data=values)
    )
    assert answer.status_code == 200
    text = answer.json()["translatedText"]
    assert text.startswith(f"<p class=x>{dog} ")
    assert text.endswith(f'</p>\n<img alt="{dog}"><script>a<b</script>')
    assert "<b>Ein Mann</b>" in text


def test_several_pages_with_alternatives_over_a_pivot(client: TestClient, dog: str) -> None:
    values = {"q": [f"<p>{DOG}</p>", "<br>", ""], "source": "en", "format": "html"}
    answer = client.post("/translate", json=values | {"target": "de", "alternatives": 2}).json()
    assert answer["translatedText"] == [f"<p>{dog}</p>", "<br>", ""]
    first = answer["alternatives"][0]
    assert len({f"<p>{dog}</p>", *first}) == 3
    assert all(each.startswith("<p>") and each.endswith("</p>") for each in first)
    answer = client.post("/translate", json=values | {"target": "fr", "q": "<p><b>A dog</b> runs."})
    assert answer.headers["x-heedful-models"] == "en-de, de-fr"
    assert answer.json()["translatedText"].count("<b>") == 1


def test_a_file_is_translated_and_fetched(client: TestClient, dog: str) -> None:
    answer = send(client, "a.HTML", f"\ufeff<p>{DOG}</p>\r\n".encode())
    assert answer.status_code == 200
    address = answer.json()["translatedFileUrl"]
    assert address.startswith("http://127.0.0.1/download_file/")
    assert address.endswith(".html")
    fetched = client.get(address)
    assert fetched.content == f"\ufeff<p>{dog}</p>\r\n".encode()
    assert fetched.headers["content-disposition"].startswith("attachment")


def test_passages_left_out_are_listed(client: TestClient) -> None:
    answer = send(client, "a.yml", b"a: '%H o clock %M'\n").json()
    assert answer["leftOut"] == ["line 1 ('%H o clock %M'): a format of dates or times"]


def test_the_language_of_a_file_is_found(client: TestClient, dog: str) -> None:
    answer = send(client, "a.html", f"<p>{DOG}</p>".encode(), source="auto")
    assert client.get(answer.json()["translatedFileUrl"]).text == f"<p>{dog}</p>"
    other = send(client, "a.txt", "La tua password non è corretta.".encode(), source="auto")
    assert other.status_code == 400
    assert "no model translates from it" in other.json()["error"]


def test_a_document_of_word(client: TestClient, dog: str) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        body = f'<w:document xmlns:w="u"><w:p><w:r><w:t>{DOG}</w:t></w:r></w:p></w:document>'
        archive.writestr("word/document.xml", body)
    answer = send(client, "a.docx", stream.getvalue())
    content = client.get(answer.json()["translatedFileUrl"]).content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert dog.encode() in archive.read("word/document.xml")


@pytest.mark.parametrize(
    ("name", "content", "values", "words"),
    [
        ("a.xyz", b"x", {}, ".xyz' is of no known format"),
        ("a.csv", b"a,b\n", {}, "Which columns are text"),
        ("a.json", b"{", {}, "a.json: Line 1, column 2 is no JSON"),
        ("a.docx", b"PK", {}, "a.docx: The document is no whole archive"),
        ("../../a.txt", b"\xff", {}, "a.txt: Byte 0"),
        ("a.txt", b"x", {"target": "xx"}, "xx"),
        ("a.txt", b"x", {"source": ""}, "source"),
    ],
)
def test_mistakes_are_said(
    client: TestClient, name: str, content: bytes, values: dict[str, str], words: str
) -> None:
    answer = send(client, name, content, **values)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert "Traceback" not in answer.text


def test_a_request_without_a_file(client: TestClient) -> None:
    for answer in (
        client.post("/translate_file", data={"source": "en", "target": "de", "file": "x"}),
        client.post("/translate_file", json={"source": "en", "target": "de"}),
    ):
        assert answer.status_code == 400
        assert "file" in answer.json()["error"]


@pytest.mark.parametrize("name", ["none.txt", "..%2F..%2Fetc%2Fpasswd", "a" * 32])
def test_what_is_not_there_is_not_found(client: TestClient, name: str) -> None:
    assert client.get(f"/download_file/{name}").status_code == 404


def test_files_are_kept_for_a_while_and_within_a_size(tmp_path: Path) -> None:
    store = FileStore(tmp_path, seconds=100, most_bytes=10)
    old = store.put(b"1234", ".txt")
    os.utime(tmp_path / old, (time.time() - 50,) * 2)
    new = store.put(b"5678", ".txt")
    assert (store.get(old), store.get(new)) == (b"1234", b"5678")
    newest = store.put(b"90ab", "")
    assert (store.get(old), store.get(new), store.get(newest)) == (None, b"5678", b"90ab")
    os.utime(tmp_path / new, (time.time() - 200,) * 2)
    assert store.get(new) is None
    assert [path.name for path in tmp_path.iterdir()] == [newest]
    assert store.get(f"../{tmp_path.name}/{newest}") is None


def test_settings_and_description(client: TestClient) -> None:
    settings = client.get("/frontend/settings").json()
    assert settings["filesTranslation"] is True
    office = {".docx", ".pptx", ".xlsx", ".odt", ".epub"}
    assert {".html", ".po", *office} <= set(settings["supportedFilesFormat"])
    assert ".csv" not in settings["supportedFilesFormat"]
    spec = client.get("/spec").json()
    content = spec["paths"]["/translate_file"]["post"]["requestBody"]["content"]
    assert list(content) == ["multipart/form-data"]
    schema = spec["components"]["schemas"]["TranslateFileBody"]
    assert schema["properties"]["file"]["format"] == "binary"
    assert "/download_file/{name}" in spec["paths"]


def test_a_server_without_a_folder_translates_no_files() -> None:
    with client_of(make_parts("en-de")) as client:
        assert send(client, "a.txt", b"x").status_code == 403
        assert client.get("/download_file/x").status_code == 404
        assert client.get("/frontend/settings").json()["filesTranslation"] is False


def test_a_file_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    files = FileStore(tmp_path / "gone")
    with client_of(make_parts("en-de", files=files)) as client:
        answer = send(client, "a.txt", b"x")
    assert answer.status_code == 503
    assert "cannot be stored" in answer.json()["error"]


def test_limits_hold_for_pages() -> None:
    with client_of(make_parts("en-de", limits=Limits(texts=2))) as client:
        values = {"source": "en", "target": "de", "format": "html"}
        page = "<p>One is.<p>Two are.<p>Three are."
        answer = client.post("/translate", json=values | {"q": page})
        assert answer.status_code == 400
        assert "3 texts; at most 2" in answer.json()["error"]


def test_workers_share_translated_files(start: Callable[..., Any], dog: str) -> None:
    server = start("en-de", "--workers", "2")
    with httpx2.Client(base_url=server.address, timeout=60) as client:
        address = send(client, "a.txt", f"{DOG}\n".encode()).json()["translatedFileUrl"]
    for _ in range(6):  # connections of their own reach both
        assert httpx2.get(address).content == f"{dog}\n".encode()
