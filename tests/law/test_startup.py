"""`--help` answers at once: nothing heavy is loaded for it."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heedful.cli.main import VERBS
from heedful.kernels.library import kernels
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

from .source import ROOT

HEAVY = {"torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "babel", "tensorboard"}
HEEDFUL = ("-m", "heedful")
SECONDS = 0.3
LIBRARIES = ("cyclopts.help", "pydantic.fields", "rich.console", "rich.panel", "rich.table")
MODULES_OF_A_SENTENCE = 27
TIMES = 2
TRIES = 30
# What was compiled once is kept, as it is for a person.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", "-m", "heedful", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def loaded_by(*words: str) -> set[str]:
    done = run(*words)
    assert "import time:" in done.stderr
    return {
        line.rpartition("|")[2].strip().split(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["nonsense"]])
def test_nothing_heavy_is_imported(words: list[str]) -> None:
    assert not loaded_by(*words) & HEAVY


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["--version"], ["nonsense"], ["--foo"]])
def test_what_takes_words_apart_is_not_loaded_without_a_verb(words: list[str]) -> None:
    assert not loaded_by(*words) & {"cyclopts", "markdown_it", "pydantic"}


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_without_a_verb_names_all_of_them(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 0
    for verb, summary in VERBS.items():
        assert f" {verb} " in done.stdout
        assert summary.split()[0] in done.stdout
    assert "[MASK]" in done.stdout
    assert "--version" in done.stdout


def test_help_is_quick(slowness: Callable[[], float]) -> None:
    """Processor time, and the best of some: other work on the machine is not Heedful's."""
    assert any(processor_seconds(*HEEDFUL, "--help") < SECONDS * slowness() for _ in range(TRIES))


@pytest.mark.parametrize("verb", ["train", "translate"])
def test_help_of_a_verb_is_quick(verb: str) -> None:
    """Beside loading the libraries that it stands on, which no machine does equally fast."""
    libraries, ours = [], []
    for _ in range(TRIES):
        libraries.append(processor_seconds("-c", f"import {', '.join(LIBRARIES)}"))
        ours.append(processor_seconds(*HEEDFUL, verb, "--help"))
        if min(ours) < TIMES * min(libraries):
            return
    raise AssertionError(f"{min(ours):.2f} s beside {min(libraries):.2f}")


def processor_seconds(*words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, env=ENVIRONMENT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


TRANSLATE = """
import sys
from heedful.cli.main import main
assert main(["translate", sys.argv[1], "--max-length", "4", "--device", "cpu"]) == 0
assert "torch" not in sys.modules
modules = (name for name in sys.modules if name.split(".")[0] == "heedful")
# Packages without code of their own count for nothing.
print(*sorted(n for n in modules if not hasattr(sys.modules[n], "__path__")), file=sys.stderr)
"""


@pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")
def test_one_sentence_touches_few_modules(tmp_path: Path) -> None:
    pair = train_pair(TokenizerSpec(kind="characters"), ["abcdefgh"] * 3, ["abcdefgh"] * 3)
    shape = TranslatorShape(
        width=32, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=32, max_length=40
    )
    model = Translator(translator_spec(shape, pair.source.size, pair.target.size))
    save_model(model, pair, tmp_path / "model")
    command = [sys.executable, "-c", TRANSLATE, str(tmp_path / "model")]
    result = subprocess.run(command, input="abc\n", capture_output=True, text=True, check=True)
    modules = result.stderr.splitlines()[-1].split()
    assert len(modules) <= MODULES_OF_A_SENTENCE, modules
    page = (ROOT / "docs/design/architecture.md").read_text(encoding="utf-8")
    section = page.split("## One sentence")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?:`(\S+)`)? ?\| (`.*`) \|", section, re.MULTILINE)
    named = {
        ".".join(filter(None, ["heedful", folder, module]))
        for folder, cell in rows
        for module in re.findall(r"`(\S+)`", cell)
    }
    assert named == set(modules)


def test_importing_the_package_loads_no_torch() -> None:
    code = "import heedful, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_training_that_is_not_compiled_loads_no_compiler(tmp_path: Path) -> None:
    """PyTorch loads its compiler for an optimizer, and its parallelism for the compiler: a second.

    Nor does one process load what several need.
    """
    for name in ("a", "b"):
        (tmp_path / name).write_text("a b c\nb c a\n")
    code = """
import sys
from heedful.cli.main import main
assert main(sys.argv[1:]) == 0
assert "torch" in sys.modules
print([name for name in ("torch._dynamo", "torch.distributed.tensor") if name in sys.modules])
"""
    words = ["train", "run", "--preset", "tiny", "--train", "a", "b", "--max-steps", "1"]
    words += ["--compile", "off", "--precision", "fp32", "--tokenizer.vocabulary-size", "20"]
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
