"""Small models and runs, a server that shows them, and a browser to look with."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.apps.sockets import address_of, listen
from heedful.apps.studio.workspace import Workspace
from heedful.config import dump_toml
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.pretrained.catalogue import models_at_hand
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair
from heedful.train.run_settings import RunSettings

WORDS = ["the cat sat on a mat", "a dog ran", "dogs and cats", "on the mat sat a dog"]
DESK = {"width": 1280, "height": 900}
PHONE = {"width": 375, "height": 760}
# Chromium logs every answer that is no success; a page that shows the error is as it should be.
EXPECTED = re.compile(r"Failed to load resource: the server responded with a status of 4(00|13)")


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
    model = Translator(translator_spec(shape, tokenizers.source.size, tokenizers.target.size))
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


@contextmanager
def serving(workspace: Workspace) -> Iterator[str]:
    """Serve a studio; its address, with a slash at the end."""
    import uvicorn

    from heedful.apps.studio.app import build_app

    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(build_app(workspace), log_level="warning", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield address_of(listening)
    server.should_exit = True
    thread.join(10)
    listening.close()


@pytest.fixture(scope="session")
def studio(workspace: Workspace) -> Iterator[str]:
    """The address of a studio with the two models and two runs."""
    with serving(workspace) as address:
        yield address


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[Sequence[Path]], str]]:
    """Starts a studio with other models, for the tests of a file, and gives its address."""
    with ExitStack() as stack:
        yield lambda paths: stack.enter_context(serving(Workspace(paths)))


class Visit:
    """One page in a window of its own, and what it said and asked for."""

    def __init__(self, browser: Any, studio: str) -> None:
        self.studio = studio
        self.context = browser.new_context(viewport=DESK, reduced_motion="reduce")
        self.page = self.context.new_page()
        self.page.set_default_timeout(40_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning") and not EXPECTED.match(message.text):
            self.complaints.append(message.text)

    def open(self, path: str) -> Any:
        self.page.goto(self.studio + path)
        self.idle()
        return self.page

    def idle(self) -> None:
        """Wait until nothing is being drawn."""
        self.until("!document.querySelector('[aria-busy=true]') && document.querySelector('h1')")

    def until(self, condition: str) -> None:
        """Wait until an expression holds; as a function, for the pages forbid evaluating text."""
        self.page.wait_for_function(f"() => {condition}")

    def fact(self, name: str) -> str:
        return str(self.page.locator(f"[data-fact='{name}']").inner_text())

    def address(self) -> str:
        return str(self.page.evaluate("location.search"))

    @staticmethod
    def shown(value: float, digits: int = 4) -> str:
        """A number as the pages write it."""
        text = f"{float(f'{value:.{digits - 1}e}'):,.10f}".rstrip("0").rstrip(".")
        return text.replace("-", "−")

    @staticmethod
    def numbers_of(figure: Any, row: int) -> list[str]:
        """A row of the table below a figure, which is filled once it is opened, and stays open."""
        if not figure.locator("details[open]").count():
            figure.locator("summary").click()
        cells = figure.locator("tbody tr").nth(row)
        cells.wait_for()
        return list(cells.locator("td").all_inner_texts())

    def violations(self, axe: str, rules: list[str] | None = None) -> list[str]:
        """What axe-core finds on the page."""
        self.page.evaluate(axe)
        options: dict[str, Any] = {"resultTypes": ["violations"]}  # the others take twice as long
        if rules:
            options["runOnly"] = {"type": "rule", "values": rules}
        found = self.page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{each['id']}: {node['target']} {node['failureSummary']}"
            for each in found["violations"]
            for node in each["nodes"]
        ]

    def check_everyone_can_use_it(self, axe: str) -> None:
        """No finding of axe-core, light and dark; no sideways scrolling on a phone."""
        assert self.violations(axe) == []
        self.page.emulate_media(color_scheme="dark")
        self.until("document.documentElement.dataset.theme === 'dark'")
        assert self.violations(axe, ["color-contrast"]) == []
        self.page.set_viewport_size(PHONE)
        self.idle()
        assert self.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]

    def close(self) -> None:
        """Nothing was wrong, and nothing was asked of another machine."""
        self.context.close()
        assert self.complaints == []
        assert self.requests
        elsewhere = [url for url in self.requests if not url.startswith((self.studio, "data:"))]
        assert elsewhere == []


@pytest.fixture
def visit(browser: Any, studio: str) -> Iterator[Visit]:
    """A window on the studio of all tests."""
    made = Visit(browser, studio)
    yield made
    made.close()


@pytest.fixture
def visit_at(browser: Any) -> Iterator[Callable[[str], Visit]]:
    """Opens a window on a studio of one's own, at the address that `serve` gave."""
    made: list[Visit] = []

    def at(address: str) -> Visit:
        made.append(Visit(browser, address))
        return made[-1]

    yield at
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def home(serve: Callable[[Sequence[Path]], str]) -> str:
    """The address of a studio with the models at hand."""
    return serve([each.path for each in models_at_hand().values()])


@pytest.fixture
def sight(visit_at: Callable[[str], Visit], home: str) -> Visit:
    """A window on it."""
    return visit_at(home)


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core, as its package carries it."""
    found = resources.files("axe_playwright_python") / "axe.min.js"
    return found.read_text(encoding="utf-8")
