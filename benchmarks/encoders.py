"""What the benchmarks of encoders have in common: train one, score it once, write what came out."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driver import HERE, heedful, hide_paths, new_parser, parse, write_curve
from machine import describe_machine


@dataclass(frozen=True)
class Corpora:
    """Files as `heedful train` takes them.

    Args:
        train: to learn from.
        valid: to choose the best model with.
        test: scored once, at the end; None where there is nothing to score.
    """

    train: Path
    valid: Path
    test: Path | None = None


def parse_arguments(
    name: str, description: str | None, *, can_begin: bool = True
) -> argparse.Namespace:
    """The arguments of a benchmark; `label` names its results.

    Args:
        name: of the benchmark.
        description: of the script.
        can_begin: whether training may begin with a model.
    """
    parser = new_parser(description)
    if can_begin:
        parser.add_argument("--init", type=Path, help="model to begin with, instead of nothing")
    arguments = parse(parser)
    arguments.name = name
    arguments.init = arguments.init if can_begin else None
    arguments.label = name if arguments.init is None else f"{name}-init"
    if arguments.run is None:
        arguments.run = Path("runs") / arguments.label
    arguments.run.parent.mkdir(parents=True, exist_ok=True)
    return arguments


def run(
    arguments: argparse.Namespace,
    script: str,
    config: Path,
    corpora: Corpora,
    scores: Sequence[str],
) -> None:
    """Train, score the test set, write the results.

    Args:
        arguments: of `parse_arguments`.
        script: name of the file that was called.
        config: settings of the run.
        corpora: the files.
        scores: of validations, for the curve.
    """
    started = datetime.now(UTC)
    out = arguments.results / arguments.label
    out.mkdir(parents=True, exist_ok=True)
    report = arguments.run.with_suffix(".report.json")
    words = ["train", str(arguments.run), "--config", str(HERE / config)]
    words += ["--train", str(corpora.train), "--valid", str(corpora.valid)]
    words += [] if arguments.init is None else ["--init", str(arguments.init)]
    heedful([*words, "--report", str(report), *arguments.extra], out / "train.log")
    names = {arguments.run: "RUN", arguments.data: "DIR"}
    names |= {} if arguments.init is None else {arguments.init: "MODEL"}
    hide_paths(out / "train.log", names)
    training = json.loads(report.read_text(encoding="utf-8"))
    for name in ("settings", "signatures"):
        training.pop(name, None)
    write_curve(arguments.run / "metrics.jsonl", out / "curve.csv", scores)
    begin = "" if arguments.init is None else " --init MODEL"
    result = {
        "benchmark": arguments.label,
        "command": f"python benchmarks/{script} --data DIR{begin}",
        "extra": arguments.extra,
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "training_minutes": round(training["training_seconds"] / 60, 1),
        "peak_memory_bytes": training["peak_memory_bytes"],
        "training": training,
        "test": None if corpora.test is None else test_scores(arguments.run, corpora.test),
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


def read_lines(file: Path) -> list[str]:
    """The lines of a gzip file."""
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        return [line.removesuffix("\n") for line in lines]


def write(run_directory: Path, name: str, lines: Sequence[str]) -> Path:
    """Lines as a file beside a run."""
    file = run_directory.with_suffix(f".{name}")
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def test_scores(run_directory: Path, test: Path) -> dict[str, Any]:
    """Return the scores of a run's model on a file, and how many examples it has."""
    told = json.loads(heedful(["evaluate", str(run_directory), "--data", str(test), "--json"]))
    scores = {name: score["score"] for name, score in told["scores"].items()}
    counts = {name: told[name] for name in ("texts", "sentences") if name in told}
    return counts | scores
