"""A server as operators see it: signals, dead workers, stalled clients, mistakes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from heedful.apps.serve import connection
from heedful.pretrained.catalogue import models_at_hand
from tests.speech import speech_model

from .conftest import FILES, ServerProcess, wait_until

Start = Callable[..., ServerProcess]


def ask(server: ServerProcess, text: str = "A dog runs.") -> Any:
    """Translate on a connection of its own."""
    host = server.address.removeprefix("http://")
    client = http.client.HTTPConnection(host, timeout=30)
    body = json.dumps({"q": text, "source": "en", "target": "de"})
    client.request("POST", "/translate", body, {"content-type": "application/json"})
    answer = client.getresponse()
    content = json.loads(answer.read())
    client.close()
    assert answer.status == 200, content
    return content["translatedText"]


class Clients:
    """Clients that ask one request after the other, each on a connection that stays open."""

    def __init__(self, server: ServerProcess, count: int) -> None:
        self.server = server
        self.right = 0
        self.problems: list[str] = []
        self.stopped = threading.Event()
        self.expected = ask(server)
        self.threads = [threading.Thread(target=self._run) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _run(self) -> None:
        host = self.server.address.removeprefix("http://")
        body = json.dumps({"q": "A dog runs.", "source": "en", "target": "de"})
        client: http.client.HTTPConnection | None = None
        while not self.stopped.is_set():
            try:
                if client is None:
                    client = http.client.HTTPConnection(host, timeout=30)
                client.request("POST", "/translate", body, {"content-type": "application/json"})
                answer = client.getresponse()
                content = json.loads(answer.read())
                if content != {"translatedText": self.expected}:
                    self.problems.append(str(content))
                self.right += 1
                if answer.getheader("connection") != "close":
                    continue
            except OSError as error:
                self.problems.append(repr(error))
            client.close()
            client = None
        if client is not None:
            client.close()

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(30)


def test_models_are_renewed_without_losing_a_request(start: Start) -> None:
    server = start("en-de")
    (before,) = server.workers()
    with Clients(server, 4) as clients:
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.workers() and before not in server.workers(), 60)
        done = clients.right
        wait_until(lambda: clients.right > done + 20)
    assert clients.problems == []


def test_what_was_asked_is_answered_before_it_stops(start: Start) -> None:
    server = start("en-de")
    answers: list[str] = []
    texts = [" ".join(["A man rides a bicycle."] * 12)] * 12
    threads = [threading.Thread(target=lambda t=t: answers.append(ask(server, t))) for t in texts]
    for thread in threads:
        thread.start()
    time.sleep(0.15)
    server.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(60)
    assert len(answers) == len(texts)
    assert len(set(answers)) == 1
    assert server.process.wait(30) == 0


def test_a_dead_worker_is_replaced_and_others_serve_on(start: Start) -> None:
    server = start("en-de", "--workers", "2")
    expected = ask(server)
    victim, survivor = server.workers()
    shared = weights_of(survivor)
    assert shared
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: victim not in server.workers() and len(server.workers()) == 2, 60)
    wait_until(lambda: all(shared == weights_of(w) for w in server.workers()), 60)
    for _ in range(10):
        assert ask(server) == expected
    # Of both workers together, and of the dead one; a batch is counted once it is answered.
    wait_until(lambda: counted_texts(server) >= 11)


def test_a_worker_ends_with_its_parent(start: Start) -> None:
    import psutil

    server = start("en-de")
    (worker,) = server.workers()
    server.process.kill()
    wait_until(lambda: not psutil.pid_exists(worker))


def test_connections_that_come_at_once_spread_over_the_workers(start: Start) -> None:
    import psutil

    server = start("en-de", "--workers", "2")
    host, port = server.address.removeprefix("http://").split(":")
    clients = [socket.create_connection((host, int(port)), timeout=30) for _ in range(64)]

    def taken() -> list[int]:
        found = (psutil.Process(worker).net_connections("tcp") for worker in server.workers())
        return [sum(each.status == psutil.CONN_ESTABLISHED for each in own) for own in found]

    wait_until(lambda: sum(taken()) == len(clients))
    assert min(taken()) >= 8
    for client in clients:
        client.close()


def weights_of(worker: int) -> set[tuple[str, str]]:
    """Weights in files that a worker maps: inodes and paths."""
    lines = [line.split() for line in Path(f"/proc/{worker}/maps").read_text().splitlines()]
    return {(line[4], line[5]) for line in lines if len(line) > 5 and "/weights/" in line[5]}


def counted_texts(server: ServerProcess) -> float:
    """The number of texts that the metrics say were computed."""
    client = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=30)
    client.request("GET", "/metrics")
    lines = client.getresponse().read().decode().splitlines()
    client.close()
    return next(float(line.split()[-1]) for line in lines if line.startswith("heedful_texts_total"))


def test_stalled_clients_do_not_stop_others_and_are_cut_off(start: Start) -> None:
    server = start("en-de")
    host, port = server.address.removeprefix("http://").split(":")
    stalled: list[socket.socket] = []
    for head in (b"", b"POST /translate HT", b"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\n"):
        for _ in range(20):
            client = socket.create_connection((host, int(port)))
            client.sendall(head)
            stalled.append(client)
    assert ask(server)
    # A slow loris sends a byte now and then: its time is not prolonged by that.
    end = time.monotonic() + connection.HEAD_SECONDS + 5
    while stalled and time.monotonic() < end:
        for client in list(stalled):
            try:
                client.sendall(b"x")
                client.settimeout(0.01)
                is_open = client.recv(1000) != b""
            except TimeoutError:
                is_open = True
            except OSError:
                is_open = False
            if not is_open:
                client.close()
                stalled.remove(client)
        time.sleep(0.2)
    assert stalled == []
    assert ask(server)


def test_a_client_that_leaves_is_not_waited_for(start: Start) -> None:
    server = start("en-de")
    host, port = server.address.removeprefix("http://").split(":")
    body = json.dumps(
        {"q": ["A man rides a bicycle in the snow."] * 800, "source": "en", "target": "de"}
    ).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(20):
        client = socket.create_connection((host, int(port)))
        client.sendall(head.encode() + body)
        time.sleep(0.02)
        client.close()
    begin = time.monotonic()
    assert ask(server)
    assert time.monotonic() - begin < 5  # 16,000 sentences would take longer


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "No model given"),
        (["no-such-model"], 2, "No such model"),
        (["en-de", "en-de"], 2, "Two models have the name"),
        (["en-de", "--host", "0.0.0.0"], 2, "--without-keys"),
        (["en-de", "--keys", "missing.txt"], 2, "missing.txt"),
        (["en-de", "--access-log", "missing/log"], 2, "cannot be written"),
        (["en-de", "--workers", "0"], 2, "--workers"),
        (["en-de", "--host", "192.0.2.1", "--without-keys"], 2, "Cannot listen"),
        (["en-de", "--beam", "0"], 2, "beam"),
        (["en-de", "--forwarded-from", "proxy.example"], 2, "no address or network"),
        (["en-de", "--requests-per-minute", "0"], 2, "--requests-per-minute"),
        (["en-de", "--suggestions", "missing/file"], 2, "cannot be written"),
        (["broken"], 2, "This is no model of this Heedful"),
        # Only the worker that loads a model finds these.
        (["weightless"], 2, "could not start"),
        (["whisper"], 2, "its kind is 'transcriber'"),
    ],
)
def test_mistakes_are_said_in_words(
    tmp_path: Path, words: Sequence[str], status: int, message: str
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    speech_model(tmp_path / "whisper")
    (tmp_path / "weightless").mkdir()
    whole = models_at_hand()["en-de"].path / "config.json"
    (tmp_path / "weightless" / "config.json").write_bytes(whole.read_bytes())
    environment = {**os.environ, "PYTHONPATH": str(FILES)}
    done = subprocess.run(
        [sys.executable, "-m", "heedful", "serve", *words, "--port", "0"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_is_made_and_printed_once(tmp_path: Path) -> None:
    from heedful.apps.serve.keys import Keys

    environment = {**os.environ, "PYTHONPATH": str(FILES)}
    words = ["serve", "--new-key", "alice", "--keys", "keys.txt"]
    done = subprocess.run(
        [sys.executable, "-m", "heedful", *words],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    key = done.stdout.strip()
    assert Keys.read(tmp_path / "keys.txt").owner(key) == "alice"
    assert key not in (tmp_path / "keys.txt").read_text()


def test_a_worker_warns_in_a_sentence_and_once(start: Start) -> None:
    server = start("english")
    body = json.dumps({"model": "english", "prompt": "word " * 600, "max_tokens": 1})
    client = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=60)
    for _ in range(2):
        client.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = client.getresponse()
        answer.read()
        assert answer.status == 200  # nothing is refused, as rotary positions have no end
    client.close()
    server.stop()
    lines = server.errors.read_text().splitlines()
    (told,) = (line for line in lines if "at most 512 tokens" in line)
    assert ".py:" not in told
