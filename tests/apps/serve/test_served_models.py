"""Models that are loaded while others serve, where memory is limited and where it is not."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heedful.apps.serve.served_models import ServedModel, ServedModels, parse_model
from heedful.apps.serve.server_settings import ModelOptions
from heedful.interop import model_loading
from heedful.interop.model_loading import load_any
from heedful.pipelines.translation import TranslationPipeline
from heedful.pretrained.catalogue import models_at_hand
from heedful.text.tokenizer_pair import TokenizerPair

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
    models.options = ModelOptions(most_bytes=int(1.5 * models.find("en-de").size))
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


def test_texts_are_split_as_the_server_says_and_by_the_rules_of_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(path: Path) -> Any:  # a model that does not say what it has learned
        network, pair = load_any(path)
        assert isinstance(pair, TokenizerPair)
        return network, replace(pair, reading=None)

    monkeypatch.setattr(model_loading, "load_any", silent)
    for split in ("lines", "none"):
        models = ServedModels([parse_model(f"pt-BR-en={PATH}")], ModelOptions(split=split))
        pipeline = models.get("pt-BR-en")
        assert isinstance(pipeline, TranslationPipeline)
        assert pipeline.tokenizers.reads.split == split
        assert pipeline.tokenizers.reads.language == "pt"


def test_a_server_that_splits_nothing_translates_whole_texts() -> None:
    service = make_parts("en-de").service
    service.models.options = ModelOptions(split="none")
    text = "A dog runs.\nA man sleeps.\n"
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(asyncio.run, service.translate([text], ["en-de"]))
    (translated,) = run.result()
    assert len(translated.lines) == 1
    assert translated.text.endswith("\n")
