"""What the benchmarks that train through the `heedful` command have in common."""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

from machine import describe_machine

from heedful.evaluate.corpus_metrics import corpus_scores

HERE = Path(__file__).resolve().parent


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the flags that all have."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="Flags of heedful train may follow after --.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--run", type=Path, help="run directory (in runs/ if unset)")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, and as `extra` what follows `--`; ends the program without data."""
    words, extra = sys.argv[1:], []
    if "--" in words:
        cut = words.index("--")
        words, extra = words[:cut], words[cut + 1 :]
    arguments = parser.parse_args(words)
    arguments.extra = extra
    if arguments.data is None:
        print("skipped: give the corpus by --data or HEEDFUL_DATA", file=sys.stderr)
        raise SystemExit(0)
    arguments.data = Path(arguments.data)
    return arguments


def heedful(words: list[str], log: Path | None = None) -> str:
    """Run the command and return its output; what it says goes to the terminal or to a log."""
    command = [sys.executable, "-m", "heedful", *words]
    if log is None:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    with log.open("w", encoding="utf-8") as said:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=said, text=True)
    return done.stdout


def train(
    run: Path,
    config: Path,
    parts: Mapping[str, Sequence[str]],
    settings: Mapping[str, Any],
    extra: Sequence[str],
    log: Path,
) -> None:
    """Train a translator; go on with a run that was stopped, and leave one that is done.

    Args:
        run: its directory.
        config: of all systems.
        parts: files of `train` and, where there is one, `valid`.
        settings: flags of this run and their values.
        extra: flags, also for a run that goes on.
        log: where what training says goes.
    """
    if any(event.get("event") == "summary" for event in read_events(run)):
        return
    words = ["--resume"]
    if not (run / "config.toml").exists():
        flags = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        words = ["--config", str(config), "--train", *parts["train"]]
        words += [*(["--valid", *parts["valid"]] if "valid" in parts else []), *flags]
    heedful(["train", str(run), *words, *extra], log)


def write_result(
    out: Path, command: str, extra: Sequence[str], started: datetime, **facts: Any
) -> None:
    """Write result.json: what was run where and when, and what came out.

    Args:
        out: folder of the results, whose name is the benchmark's.
        command: as a person types it.
        extra: flags of `heedful train` that were given besides.
        started: moment when the program began.
        **facts: what the benchmark found, such as its `runs`.
    """
    result = {
        "benchmark": out.name,
        "command": command,
        "extra": list(extra),
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        **facts,
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def compare(words: Sequence[str], run: Path) -> dict[str, Any]:
    """Let `heedful compare` or `heedful sweep` do what words say into a folder; its table."""
    run.mkdir(parents=True, exist_ok=True)
    heedful([*words, "--out", str(run)])
    table: dict[str, Any] = json.loads((run / "table.json").read_text(encoding="utf-8"))
    return table


def processor_seconds() -> float:
    """Return the seconds that finished commands used of all cores together."""
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_events(run: Path) -> list[dict[str, Any]]:
    """What a run has written of itself so far; nothing before it begins."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    return [json.loads(line) for line in lines]


def multi30k_raw(data: Path) -> dict[str, list[str]]:
    """English and German file of each part of Multi30k, cased and not tokenized."""
    files = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    raw = data / "multi30k" / "raw"
    return {p: [str(raw / f"{f}.{s}.gz") for s in ("en", "de")] for p, f in files.items()}


def read_lines(file: str | Path) -> list[str]:
    """The lines of a text, which may be compressed."""
    data = Path(file).read_bytes()
    text = gzip.decompress(data) if str(file).endswith(".gz") else data
    return text.decode("utf-8").splitlines()


def translation_scores(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF of translations, in hundredths."""
    scores = corpus_scores(outputs, references, metrics=("bleu", "chrf"))
    return {name: round(score.score, 2) for name, score in scores.items()}


def write_curve(metrics: Path, curve: Path, scores: Sequence[str]) -> None:
    """The loss of every 50th step and every validation, with these scores, as a table."""
    columns = ("event", "step", "loss", "lr", "tokens_per_second", "nll", *scores)
    with curve.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for line in metrics.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event.get("event") == "validation" or event.get("step", 0) % 50 == 0:
                rounded = {k: round(v, 6) if isinstance(v, float) else v for k, v in event.items()}
                writer.writerow(rounded)


def hide_paths(log: Path, names: Mapping[Path, str]) -> None:
    """Put names in the place of this machine's paths."""
    text = log.read_text(encoding="utf-8")
    for path, name in names.items():
        text = text.replace(str(path), name)
    log.write_text(text, encoding="utf-8")
