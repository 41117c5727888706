"""Small encoders of text, for whoever asks what they say; and a browser to look with."""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers

from heedful.kernels import library
from heedful.models.checkpoint import save_model
from heedful.models.encoder import EncoderModel
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.text.imported_tokenizer import Frame, ImportedTokenizer
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

from .process_group import Processes
from .summary import not_run
from .thorough import leave_out

# A mistyped path might be a model's name; no test asks the hub of the world.
os.environ["HF_HUB_OFFLINE"] = "1"

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("thorough", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=40)

HEADS = {
    "masked_lm": {"kind": "masked_lm"},
    "sequence": {"kind": "sequence", "labels": ["bad", "so so", "good"]},
    "token": {"kind": "token", "labels": ["NOUN", "VERB", "."]},
    "span": {"kind": "span"},
}
WORDS = ["the", "cat", "dog", "sat", "ran", "on", "mat", "who", "cafe", "a", ".", "?", "##s", "##y"]
MAX_LENGTH = 24
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
    "there is no browser: install Debian's with `apt-get install -y chromium-headless-shell`, or "
    "name a Chromium in HEEDFUL_BROWSER"
)


def wordpiece(mask: str = "[MASK]") -> ImportedTokenizer:
    """A lower-casing wordpiece tokenizer as BERT's."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", mask]
    ids = {piece: id for id, piece in enumerate([*specials, *WORDS])}
    library = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens(specials)
    special = {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "mask": 4}
    return ImportedTokenizer(special, Frame((2,), (3,), (3,)), json.loads(library.to_str()))


def write_encoder(
    directory: Path,
    *heads: str,
    tokenizer: TextTokenizer | None = None,
    spare_rows: int = 2,
    seed: int = 0,
) -> Path:
    """A model directory of an untrained encoder that is sure of what it says."""
    tokenizer = wordpiece() if tokenizer is None else tokenizer
    spec = {
        "width": 16,
        "vocabulary": tokenizer.size + spare_rows,
        "embedding": {
            "scale": False,
            "num_segments": 2,
            "positions": {"kind": "learned", "max_length": MAX_LENGTH},
            "norm": {},
        },
        "encoder": {
            "num_layers": 2,
            "block": {"self_attention": {"num_heads": 4}, "feedforward": {"width": 24}},
        },
        "pooler": True,
        "heads": [HEADS[head] for head in heads or HEADS],
    }
    torch.manual_seed(seed)
    model = EncoderModel(EncoderSpec.parse(spec))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    save_model(model, TokenizerPair(tokenizer, tokenizer), directory)
    return directory


@pytest.fixture
def slowness() -> Callable[[], float]:
    """How many times slower this machine is now than those that limits in seconds are meant for.

    There three million additions in Python take 0.2 s; never less than 1. A processor that is
    shared with others outside this system counts their time as its own.
    """

    def measure() -> float:
        start = time.process_time()
        total = 0
        for number in range(3_000_000):
            total += number * number
        return max(1.0, (time.process_time() - start) / 0.2)

    return measure


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Processes that work together."""
    started = Processes(tmp_path_factory.mktemp("processes"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def make_encoder() -> Callable[..., Path]:
    """Writes a small encoder; see `write_encoder`."""
    return write_encoder


@pytest.fixture(scope="session")
def make_wordpiece() -> Callable[..., ImportedTokenizer]:
    """A small wordpiece tokenizer; see `wordpiece`."""
    return wordpiece


@pytest.fixture(scope="session")
def encoder_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder with every head."""
    return write_encoder(tmp_path_factory.mktemp("encoders") / "all")


def browser_path() -> str | None:
    """A Chromium on this machine; one that has no windows needs half the time for a page."""
    named = os.environ.get("HEEDFUL_BROWSER")
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return named or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests of a process; two would not get along."""
    path = browser_path()
    if path is None:
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=BROWSER_FLAGS)
        yield started
        started.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--slow`: whether the cases in `thorough.toml` are run."""
    told = "whether slow cases are run; where files are named they are, else not"
    parser.addoption("--slow", choices=("run", "skip"), help=told)


def is_quick(config: pytest.Config) -> bool:
    """Whether slow cases are left out; files that are named are run whole."""
    are_files = all(".py" in each for each in config.args)
    return config.getoption("slow") == "skip" or not (config.getoption("slow") or are_files)


def pytest_configure(config: pytest.Config) -> None:
    """Set how many examples a property is tried on; before the files of tests are loaded."""
    hypothesis.settings.load_profile("quick" if is_quick(config) else "thorough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow cases out of a quick run."""
    if is_quick(config):
        leave_out(items)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: browsers, servers and other processes are waited for."""
    return (os.cpu_count() or 1) + 1


FILES_BETWEEN = 20
"""Files of tests after which what has been loaded since is spared, too."""

_files_since = 0


def spare_the_collector() -> None:
    """Keep what stays to the end from the garbage collector: modules and ten thousand tests.

    With all of it a collection takes 0.3 s; code that runs out of memory asks for one each time.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Spare the garbage collector the tests and what they have imported."""
    spare_the_collector()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Spare it what tests have imported since."""
    global _files_since
    if nextitem is not None and nextitem.path != item.path:
        _files_since += 1
        if _files_since % FILES_BETWEEN == 0:
            spare_the_collector()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not run: skips by reason, and kernels and pages this machine cannot test."""
    stats = terminalreporter.stats
    called = [report for report in stats.get("passed", ()) if report.when == "call"]
    lines = list(not_run([*stats.get("skipped", ()), *called], browser_path()))
    terminalreporter.section("what was not run")
    for line in lines:
        terminalreporter.write_line(line)


LEVELS = {"best": 3, "avx512": 2, "avx2": 1}


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    """A set of instructions; afterwards again the one that the environment asks for."""
    reached = library.kernels().heedful_select(LEVELS[request.param])
    for name, number in LEVELS.items():
        if reached == number < LEVELS[request.param]:
            said = f"tests for {request.param} instructions ran those of {name} once more"
            request.node.user_properties.append(("not run", said))
    yield reached
    library.kernels.cache_clear()


@pytest.fixture
def build() -> Callable[..., Translator]:
    """Makes small translators, always of the same weights, whose shape is changed as asked."""

    def built(**changes) -> Translator:
        torch.manual_seed(0)
        sizes = {"width": 64, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4}
        shape = TranslatorShape(**{**sizes, "feedforward": 72, "max_length": 30, **changes})
        model = Translator(translator_spec(shape, 50, 50)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return model

    return built
