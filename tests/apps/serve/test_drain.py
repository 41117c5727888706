"""The end of a listening socket: connections that came are accepted, later ones refused."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable

import pytest

from heedful.apps.serve.drain import empty_queue
from heedful.apps.sockets import listen

from .conftest import ServerProcess
from .test_serve_process import ask


def test_nobody_in_the_queue_is_reset() -> None:
    listening = listen("127.0.0.1", 0)
    address = listening.getsockname()
    early = [socket.create_connection(address) for _ in range(5)]
    accepted: list[socket.socket] = []
    outcome: list[BaseException | None] = []

    def accept() -> None:
        time.sleep(0.1)  # a busy worker
        accepted.extend(listening.accept()[0] for _ in early)

    def come_late() -> None:
        try:
            outcome.append(socket.create_connection(address, timeout=10).close())
        except OSError as error:
            outcome.append(error)

    worker, late = threading.Thread(target=accept), threading.Thread(target=come_late)
    worker.start()
    if sys.platform == "linux":
        threading.Timer(0.05, late.start).start()
    empty_queue(listening)
    worker.join()
    listening.close()
    for client, served in zip(early, accepted, strict=True):
        client.sendall(b"?")
        assert served.recv(1) == b"?"
        served.close()
        client.close()
    if sys.platform == "linux":
        late.join()
        assert isinstance(outcome[0], ConnectionRefusedError)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_late_connections_are_refused_and_never_reset(
    start: Callable[..., ServerProcess], workers: str
) -> None:
    server = start("en-de", "--workers", workers)
    text = "\n".join(f"A man rides bicycle {number} in the snow." for number in range(40))
    results: list[str] = []

    def attempt(text: str) -> None:
        try:
            results.append(ask(server, text) and "answered")
        except OSError as error:
            results.append(type(error).__name__)

    threads = [threading.Thread(target=attempt, args=(text,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    server.process.terminate()
    while server.process.poll() is None:
        threads.append(threading.Thread(target=attempt, args=("A dog runs.",)))
        threads[-1].start()
        time.sleep(0.03)
    for thread in threads:
        thread.join()
    assert server.process.returncode == 0
    assert set(results) == {"answered", "ConnectionRefusedError"}
    assert results.count("answered") >= 3
