"""Models that are loaded while others serve, where memory is limited and where it is not."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from heedful.apps.serve.served_models import ServedModel, ServedModels, parse_model
from heedful.pretrained.catalogue import models_at_hand

from .conftest import make_parts

PATH = models_at_hand()["en-de"].path


def test_one_thread_waits_for_a_model_however_many_requests_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = make_parts("en-de").service
    calls, gate, loaded = [], threading.Event(), object()

    def slow(name: str) -> object:
        calls.append(name)
        gate.wait(10)
        return loaded

    monkeypatch.setattr(service.models, "get", slow)

    async def ask() -> None:
        requests = [asyncio.ensure_future(service._pipeline("en-de")) for _ in range(60)]
        await asyncio.sleep(0.05)
        requests[0].cancel()  # a client that leaves takes nothing from the others
        gate.set()
        assert await asyncio.gather(*requests[1:]) == [loaded] * 59

    with ThreadPoolExecutor(1) as threads:  # a browser's loop may run in this one
        threads.submit(asyncio.run, ask()).result()
    assert calls == ["en-de"]


def test_models_loaded_at_once_keep_to_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"{name}={PATH}" for name in ("en-de", "de-fr", "fr-it")]
    models = ServedModels([parse_model(word) for word in words])
    models.most_bytes = int(1.5 * models.find("en-de").size)
    most = []

    def load(self: ServedModels, model: ServedModel) -> Any:
        time.sleep(0.02)
        most.append(1 + sum(m.pipeline is not None for m in self))
        return object()

    monkeypatch.setattr(ServedModels, "_load", load)
    threads = [threading.Thread(target=models.get, args=(name,)) for name in models.by_name]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert sum(m.pipeline is not None for m in models) == 1
