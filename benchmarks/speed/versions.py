"""How fast this version is beside another one, turn by turn: nothing that was won may be lost.

    git clone . ../other && cd ../other && git checkout COMMIT && make .venv/.ready
    python benchmarks/speed/versions.py --data DIR --other ../other      about 20 minutes

Training `transformer-base` and `tiny` on Multi30k in float32 and bfloat16, translating with both in
float32 and 8 bits (beam 5 in batches of 32, and one sentence at a time), a cold sentence and
`--help`. Each version runs in its own environment through its own workers; both translate with one
model, which the other version wrote. Rates of training are target tokens a second, of translating
sentences a second; a start is the inverse of its seconds, so that more is better everywhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from corpus import raw_file, run_settings, sentences
from harness import ROOT, Row, finish, new_parser, parse, say
from turns import Turn, Worker, alternate, ratio, summary

PRESETS = {"base": "transformer-base", "tiny": "tiny"}
UPDATES = {"base": 3, "tiny": 12}
"""Updates in a turn; the first turn of as many warms up."""

SENTENCES = {("base", 32): 256, ("base", 1): 40, ("tiny", 32): 1000, ("tiny", 1): 150}
"""Sentences in a turn, by size of the model and of the batch."""

LEAST = 0.97
FORCED = 16


class Version:
    """A checkout with its environment.

    Args:
        name: for people.
        root: the checkout.
    """

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        self.python = root / ".venv" / "bin" / "python"

    def worker(self, script: str, log: Path, threads: int) -> Worker:
        """One of the version's own workers, in its environment."""
        path = self.root / "benchmarks" / "speed" / "workers" / script
        return Worker(str(path), log, python=self.python, threads=threads)

    def run(self, *words: str, text: str = "", threads: int = 2) -> float:
        """Run the command line; return its seconds from start to end."""
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
        began = time.perf_counter()
        subprocess.run(
            [str(self.python.with_name("heedful")), *words],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            cwd=self.root,
        )
        return time.perf_counter() - began


class Contest:
    """Both versions, ready to take turns.

    Args:
        arguments: of the program.

    Attributes:
        stack: ends the processes of the work at hand.
    """

    stack: ExitStack

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder: Path = arguments.work / "versions"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.versions = [Version("this", ROOT), Version("other", arguments.other.resolve())]
        texts = sentences(raw_file(arguments.data, "test_2016_flickr", "en"))
        self.texts = self.folder / "sentences.json"
        self.texts.write_text(json.dumps({"texts": texts}), encoding="utf-8")

    def training(self, size: str, precision: str) -> dict[str, Turn]:
        """A turn of updates for each version."""
        turns = {}
        updates = 1 if self.arguments.quick else UPDATES[size]
        for version in self.versions:
            settings = run_settings(
                self.arguments.data, self.folder / f"encoded-{version.name}", precision
            )
            worker = self._worker(version, "heedful_trainer.py")
            run = self.folder / f"run-{version.name}-{size}-{precision}"
            preset = PRESETS[size]
            worker.ask("begin", preset=preset, settings=settings, run=str(run), updates=updates)

            def turn(number: int, worker: Worker = worker) -> float:
                done = worker.ask("train", updates=updates)
                return float(done["tokens"] / done["seconds"])

            turns[version.name] = turn
        return turns

    def translating(self, size: str, precision: str, batch: int) -> dict[str, Turn]:
        """A turn of sentences for each version."""
        turns = {}
        count = 3 if self.arguments.quick else SENTENCES[size, batch]
        search = {"beam": 5, "length": FORCED}
        for version in self.versions:
            worker = self._worker(version, "heedful_translator.py")
            worker.ask("begin", model=str(self._model(size)), precision=precision)

            def turn(number: int, worker: Worker = worker) -> float:
                work = {"sentences": str(self.texts), "first": 0, "count": count, "batch": batch}
                return count / float(worker.ask("translate", **work, search=search)["seconds"])

            turn(0)
            turns[version.name] = turn
        return turns

    def starting(self, what: str) -> dict[str, Turn]:
        """A start of the command line for each version."""
        forced = ("--min-length", str(FORCED), "--max-length", str(FORCED), "--device", "cpu")
        words = ("--help",) if what == "help" else ("translate", str(self._model("tiny")), *forced)

        def turn_of(version: Version) -> Turn:
            return lambda number: 1 / version.run(*words, text="A man rides a bicycle.\n")

        turns = {version.name: turn_of(version) for version in self.versions}
        for turn in turns.values():
            turn(0)
        return turns

    def _worker(self, version: Version, script: str) -> Worker:
        log = self.folder / f"{version.name}.log"
        worker = version.worker(script, log, self.arguments.threads)
        self.stack.callback(worker.close)
        return worker

    def _model(self, size: str) -> Path:
        """A model of one update by the other version, which an older reader knows as well."""
        run = self.folder / f"model-{size}"
        if not run.exists():
            train = [str(raw_file(self.arguments.data, "val", side)) for side in ("en", "de")]
            limits = ("--max-steps", "1", "--validation.every-steps", "1", "--device", "cpu")
            self.versions[1].run(
                "train", str(run), "--preset", PRESETS[size], "--train", *train, *limits
            )
        return run / "model"


def rows_of(arguments: argparse.Namespace) -> list[Row]:
    """The lines of the table: work by work, so that no more than two processes are alive."""
    contest, rows = Contest(arguments), []

    def row(work: str, unit: str, make: Callable[[], dict[str, Turn]]) -> None:
        if arguments.only and not any(words in work for words in arguments.only):
            return
        with ExitStack() as contest.stack:
            figures = alternate(make(), arguments.rounds, lambda text: say(f"{work}: {text}"))
        this, other = figures["this"], figures["other"]
        found: dict[str, Any] = {"ours": summary(this), "theirs": summary(other)}
        rows.append(
            {"work": work, "unit": unit, **found, "ratio": ratio(this, other), "least": LEAST}
        )

    for size in arguments.sizes:
        for precision in ("fp32", "bf16"):
            turns = partial(contest.training, size, precision)
            row(f"training {size}, {precision}", "target tokens/s", turns)
        for precision, batch in itertools.product(("fp32", "int8"), (32, 1)):
            turns = partial(contest.translating, size, precision, batch)
            row(f"translating {size}, {precision}, {batch} at a time", "sent./s", turns)
    for what in ("sentence", "help"):
        row(f"cold start, {what}", "starts/s", partial(contest.starting, what))
    return rows


def main() -> None:
    """Let both versions take turns, write what came out."""
    parser = new_parser(__doc__, data=True)
    parser.add_argument("--other", type=Path, required=True, help="checkout with a .venv")
    parser.add_argument("--sizes", nargs="*", default=["base", "tiny"], choices=PRESETS)
    parser.add_argument("--only", nargs="*", help="parts of the names of rows; all rows if unset")
    arguments = parse(parser)
    revision = subprocess.run(
        ["git", "-C", str(arguments.other), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    )
    finish(arguments, "speed-versions", rows_of(arguments), {"other": revision.stdout.strip()})


if __name__ == "__main__":
    main()
