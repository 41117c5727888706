"""Train a translator on Multi30k and score it: one command, one JSON line at the end.

    python benchmarks/multi30k.py tok --data DIR     lower-cased, tokenised text, BLEU as published
    python benchmarks/multi30k.py raw --data DIR     raw cased text, detokenised sacreBLEU

DIR holds multi30k/tok and multi30k/raw (or set HEEDFUL_DATA). The settings stand in
benchmarks/multi30k/*.toml. The beam's length penalty is chosen on the validation set; the test set
is translated once, at the end, with that choice. Everything goes through the `heedful` command.
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

LENGTH_PENALTIES = (0.2, 0.6, 1.0, 1.4, 1.8)
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
    """Train, choose the length penalty, evaluate, write the results."""
    arguments = _parse()
    task = _task(arguments)
    started = datetime.now(UTC)
    clock = time.monotonic()
    name = f"multi30k-{arguments.variant}-{task.source}-{task.target}"
    out = arguments.results / name
    out.mkdir(parents=True, exist_ok=True)
    train = [
        "train",
        str(arguments.run),
        *("--preset", "tiny", "--config", str(HERE / "multi30k" / f"{arguments.variant}.toml")),
        *("--train", *task.files("train"), "--valid", *task.files("val")),
        *arguments.extra,
    ]
    if arguments.resume:
        train = ["train", str(arguments.run), "--resume", *arguments.extra]
    if not arguments.evaluate_only:
        heedful(train, out / "train.log")
        hide_paths(out / "train.log", {task.folder: "DIR", arguments.run: "RUN"})
    training = _summary(arguments.run / "metrics.jsonl")
    validation = {
        penalty: _evaluate(arguments.run, task, "val", penalty, out) for penalty in LENGTH_PENALTIES
    }
    chosen = max(validation, key=lambda penalty: validation[penalty]["scores"]["bleu"]["score"])
    test = _evaluate(arguments.run, task, "test_2016_flickr", chosen, out)
    write_curve(arguments.run / "metrics.jsonl", out / "curve.csv", ("bleu", "chrf"))
    result = {
        "benchmark": name,
        "command": " ".join(["python", "benchmarks/multi30k.py", *_without_paths(arguments)]),
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        # over all sittings of a run that was resumed, without training the tokenizer
        "training_minutes": round(training["seconds"] / 60, 1),
        "sitting_minutes": round((time.monotonic() - clock) / 60, 1),
        "training": training,
        "beam": 5,
        "length_penalty": chosen,
        "validation_bleu": {
            str(p): report["scores"]["bleu"]["score"] for p, report in validation.items()
        },
        "test": test["scores"],
        "published": PUBLISHED.get(arguments.variant),
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


def _parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("variant", choices=["tok", "raw"])
    parser.add_argument("--target", default="de", choices=["de", "fr"])
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    parser.add_argument("--evaluate-only", action="store_true", help="the run is finished already")
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


def _evaluate(run: Path, task: Task, part: str, penalty: float, out: Path) -> dict[str, Any]:
    source, reference = task.files(part)
    report = out / f"{part}.json"
    heedful(
        [
            *("evaluate", str(run), "--source", source, "--reference", reference),
            *("--metrics", "bleu", "chrf", "ter", "--beam", "5"),
            *("--length-penalty", str(penalty), "--report", str(report), *task.scoring),
        ]
    )
    result: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    return result


def _summary(metrics: Path) -> dict[str, Any]:
    events = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    summaries = [event for event in events if event.get("event") == "summary"]
    return summaries[-1] if summaries else {}


def _without_paths(arguments: argparse.Namespace) -> list[str]:
    extra = ["--", *arguments.extra] if arguments.extra else []
    return [arguments.variant, "--data", "DIR", "--target", arguments.target, *extra]


if __name__ == "__main__":
    main()
