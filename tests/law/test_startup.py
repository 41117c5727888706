"""`--help` answers at once: nothing heavy is loaded for it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from heedful.cli.verbs import VERBS

HEAVY = {"torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "babel", "tensorboard"}
HEEDFUL = ("-m", "heedful")
SECONDS = 0.3
LIBRARIES = ("cyclopts.help", "pydantic.fields", "rich.console", "rich.panel", "rich.table")
TIMES = 2
TRIES = 10
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


def test_importing_the_package_loads_no_torch() -> None:
    code = "import heedful, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
