"""`heedful translate` loads PyTorch when it is needed, and not before."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.cli.flags import (
    CheckFlags,
    ConsistencyFlags,
    GlossaryFlags,
    Running,
    TranslationRequest,
)
from heedful.cli.main import main
from heedful.cli.translate import LazyTranslator
from heedful.kernels.library import kernels
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.search.search_settings import SearchSettings
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

pytestmark = pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")

SHORT = ["--device", "cpu", "--max-length", "4"]
TOLD = """
import ctypes, sys
from heedful.cli.main import main
status = main(sys.argv[1:])
had = "torch" in sys.modules
threads = ctypes.CDLL(None).omp_get_max_threads()
import torch
with open("/proc/self/maps") as file:
    files = {line.split()[-1] for line in file if "libgomp" in line}
print(had, threads, len(files), torch.get_num_threads(), file=sys.stderr)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pair = train_pair(TokenizerSpec(kind="characters"), ["abcdefgh"] * 3, ["abcdefgh"] * 3)
    torch.manual_seed(0)
    shape = TranslatorShape(
        width=32, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=32, max_length=40
    )
    directory = tmp_path_factory.mktemp("lean") / "model"
    save_model(
        Translator(translator_spec(shape, pair.source.size, pair.target.size)), pair, directory
    )
    return directory


def run_alone(*words: object, said: str) -> tuple[str, list[str]]:
    """What a process of its own writes, and what it says of PyTorch."""
    done = subprocess.run(
        [sys.executable, "-c", TOLD, "translate", *map(str, words)],
        input=said,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    return done.stdout, done.stderr.splitlines()[-1].split()


def expected(model: Path, lines: list[str], **options: Any) -> str:
    found = heedful.load(model, device="cpu").translate(lines, max_length=4, **options)
    return "".join(f"{translation}\n" for translation in found)


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_a_sentence_needs_no_pytorch_which_may_be_loaded_afterwards(model: Path) -> None:
    out, (had_torch, threads, files, torch_threads) = run_alone(model, *SHORT, said="abc\n\nfeed\n")
    assert out == expected(model, ["abc", "", "feed"])
    assert (had_torch, threads, files, torch_threads) == ("False", "2", "1", "2")


@pytest.mark.parametrize(
    "words",
    [
        ["--alignment"],
        ["--check"],
        ["--prefix", "a"],
        ["--no-repeat-ngram", "2"],
        ["--precision", "bf16"],
    ],
    ids=lambda words: words[0],
)
def test_what_needs_pytorch_has_it(model: Path, words: list[str]) -> None:
    out, (had_torch, *_) = run_alone(model, *SHORT, *words, said="abc\n")
    assert had_torch == "True"
    assert out.count("\n") == 1


def asked(model: Path, **changes: Any) -> TranslationRequest:
    plain: dict[str, Any] = {
        "running": Running(device="cpu"),
        "alignment": False,
        "checks": CheckFlags(),
        "prefixes": False,
        "shortlist": False,
    }
    return TranslationRequest(model, SearchSettings(beam=2, max_length=4), **{**plain, **changes})


def test_nothing_but_translations_is_plain(model: Path) -> None:
    assert asked(model).is_plain
    for name, value in {
        "alignment": True,
        "checks": CheckFlags(check=True),
        "consistency": ConsistencyFlags(capitals=True),
        "terms": GlossaryFlags(glossary=model / "terms.tsv"),
        "prefixes": True,
        "shortlist": Path("list"),
        "running": Running(batch_size=1),
    }.items():
        assert not asked(model, **{name: value}).is_plain
    assert not asked(model, running=Running(ensemble=(model,))).is_plain
    assert not asked(model, running=Running(batch_tokens="auto")).is_plain
    assert asked(model, running=Running(device="cpu", precision="int8")).is_plain


def test_many_lines_load_pytorch_once_and_few_before_and_after_do_not(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []
    load = Running.load
    monkeypatch.setattr(
        Running, "load", lambda self, path, **rest: loaded.append(path) or load(self, path, **rest)
    )
    told: list[str] = []
    translators = LazyTranslator(asked(model))
    lines = ["abc", "h" * 50, *["def"] * 20, "a" * 50]

    def translate(start: int, stop: int) -> list[str]:
        texts = lines[start:stop]
        return translators.choose(texts)(texts, first_line=start + 1, warn=told.append)

    found = translate(0, 2)
    before = translators.load_seconds
    assert not loaded
    found += translate(2, 22)
    assert translators.load_seconds > before > 0.0
    found += translate(22, 23)
    assert loaded == [model]
    whole = heedful.load(model, device="cpu").translate(lines, beam=2, max_length=4)
    assert found == whole
    assert any("line 2:" in warning for warning in told)
    assert any("line 23:" in warning for warning in told)


def test_a_missing_model_is_missed_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unread(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise AssertionError("read")

        read1 = read

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Unread()))
    assert main(["translate", str(tmp_path / "none")]) == 2
    assert re.search("No such model directory", capsys.readouterr().err)
