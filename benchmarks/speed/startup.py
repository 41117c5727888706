"""How long Heedful takes to start: its help, and one sentence translated by a cold process.

    python benchmarks/speed/startup.py        about a minute

Wall-clock seconds of whole processes, on files that the system has read before. The model is a
`tiny` one with random weights and a vocabulary made here; its translation is forced to 16 tokens.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import string
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import Row, finish, new_parser, parse, say
from turns import Turn, alternate, summary

SENTENCE = "A man rides a bicycle through the rain.\n"
LIMITS = {"heedful --help": 0.3, "heedful translate, one sentence": 2.0}
"""Seconds that are allowed."""


def seconds_of(command: list[str], said: str = "", threads: int = 2) -> float:
    """A process from start to end."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    began = time.perf_counter()
    done = subprocess.run(
        command, input=said, capture_output=True, text=True, check=False, env=environment
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
    return seconds


def small_model(folder: Path) -> Path:
    """A model of the preset `tiny` for 10,000 pieces of words that mean nothing."""
    import torch

    from heedful.models.build import build_model
    from heedful.models.checkpoint import save_model
    from heedful.models.shape_to_spec import translator_spec
    from heedful.text.tokenizer_training import train_pair
    from heedful.train.run_config import resolve_settings

    data: dict[str, Any] = {"train": [{"file": "unused.tsv"}]}
    settings = resolve_settings("tiny", None, {"data": data})
    draw = random.Random(1)
    words = ["".join(draw.choices(string.ascii_lowercase, k=8)) for _ in range(8000)]
    texts = [SENTENCE.strip(), *(" ".join(words[i : i + 8]) for i in range(0, len(words), 8))]
    pair = train_pair(settings.tokenizer, texts, texts)
    torch.manual_seed(1)
    spec = translator_spec(settings.model, pair.source.size, pair.target.size)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    save_model(build_model(spec), pair, folder)
    return folder


def main() -> None:
    """Start everything some times, write what came out."""
    parser = new_parser(__doc__)
    parser.add_argument("--model", type=Path, help="a translator to start with, instead")
    arguments = parse(parser)
    finish(arguments, "speed-startup", rows_of(arguments), {})


def rows_of(arguments: argparse.Namespace) -> list[Row]:
    """The lines of the table."""
    model = arguments.model or small_model(arguments.work / "startup" / "model")
    command = [sys.executable, "-m", "heedful"]
    forced = ["--min-length", "16", "--max-length", "16"]
    words: dict[str, list[str]] = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "heedful --help": [*command, "--help"],
        "heedful train --help": [*command, "train", "--help"],
        "python -c 'import torch'": [sys.executable, "-c", "import torch"],
        "heedful translate, one sentence": [*command, "translate", str(model), *forced],
    }
    turns: dict[str, Turn] = {
        name: lambda _, line=line: seconds_of(
            line, SENTENCE if "translate" in line else "", arguments.threads
        )
        for name, line in words.items()
    }
    for turn in turns.values():
        turn(0)  # compiles and brings files into memory
    figures = alternate(turns, arguments.rounds, say)
    return [
        {"work": name, "unit": "s", "ours": summary(runs), "least": LIMITS.get(name)}
        for name, runs in figures.items()
    ]


if __name__ == "__main__":
    main()
