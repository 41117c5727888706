"""Small models and runs, a server that shows them, and a browser to look with."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.config import dump_toml
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.translator import Translator
from heedful.studio.server import address_of, listen
from heedful.studio.workspace import Workspace
from heedful.text.pair import train_pair
from heedful.text.spec import TokenizerSpec
from heedful.train.settings import RunSettings

WORDS = ["the cat sat on a mat", "a dog ran", "dogs and cats", "on the mat sat a dog"]
BROWSER_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NO_BROWSER = (
    "there is no browser: install Debian's with `apt-get install -y chromium`, or name a Chromium "
    "in HEEDFUL_BROWSER"
)


def write_translator(directory: Path, positions: str, seed: int) -> Path:
    """An untrained translator of a few words."""
    spec = TokenizerSpec(vocabulary_size=60)
    tokenizers = train_pair(spec, WORDS * 3, WORDS * 3)
    shape = TranslatorShape.parse(
        {
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "num_heads": 2,
            "feedforward": 32,
            "dropout": 0.0,
            "positions": positions,
            "max_length": 48,
        }
    )
    torch.manual_seed(seed)
    model = Translator(shape.expand(tokenizers.source.size, tokenizers.target.size))
    with torch.no_grad():  # first weights give a flat distribution, in which all words are alike
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    save_model(model, tokenizers, directory)
    return directory


def write_run(directory: Path, peak: float, steps: int) -> Path:
    """A run with its settings, its figures and a model."""
    directory.mkdir()
    settings = RunSettings.parse(
        {
            "data": {"train": [{"source": "a.en", "target": "a.de"}]},
            "max_steps": 100,
            "schedule": {"kind": "linear", "warmup_steps": 10, "peak_learning_rate": peak},
            "model": {"width": 16, "num_heads": 2},
        }
    )
    (directory / "config.toml").write_text(dump_toml(settings.plain()), encoding="utf-8")
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        rate = peak * min(step / 10, (100 - step) / 90)
        lines.append({"step": step, "loss": 5 / step, "lr": rate, "tokens_per_second": 1000.0})
        if step % 20 == 0:
            lines.append({"step": step, "event": "validation", "loss": 6 / step, "bleu": step / 2})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(text, encoding="utf-8")
    write_translator(directory / "model", "sinusoidal", seed=round(1e4 * peak))
    return directory


@dataclass(frozen=True)
class Given:
    """What the studio of these tests is started with."""

    learned: Path
    t5: Path
    run: Path
    other: Path

    @property
    def paths(self) -> list[Path]:
        return [self.learned, self.t5, self.run, self.other]


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    """Two models and two runs."""
    root = tmp_path_factory.mktemp("studio")
    return Given(
        write_translator(root / "learned", "learned", seed=4),
        write_translator(root / "t5", "t5", seed=2),
        write_run(root / "run", 0.002, 60),
        write_run(root / "other", 0.001, 40),
    )


@pytest.fixture(scope="session")
def workspace(given: Given) -> Workspace:
    """What the pages may look at."""
    return Workspace(given.paths)


@pytest.fixture(scope="session")
def studio(workspace: Workspace) -> Iterator[str]:
    """The address of a studio that is served, with a slash at the end."""
    import uvicorn

    from heedful.studio.app import build_app

    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(build_app(workspace), log_level="warning", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield address_of(listening)
    server.should_exit = True
    thread.join(10)
    listening.close()


def browser_path() -> str | None:
    """A Chromium on this machine."""
    named = os.environ.get("HEEDFUL_BROWSER")
    names = ("chromium", "chromium-browser", "google-chrome")
    return named or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all pages."""
    path = browser_path()
    if path is None:
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=BROWSER_FLAGS)
        yield started
        started.close()
