"""What the benchmarks that train through the `heedful` command have in common."""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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
