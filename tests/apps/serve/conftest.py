"""Translators, language models, and a server of them in this process or in its own."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from heedful.apps.serve.application import build_app
from heedful.apps.serve.metrics import Metrics
from heedful.apps.serve.scheduler import Scheduler
from heedful.apps.serve.served_models import ServedModels, parse_model
from heedful.apps.serve.server_parts import ServerParts
from heedful.apps.serve.server_settings import GateSettings, Limits
from heedful.apps.serve.service import Service
from heedful.pretrained.catalogue import models_at_hand
from heedful.search.search_settings import SearchSettings

FILES = Path(__file__).parents[3]


def make_parts(
    *words: str, limits: Limits | None = None, most_waiting: int = 200, **changes: Any
) -> ServerParts:
    """The parts of a server of models in this process."""
    metrics = Metrics()
    words_read = [parse_model(word) for word in words]
    models = ServedModels(words_read, observe_prompt=metrics.observe_prompt)
    scheduler = Scheduler(
        threads=1, positions=4096, most_waiting=most_waiting, observe=metrics.observe
    )
    metrics.watch(lambda: scheduler.waiting, lambda: scheduler.computing)
    service = Service(models, scheduler, limits or Limits(), SearchSettings())
    parts = ServerParts(service, metrics, GateSettings())
    return replace(parts, **changes)


@contextmanager
def client_of(parts: ServerParts) -> Iterator[TestClient]:
    """A client of an application in this process."""
    app = build_app(parts)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def parts() -> ServerParts:
    """A translator under three pairs of languages, so that there are pivots, and a writer."""
    path = models_at_hand()["en-de"].path
    return make_parts("en-de", f"de-fr={path}", f"de-en={path}", "english")


@pytest.fixture(scope="session")
def client(parts: ServerParts) -> Iterator[TestClient]:
    """A client of these."""
    with client_of(parts) as client:
        yield client


@dataclass
class ServerProcess:
    """A server of its own, as `heedful serve` starts it."""

    process: subprocess.Popen[bytes]
    address: str
    errors: Path

    def workers(self) -> list[int]:
        """Ids of its worker processes."""
        import psutil

        alive = []
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # it has ended meanwhile
                if "resource_tracker" not in " ".join(child.cmdline()):
                    alive.append(child.pid)
        return alive

    def stop(self) -> int:
        """Stop it as an operator does; return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


def start_server(folder: Path, *words: str, port: str = "0") -> ServerProcess:
    """Start `heedful serve`, on a free port unless one is given, and wait until it answers."""
    errors = folder / "errors.txt"
    environment = {**os.environ, "PYTHONPATH": str(FILES), "OMP_NUM_THREADS": "1"}
    with open(errors, "wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "heedful", "serve", *words, "--port", port, "--json"],
            stdout=subprocess.PIPE,
            stderr=stream,
            env=environment,
            cwd=folder,
        )
    assert process.stdout is not None
    with selectors.DefaultSelector() as waiting:  # knows descriptors above 1023, too
        waiting.register(process.stdout, selectors.EVENT_READ)
        if not waiting.select(180):  # a loaded machine takes over a minute to import torch
            process.kill()
            process.communicate()
            raise AssertionError(errors.read_text())
    line = process.stdout.readline()
    assert line, errors.read_text()
    return ServerProcess(process, json.loads(line)["address"].rstrip("/"), errors)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start servers that are stopped when the test ends."""
    with ExitStack() as stack:

        def started(*words: str, port: str = "0") -> ServerProcess:
            server = start_server(tmp_path, *words, port=port)
            stack.callback(server.stop)
            return server

        yield started


def wait_until(true: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)
