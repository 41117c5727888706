"""How a comparison of Heedful with itself is asked for, and writes down what it found."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine

FEWEST_ROUNDS = 5


def say(text: str) -> None:
    """For people."""
    print(text, file=sys.stderr)


def new_parser(
    description: str | None, *, rounds: int | None = None, model: str | None = None
) -> argparse.ArgumentParser:
    """What all comparisons on a trained model and a corpus understand.

    Args:
        description: of the program.
        rounds: how many by default; None where nothing is timed in turns.
        model: by default; None where one must be given.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = None if model is None else Path(model)
    parser.add_argument("--model", type=Path, default=default, required=model is None)
    parser.add_argument("--data", default=os.environ.get("HEEDFUL_DATA"))
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace | None:
    """The arguments, with PyTorch's threads set; None, which is said, where there is no corpus."""
    arguments = parser.parse_args()
    if arguments.data is None:
        say("skipped: give the corpus by --data or HEEDFUL_DATA")
        return None
    if getattr(arguments, "rounds", FEWEST_ROUNDS) < FEWEST_ROUNDS:
        parser.error(f"--rounds: fewer than {FEWEST_ROUNDS} say little")
    torch.set_num_threads(arguments.threads)
    return arguments


def write_result(results: Path, benchmark: str, command: str, found: dict[str, Any]) -> None:
    """Write RESULTS/BENCHMARK/result.json, and print it as one line.

    Args:
        results: the folder of all results.
        benchmark: its name.
        command: that gives these figures again.
        found: the figures and what they hold for.
    """
    result = {
        "benchmark": benchmark,
        "command": command,
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        **found,
    }
    folder = results / benchmark
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    (folder / "result.json").write_text(text + "\n", encoding="utf-8")
    print(json.dumps(result))
