"""Clients: whom a proxy asks for, what each may ask in a minute, and whom a file of keys admits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from starlette.requests import Request

from heedful.apps.serve.clients import Clients, Rates, client_network, count_characters
from heedful.apps.serve.exchange import RefusedRequest
from heedful.apps.serve.file_store import FileStore
from heedful.apps.serve.gate import ForwardedHeaders
from heedful.apps.serve.keys import Keys, add_key
from heedful.apps.serve.server_settings import Allowance, GateSettings
from heedful.errors import ConfigError

from .conftest import client_of, make_parts

DOG = {"q": "A dog runs.", "source": "en", "target": "de"}


def seen_by(client: str, proxies: tuple[str, ...], **headers: str) -> tuple[str, list[Any]]:
    """The address and the forwarded headers that an application sees."""
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "client": (client, 1), "headers": pairs, "scheme": "http"}
    # In a thread of its own: a browser of another test may run a loop in this one.
    with start_blocking_portal() as portal:
        portal.call(ForwardedHeaders(app, proxies), scope, None, None)  # type: ignore[arg-type]
    (seen,) = scopes
    return seen["client"][0], [n for n, _ in seen["headers"] if n.startswith(b"x-forwarded")]


def test_forwarded_headers_are_believed_of_named_proxies_alone() -> None:
    lie = {"x_forwarded_for": "1.2.3.4", "x_forwarded_host": "evil.example"}
    for proxies in ((), ("10.0.0.0/8",), ("127.0.0.2",)):
        assert seen_by("127.0.0.1", proxies, **lie) == ("127.0.0.1", [])
    for proxies in (("127.0.0.1",), ("127.0.0.0/8",), ("*",)):
        address, names = seen_by("127.0.0.1", proxies, **lie)
        assert (address, len(names)) == ("1.2.3.4", 2)
    # What a client itself wrote stands before what the proxy added.
    chain = {"x_forwarded_for": "9.9.9.9, 1.2.3.4"}
    assert (seen_by("127.0.0.1", ("127.0.0.1",), **chain))[0] == "1.2.3.4"


def test_the_address_of_a_file_is_not_a_stranger_s(tmp_path: Path) -> None:
    for proxies, host in (((), "127.0.0.1"), (("*",), "mt.example")):
        gate = GateSettings(proxies=proxies)
        with client_of(make_parts("en-de", gate=gate, files=FileStore(tmp_path))) as client:
            values = {"source": "en", "target": "de"}
            answer = client.post(
                "/translate_file",
                files={"file": ("a.txt", b"12")},
                data=values,
                headers={"x-forwarded-host": "mt.example"},
            )
            assert answer.json()["translatedFileUrl"].startswith(f"http://{host}/download_file/")


def test_a_client_has_its_requests_of_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("heedful.apps.serve.clients.time.time", lambda: now[0])
    usual, own = Allowance(requests=3, characters=100), {"alice": Allowance(characters=1000)}
    rates, others = (Rates(tmp_path / "rates.db", usual, own) for _ in range(2))
    rates.charge("bob", 10)
    others.charge("bob", 10)  # another worker
    rates.charge("bob", 10)
    with pytest.raises(RefusedRequest, match="3 requests") as refused:
        others.charge("bob", 10)
    assert refused.value.status == 429
    assert refused.value.retry_after == 21
    now[0] += 21
    others.charge("bob", 10)
    rates.charge("carol", 60)
    with pytest.raises(RefusedRequest, match="100 characters"):
        rates.charge("carol", 60)
    with pytest.raises(RefusedRequest, match="101 characters") as refused:
        rates.charge("dave", 101)  # which no waiting would allow
    assert refused.value.status == 400
    rates.charge("alice", 900)


def test_a_slow_down_is_said_as_each_interface_does(tmp_path: Path) -> None:
    rates = Rates(tmp_path / "rates.db", Allowance(requests=1))
    with client_of(make_parts("en-de", clients=Clients(rates=rates))) as client:
        assert client.post("/translate", json=DOG).status_code == 200
        answer = client.post("/translate", json=DOG)
        assert answer.status_code == 429
        assert answer.json()["error"] == "Slowdown: at most 1 requests a minute"
        assert int(answer.headers["retry-after"]) > 0
        chat = {"model": "en-de", "messages": [{"role": "user", "content": "A dog runs."}]}
        error = client.post("/v1/chat/completions", json=chat)
        assert (error.status_code, error.json()["error"]["code"]) == (429, "rate")
        assert client.get("/languages").status_code == 200


def test_characters_are_those_of_all_texts_and_files() -> None:
    class File:
        size = 7

    values = {
        "q": ["abc", "d"],
        "file": File(),
        "messages": [{"content": [{"text": "ef"}]}],
        "n": 2,
    }
    assert count_characters(values) == 13
    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]
    assert count_characters(deep) == 1
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff") != "2001:db8::1"
    assert client_network("192.0.2.1") == "192.0.2.1"
    assert client_network("testclient") == "testclient"


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_of_keys_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "keys.txt"
    add_key(file, "alice", "secret")
    file.chmod(0o644)
    assert Keys.read(file).owner("secret") == "alice"
    file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod go-w"):
        Keys.read(file)


def test_a_key_may_have_an_allowance_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    add_key(file, "alice", "1")
    add_key(file, "bob", "2")
    lines = file.read_text().splitlines()
    file.write_text(f"{lines[0]} requests=600 characters=5000\n{lines[1]} characters=7\n")
    keys = Keys.read(file)
    assert keys.allowances == {"alice": Allowance(600, 5000), "bob": Allowance(None, 7)}
    clients = Clients.open(file, tmp_path / "rates.db", Allowance(requests=1))
    scope = {"type": "http", "method": "POST", "headers": [], "client": ("::1", 1), "state": {}}
    for _ in range(5):
        clients.admit(Request(scope), {"api_key": "1"}, 403)
    clients.admit(Request(scope), {"api_key": "2"}, 403)
    with pytest.raises(RefusedRequest, match="1 requests"):
        clients.admit(Request(scope), {"api_key": "2"}, 403)
    file.write_text(f"{lines[0]} requests=0\n")
    with pytest.raises(ConfigError, match="line 1"):
        Keys.read(file)
