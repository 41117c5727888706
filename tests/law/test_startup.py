"""`--help` answers at once: nothing heavy is loaded for it."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from heedful.cli.verbs import VERBS

HEAVY = {"torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "babel", "tensorboard"}
SECONDS = 0.5
TRIES = 10


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


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["--version"], ["nonsense"]])
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


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["translate", "--help"]])
def test_help_is_quick(words: list[str], slowness: Callable[[], float]) -> None:
    """Processor time, and the best of some: other work on the machine is not Heedful's."""
    assert any(processor_seconds(*words) < SECONDS * slowness() for _ in range(TRIES))


def processor_seconds(*words: str) -> float:
    command = [sys.executable, "-m", "heedful", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_importing_the_package_loads_no_torch() -> None:
    code = "import heedful, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
