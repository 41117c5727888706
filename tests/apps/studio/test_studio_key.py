"""The key of a start: who has the printed address is answered, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from heedful.apps.sockets import address_of, listen, outside_address
from heedful.apps.studio.app import build_app
from heedful.apps.studio.pages import PAGES
from heedful.apps.studio.workspace import Workspace

HOME = "http://127.0.0.1:8765"
KEY = "a-key_of.this~start"


@pytest.fixture
def client(workspace: Workspace) -> Iterator[TestClient]:
    with TestClient(build_app(workspace, token=KEY), base_url=HOME, follow_redirects=False) as made:
        yield made


@pytest.mark.parametrize("path", ["/", "/tour", "/api/studio", "/nothing"])
def test_nobody_is_answered_without_it(client: TestClient, path: str) -> None:
    refused = client.get(path)
    assert refused.status_code == 401
    assert set(refused.json()) == {"what", "where", "remedy"}


@pytest.mark.parametrize("value", ["wrong", "", KEY[:-1], KEY + "x", "ä€", "%00"])
def test_a_wrong_key_opens_nothing(client: TestClient, value: str) -> None:
    assert client.get("/", params={"token": value}).status_code == 401
    headers = {b"cookie": f"heedful-8765={value}".encode()}
    assert client.get("/api/studio", headers=headers).status_code == 401


def test_every_route_but_the_static_files_needs_it(workspace: Workspace) -> None:
    app = build_app(workspace, token=KEY)
    paths = [route.path for route in app.routes if route.path != "/static"]
    paths += [f"/api/{page.name}/{call}" for page in PAGES for call in page.calls]
    assert len(paths) > 2 * len(PAGES)
    with TestClient(app, base_url=HOME, follow_redirects=False) as client:
        for path in paths:
            assert client.get(path).status_code == 401, path
            assert client.post(path, json={}).status_code == 401, path


def test_the_address_lets_in_and_leaves_no_key_behind(client: TestClient) -> None:
    first = client.get("/tour", params={"token": KEY, "text": "a b&c", "stop": "3"})
    assert first.status_code == 303
    assert first.headers["location"] == "/tour?text=a+b%26c&stop=3"
    cookie = first.headers["set-cookie"]
    for part in ("heedful-8765=", "HttpOnly", "SameSite=Strict"):
        assert part in cookie
    assert client.get("/tour").status_code == 200
    assert client.post("/api/masks/draw", json={}).status_code == 200


def test_the_way_back_stays_here(client: TestClient) -> None:
    """A path of two slashes would lead to another site."""
    answer = client.get(f"{HOME}//elsewhere.example/x?token={KEY}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/elsewhere.example/x"


def test_the_key_of_another_port_is_not_taken(client: TestClient) -> None:
    headers = {"cookie": f"heedful-9000={KEY}"}
    assert client.get("/api/studio", headers=headers).status_code == 401


def test_a_browser_reads_a_refusal_as_a_page(client: TestClient, workspace: Workspace) -> None:
    shown = client.get("/", headers={"accept": "text/html,*/*"})
    assert shown.status_code == 401
    assert shown.headers["content-type"].startswith("text/html")
    assert "Open the address that heedful studio printed" in shown.text
    foreign = client.get("/", headers={"accept": "text/html", "host": "<b>evil</b>.example"})
    assert foreign.status_code == 403
    assert "<b>evil" not in foreign.text
    assert "&lt;b&gt;evil" in foreign.text


def test_every_refusal_of_a_page_is_a_page(client: TestClient) -> None:
    """Without the key, under a wrong host, from another site, of no page: for a person to read."""
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    asked = {
        "no key": ("/tour", {}, 401),
        "wrong key": ("/tour?token=wrong", {}, 401),
        "wrong host": ("/", {"host": "evil.example"}, 403),
        "other site": ("/", {"origin": "https://evil.example"}, 403),
        "a call": ("/api/studio", {}, 401),
    }
    for name, (path, headers, status) in asked.items():
        answer = client.get(path, headers=browser | headers)
        assert answer.status_code == status, name
        assert answer.headers["content-type"].startswith("text/html"), name
        assert answer.text.count("<p>") >= 3, name  # what, where, remedy
        assert "viewport" in answer.text
        script = client.post(path, headers={"accept": "*/*"} | headers)
        assert set(script.json()) == {"what", "where", "remedy"}, name
    client.get("/", params={"token": KEY})
    unknown = client.get("/nothing", headers=browser)
    assert unknown.status_code == 404
    assert "<main" in unknown.text  # the studio's own frame, whose script says it and lists pages
    assert client.post("/api/nothing", json={}).json()["remedy"]


def test_other_machines_are_told_an_address_they_can_use() -> None:
    with listen("0.0.0.0", 0) as listening:
        port = listening.getsockname()[1]
        assert address_of(listening) == f"http://127.0.0.1:{port}/"
        outside = outside_address()
        if outside is not None:
            assert not outside.startswith(("127.", "0."))
            assert address_of(listening, outside) == f"http://{outside}:{port}/"
