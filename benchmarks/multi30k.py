"""Train a translator on Multi30k and score it: one command, one JSON line at the end.

    python benchmarks/multi30k.py tok --data DIR     lower-cased, tokenised text, BLEU as published
    python benchmarks/multi30k.py raw --data DIR     raw cased text, detokenised sacreBLEU

DIR holds multi30k/tok and multi30k/raw (or set HEEDFUL_DATA). The settings stand in
benchmarks/multi30k/*.toml. Where there is one of a teacher, that model is trained first; the second
learns from people's translations of the training set and from the teacher's (self-distillation:
Kim and Rush 2016, Nguyen 2020). The search is that of the published figure: beam 5, length penalty
1. The test set is translated once, at the end. Everything goes through the `heedful` command; with
--resume a command that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driver import HERE, heedful, hide_paths, new_parser, parse, write_curve
from machine import describe_machine

SEARCH = ("--beam", "5", "--length-penalty", "1.0")
TEST = "test_2016_flickr"
PUBLISHED = {"tok": 41.02}
"""Transformer-Tiny on test_2016_flickr, lower-cased and tokenised (Wu et al. 2021, table 2)."""


@dataclass(frozen=True)
class Task:
    """One variant of the corpus between two languages.

    Args:
        folder: holds the files.
        suffix: between a file's name and its language.
        source: language code.
        target: language code.
        scoring: flags of `heedful evaluate`.
    """

    folder: Path
    suffix: str
    source: str
    target: str
    scoring: tuple[str, ...]

    def files(self, part: str) -> list[str]:
        """The source and target files of a part."""
        return [
            str(self.folder / f"{part}{self.suffix}.{language}.gz")
            for language in (self.source, self.target)
        ]


def main() -> None:
    """Train, evaluate, write the results."""
    arguments = _parse()
    task = _task(arguments)
    started = datetime.now(UTC)
    clock = time.monotonic()
    name = f"multi30k-{arguments.variant}-{task.source}-{task.target}"
    out = arguments.results / name
    out.mkdir(parents=True, exist_ok=True)
    recipe = HERE / "multi30k" / arguments.variant
    corpora = task.files("train")
    teacher: dict[str, Any] | None = None
    if recipe.with_name(f"{recipe.name}-teacher.toml").exists():
        run = arguments.run.with_name(f"{arguments.run.name}-teacher")
        teacher = _train(run, recipe.name + "-teacher", corpora, task, arguments, out)
        corpora = [*corpora, corpora[0], str(_taught(run, corpora[0]))]
    training = _train(arguments.run, recipe.name, corpora, task, arguments, out)
    scores = {part: _evaluate(arguments.run, task, part, out) for part in ("val", TEST)}
    result = {
        "benchmark": name,
        "command": " ".join(["python", "benchmarks/multi30k.py", *_without_paths(arguments)]),
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        # over all sittings of a run that was resumed, without training the tokenizer
        "training_minutes": [round(s["seconds"] / 60, 1) for s in (teacher, training) if s],
        "sitting_minutes": round((time.monotonic() - clock) / 60, 1),
        "teacher": teacher,
        "training": training,
        "search": " ".join(SEARCH),
        "validation": scores["val"]["scores"],
        "test": scores[TEST]["scores"],
        "published": PUBLISHED.get(arguments.variant),
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


def _train(
    run: Path,
    recipe: str,
    corpora: list[str],
    task: Task,
    arguments: argparse.Namespace,
    out: Path,
) -> dict[str, Any]:
    """Train, or go on with a run that was stopped; what its summary says."""
    begun = arguments.resume and (run / "config.toml").exists()
    log = out / f"{recipe}.log"
    if not (begun and _summary(run).get("finished")):
        config = HERE / "multi30k" / f"{recipe}.toml"
        new = ["--preset", "tiny", "--config", str(config), "--train", *corpora]
        words = ["--resume"] if begun else [*new, "--valid", *task.files("val")]
        heedful(["train", str(run), *words, *arguments.extra], log)
        hide_paths(log, {task.folder: "DIR", run: "RUN", run.parent: "RUNS"})
    write_curve(run / "metrics.jsonl", out / f"{recipe}-curve.csv", ("bleu", "chrf"))
    return _summary(run)


def _taught(run: Path, source: str) -> Path:
    """The teacher's translations of the training set."""
    made = run / "taught.txt"
    if not made.exists():
        heedful(["translate", str(run), "-i", source, "-o", str(made), *SEARCH])
    return made


def _parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("variant", choices=["tok", "raw"])
    parser.add_argument("--target", default="de", choices=["de", "fr"])
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    arguments = parse(parser)
    if arguments.run is None:
        arguments.run = Path("runs") / f"multi30k-{arguments.variant}-en-{arguments.target}"
    return arguments


def _task(arguments: argparse.Namespace) -> Task:
    tokenised = arguments.variant == "tok"
    return Task(
        folder=arguments.data / "multi30k" / arguments.variant,
        suffix=".lc.norm.tok" if tokenised else "",
        source="en",
        target=arguments.target,
        scoring=("--lowercase", "--tokenize", "none") if tokenised else (),
    )


def _evaluate(run: Path, task: Task, part: str, out: Path) -> dict[str, Any]:
    source, reference = task.files(part)
    report = out / f"{part}.json"
    heedful(
        [
            *("evaluate", str(run), "--source", source, "--reference", reference),
            *("--metrics", "bleu", "chrf", "ter", *SEARCH),
            *("--report", str(report), *task.scoring),
        ]
    )
    result: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    return result


def _summary(run: Path) -> dict[str, Any]:
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    summaries = [event for event in map(json.loads, lines) if event.get("event") == "summary"]
    return summaries[-1] if summaries else {}


def _without_paths(arguments: argparse.Namespace) -> list[str]:
    extra = ["--", *arguments.extra] if arguments.extra else []
    return [arguments.variant, "--data", "DIR", "--target", arguments.target, *extra]


if __name__ == "__main__":
    main()
