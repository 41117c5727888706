"""The studio's server: who is answered, what is refused and how."""

from __future__ import annotations

import concurrent.futures
import hashlib
import http.client
import itertools
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import torch
from starlette.testclient import TestClient

import heedful
from heedful.apps.studio.app import STATIC, build_app
from heedful.apps.studio.guard import MAX_BODY
from heedful.apps.studio.pages import PAGES
from heedful.apps.studio.workspace import Workspace
from heedful.cli.main import main
from heedful.errors import ModelError
from heedful.models.cost import count_parameters
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.train.run_config import resolve_settings

HOME = "http://127.0.0.1:8765"
NEEDS_MORE = {
    "attention/neurons",
    "attention/overview",
    "tour/figure",
    "tour/walk",
    "runs/record",
    "attention/show",
    "attention/influence",
    "attention/labels",
    "attention/picture",
    "block/flow",
    "block/stream",
    "paths/own",
    "steps/follow",
    "decoding/step",
    "decoding/greedy",
    "decoding/beam",
    "everywhere/complete",
    "everywhere/image",
    "everywhere/spoken",
    "everywhere/weights",
    "everywhere/text",
    "image/about",
    "image/erase",
    "image/look",
    "steps/attend",
    "translate/text",
    "translate/alternatives",
    "translate/why",
    "translate/inside",
    "translate/again",
    "translate/lost",
    "block/contexts",  # a word and sentences with it
    "schedule/settings",
    "builder/preset",
    "without/train",  # it answers, and trains for a minute
}


@pytest.fixture(scope="module")
def client(workspace: Workspace) -> Iterator[TestClient]:
    with TestClient(build_app(workspace), base_url=HOME) as made:
        yield made


def every_call() -> list[str]:
    return [f"{page.name}/{name}" for page in PAGES for name in page.calls]


def refusal(response: httpx2.Response, status: int) -> dict[str, str]:
    """What an error says: always the same three things."""
    assert response.status_code == status, response.text
    content = response.json()
    assert set(content) == {"what", "where", "remedy"}
    assert content["what"]
    return content


# What pages ask


@pytest.mark.parametrize("call", sorted(set(every_call()) - NEEDS_MORE))
def test_every_call_answers_its_defaults(client: TestClient, call: str) -> None:
    assert client.post(f"/api/{call}", json={}).status_code == 200


@pytest.mark.parametrize("call", every_call())
def test_unknown_settings_are_refused(client: TestClient, call: str) -> None:
    content = refusal(client.post(f"/api/{call}", json={"nonsense": 1}), 400)
    assert "nonsense" in content["what"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"\xff\xfe", "application/json"),
        (b"width=3", "application/x-www-form-urlencoded"),
        (b"{}", "text/plain"),
    ],
)
def test_other_bodies_are_refused(client: TestClient, body: bytes, kind: str) -> None:
    headers = {"content-type": kind}
    refusal(client.post("/api/scale/compare", content=body, headers=headers), 400)


def test_pages_have_scripts_and_words() -> None:
    for page in PAGES:
        assert (STATIC / "pages" / f"{page.name}.js").is_file()
        assert 2 <= page.about.count(". ") + 1 <= 3, page.name


NAMESPACE = re.compile(
    r"http://www\.w3\.org/(?:1999/x(?:html|link)|2000/(?:svg|xmlns/)|XML/[\w/]+)"
)


def test_nothing_comes_from_elsewhere() -> None:
    """No address of another machine in anything that is served, but for names of namespaces.

    The first line of a vendored script is a comment with its version and its home page.
    """
    for file in STATIC.rglob("*"):
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            if file.parent.parent.name == "vendor":
                text = re.sub(r"\A// [^\n]*\n", "", text)
            assert not re.search("https?://", NAMESPACE.sub("", text)), file


def test_vendored_scripts_are_those_of_the_list_and_licensed() -> None:
    """Every script as it came from npm, byte for byte, under a licence that stands beside it."""
    folder = STATIC / "vendor" / "d3"
    packages = json.loads((folder / "packages.json").read_text(encoding="utf-8"))
    assert {file.name for file in folder.glob("*.js")} == {each["file"] for each in packages}
    licences = (folder / "LICENSES.txt").read_text(encoding="utf-8")
    for each in packages:
        content = (folder / each["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == each["sha256"], each["file"]
        assert f"v{each['version']} Copyright" in content[:120].decode()
        assert f"{each['name']} {each['version']}" in licences
    taken = {
        name
        for file in (STATIC / "draw").glob("*.js")
        for name in re.findall(r"vendor/d3/([\w.-]+)", file.read_text(encoding="utf-8"))
    }
    assert taken == {each["file"] for each in packages}


def test_vendored_scripts_are_kept_by_browsers_and_ours_are_not(client: TestClient) -> None:
    vendored = client.get("/static/vendor/d3/d3-array-3.2.5.min.js")
    assert vendored.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert vendored.headers["content-type"].startswith("text/javascript")
    for path in ("shell.js", "vendor/d3/packages.json", "vendor/d3/none.js"):
        kept = client.get(f"/static/{path}").headers.get("cache-control", "")
        assert "immutable" not in kept


# Strangers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "", "8.8.8.8", "[::", "a@b"])
def test_other_hosts_are_refused(client: TestClient, host: str) -> None:
    refusal(client.get("/", headers={"host": host}), 403)


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1", "127.0.0.1:1", "[::1]:8765"])
def test_own_hosts_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


def test_a_reachable_server_answers_addresses_and_no_names(workspace: Workspace) -> None:
    with TestClient(build_app(workspace, "0.0.0.0"), base_url=HOME) as client:
        assert client.get("/", headers={"host": "192.0.2.7:8765"}).status_code == 200
        refusal(client.get("/", headers={"host": "evil.example"}), 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_sites_pages_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    refusal(client.post("/api/scale/compare", json={}, headers=headers), 403)


def test_own_pages_are_answered(client: TestClient) -> None:
    headers = {"origin": HOME, "sec-fetch-site": "same-origin"}
    assert client.post("/api/scale/compare", json={}, headers=headers).status_code == 200


def test_a_link_from_another_site_opens_a_page(client: TestClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/scale", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/static/shell.js", "/api/studio", "/nothing", "/api/no"])
def test_every_answer_forbids_what_is_not_ours(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


# Floods


def test_a_body_that_says_it_is_too_long_is_not_read(studio: str) -> None:
    """Two gigabytes are announced; the answer comes before a byte of them is sent."""
    with socket.create_connection(address(studio), timeout=10) as connection:
        head = "POST /api/scale/compare HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2000000000"
        connection.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode())
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 413")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["remedy"]


def test_a_body_that_does_not_say_is_cut_off(studio: str) -> None:
    """Two gigabytes in chunks: the connection is closed soon after the limit."""
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    sent = 0
    with socket.create_connection(address(studio), timeout=10) as connection:
        head = "POST /api/scale/compare HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked"
        connection.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode())
        try:
            while sent < 2_000_000_000:
                connection.sendall(piece)
                sent += 65536
        except OSError:
            pass
    assert MAX_BODY < sent < 32 * MAX_BODY  # what had left this side when the other closed
    assert httpx2.get(studio).status_code == 200


def test_a_body_just_within_the_limit_is_read(client: TestClient) -> None:
    filler = "x" * (MAX_BODY - 100)
    refusal(client.post("/api/masks/draw", json={"mask": filler}), 400)


def address(studio: str) -> tuple[str, int]:
    parts = urlsplit(studio)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def read_to_end(connection: socket.socket) -> bytes:
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found


# Files


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%00",
        "/%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_no_file_outside_is_served(studio: str, path: str) -> None:
    host, port = address(studio)
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    content = response.read()
    assert response.status == 404
    assert b"root:" not in content
    assert b"Starlette" not in content
    connection.close()


@pytest.mark.parametrize("name", ["../learned", "/etc", "", "learned/..", "\x00", "x" * 5000])
def test_only_given_places_have_names(client: TestClient, name: str) -> None:
    body = {"model": name, "text": "a cat"}
    content = refusal(client.post("/api/translate/text", json=body), 400)
    assert len(content["what"]) < 300


def test_places_that_are_nothing_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ModelError, match="director"):
            Workspace([path])


def test_places_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "run").mkdir(parents=True)
        (tmp_path / name / "run" / "config.toml").write_text("", encoding="utf-8")
    both = Workspace([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert list(both.places) == ["a/run", "b/run"]
    assert list(Workspace([tmp_path / "a" / "run"] * 2).places) != ["run", "run"]


# Texts of every kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t ",
        "\x00\x01\x1b[31m",
        "القطة على السجادة",
        "🐈‍⬛ 👩‍👩‍👧",
        "a\u202eb\u2028c",
        "cat\r\nmat",
        "x" * 2000,
    ],
)
def test_any_text_is_translated(client: TestClient, text: str) -> None:
    response = client.post("/api/translate/text", json={"model": "learned", "text": text})
    assert response.status_code == 200
    found = response.json()["translations"][0]
    assert "".join(part["text"] for part in found["target"]) == found["text"]


def test_half_a_surrogate_pair_is_an_error(client: TestClient) -> None:
    body = b'{"model": "learned", "text": "\\ud800"}'
    headers = {"content-type": "application/json"}
    response = client.post("/api/translate/text", content=body, headers=headers)
    refusal(response, 400)


def test_a_hundred_thousand_characters_are_too_many(client: TestClient) -> None:
    body = {"model": "learned", "text": "a cat " * 17_000}
    content = refusal(client.post("/api/translate/text", json=body), 400)
    assert "102,000" in content["what"]
    assert "heedful translate" in content["remedy"]


def test_translations_are_the_librarys(client: TestClient, given) -> None:
    text = "the dog sat on a mat"
    body = {"model": "learned", "text": text, "n_best": 3}
    found = client.post("/api/translate/text", json=body).json()["translations"]
    expected = heedful.load(given.learned).translate([text], n_best=3, alignment=True)[0]
    assert [each["text"] for each in found] == [str(each) for each in expected.n_best]
    assert [each["score"] for each in found] == pytest.approx([e.score for e in expected.n_best])
    torch.testing.assert_close(
        torch.tensor(found[0]["matrix"]), torch.tensor(expected.alignment.matrix), atol=1e-4, rtol=0
    )


# The builder's file


@pytest.mark.parametrize("task", ["translation", "causal_lm", "masked_lm"])
def test_the_builders_file_is_what_train_takes(
    client: TestClient, tmp_path: Path, task: str
) -> None:
    model = {"width": 48, "num_heads": 4, "feedforward": 96, "encoder_layers": 3, "norm": "rms"}
    body = {"task": task, "model": model, "vocabulary": 500}
    found = client.post("/api/builder/build", json=body).json()
    file = tmp_path / "model.toml"
    file.write_text(found["toml"], encoding="utf-8")
    data = {"train": [{"source": "a", "target": "b"} if task == "translation" else {"file": "a"}]}
    settings = resolve_settings(config_file=file, overrides={"data": data})
    assert settings.task == task
    assert settings.model.plain() == TranslatorShape.parse(model).plain()
    assert settings.tokenizer.vocabulary_size == 500


def test_a_model_of_the_builder_is_trained(client: TestClient, tmp_path: Path) -> None:
    """The whole way: the page's file and a person's data, through the real command."""
    model = {"width": 16, "num_heads": 2, "feedforward": 32, "encoder_layers": 1}
    body = {"model": {**model, "decoder_layers": 1}, "vocabulary": 20, "batch_tokens": 512}
    file = tmp_path / "model.toml"
    file.write_text(client.post("/api/builder/build", json=body).json()["toml"], encoding="utf-8")
    pairs = [tmp_path / "pairs.en", tmp_path / "pairs.de"]
    for number, path in enumerate(pairs):
        lines = [f"{'abcdefgh'[i % 8]} {'hgfedcba'[(i + number) % 8]}\n" for i in range(60)]
        path.write_text("".join(lines), encoding="utf-8")
    words = ["train", tmp_path / "run", "--config", file, "--train", *pairs, "--max-steps", 1]
    assert main([str(word) for word in words]) == 0
    assert Workspace([tmp_path / "run"]).translator("run").models[0].spec.width == 16


def test_the_builder_counts_what_is_built(client: TestClient) -> None:
    model = {"width": 48, "num_heads": 4, "feedforward": 96, "activation": "swiglu"}
    found = client.post("/api/builder/build", json={"model": model, "vocabulary": 500}).json()
    built = Translator(translator_spec(TranslatorShape.parse(model), 500, 500))
    assert found["total"] == sum(parameter.numel() for parameter in built.parameters())
    assert found["total"] == sum(row["total"] for row in found["rows"])


def test_the_builders_rules_are_said(client: TestClient) -> None:
    body = {"model": {"width": 50, "num_heads": 8}}
    assert "num_heads" in refusal(client.post("/api/builder/build", json=body), 400)["what"]


def test_presets_stand_by_their_published_size(client: TestClient) -> None:
    found = {p["name"]: p for p in client.post("/api/builder/presets", json={}).json()["presets"]}
    assert found["gpt2"]["parameters"] == 124_439_808
    shape = TranslatorShape(width=512, share_embeddings="all")
    assert found["transformer-base"]["parameters"] == count_parameters(
        translator_spec(shape, 37000, 37000)
    )


# Several people


def test_ten_people_at_once(studio: str) -> None:
    asked = [
        ("scale/compare", {"width": 64}),
        ("masks/draw", {"mask": "window(3)"}),
        ("positions/show", {}),
        ("translate/text", {"model": "learned", "text": "the cat sat"}),
        ("runs/curves", {"runs": ["run", "other"]}),
    ]

    def person(number: int) -> list[int]:
        with httpx2.Client(base_url=studio, timeout=30) as own:
            mine = itertools.islice(itertools.cycle(asked), number, number + 5)
            return [own.post(f"api/{call}", json=body).status_code for call, body in mine]

    with concurrent.futures.ThreadPoolExecutor(10) as people:
        found = [status for each in people.map(person, range(10)) for status in each]
    assert found == [200] * 50


def test_who_hangs_up_is_not_worked_for(studio: str) -> None:
    """Twenty sweeps are asked for and given up; the next question need not wait for them."""
    body = json.dumps({"keys": 64}).encode()
    head = f"POST /api/scale/sweep HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
    for _ in range(20):
        with socket.create_connection(address(studio)) as connection:
            connection.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
    started = time.perf_counter()
    assert httpx2.post(f"{studio}api/masks/draw", json={}, timeout=30).status_code == 200
    waited = time.perf_counter() - started
    started = time.perf_counter()
    httpx2.post(f"{studio}api/scale/sweep", json={"keys": 64}, timeout=30)
    assert waited < 8 * (time.perf_counter() - started)


def test_who_hangs_up_before_the_body_is_no_bug(
    studio: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a page does that is left while it asks."""
    head = "POST /api/masks/draw HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20\r\n"
    with socket.create_connection(address(studio)) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
        time.sleep(0.2)
    assert httpx2.post(f"{studio}api/masks/draw", json={}, timeout=30).status_code == 200
    assert capfd.readouterr().err == ""
