"""What the speed benchmarks have in common: flags, tables, results."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
ROOT = BENCHMARKS.parent
BUILD = ROOT / "build" / "bench"
sys.path.append(str(BENCHMARKS))  # what all benchmarks share, behind what these do

Row = Mapping[str, Any]
"""A line of the table: `work`, `unit`, summaries `ours`, `theirs` and `ratio`, `least`, `aim`, and
texts `asked` and `met`."""


def new_parser(description: str | None, *, data: bool = False) -> argparse.ArgumentParser:
    """A parser with the flags that all have.

    Args:
        description: of the program.
        data: whether it reads a corpus.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if data:
        parser.add_argument(
            "--data",
            type=Path,
            default=os.environ.get("HEEDFUL_DATA"),
            help="folder that holds multi30k/raw (HEEDFUL_DATA if unset)",
        )
    parser.add_argument("--rounds", type=int, help="alternating runs; 5, or 1 with --quick")
    parser.add_argument("--threads", type=int, default=2, help="of every contestant (2)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="as little as shows that it works; figures mean nothing",
    )
    parser.add_argument(
        "--no-peers", action="store_true", help="only Heedful, without other projects"
    )
    parser.add_argument(
        "--envs",
        type=Path,
        default=os.environ.get("HEEDFUL_BENCH_ENVS", BUILD / "envs"),
        help="folder of the peers' environments, made where missing (HEEDFUL_BENCH_ENVS)",
    )
    parser.add_argument(
        "--work", type=Path, default=BUILD / "work", help="folder of what need not be kept"
    )
    parser.add_argument(
        "--results", type=Path, help="folder of results (benchmarks/results; in --work if --quick)"
    )
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments; ends the program without data."""
    arguments = parser.parse_args()
    arguments.started = datetime.now(UTC)
    if "data" in vars(arguments):
        if arguments.data is None:
            print("skipped: give the corpora by --data or HEEDFUL_DATA", file=sys.stderr)
            raise SystemExit(0)
        arguments.data = Path(arguments.data).resolve()
    arguments.envs = Path(arguments.envs).resolve()
    arguments.work = arguments.work.resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else 5
    if arguments.results is None:
        kept = BENCHMARKS / "results"
        arguments.results = arguments.work / "results" if arguments.quick else kept
    return arguments


def say(text: str) -> None:
    """Tell a person how far it is."""
    print(text, file=sys.stderr, flush=True)


def finish(
    arguments: argparse.Namespace,
    name: str,
    rows: Sequence[Row],
    facts: Mapping[str, Any],
    *,
    peers: Mapping[str, Any] | None = None,
) -> None:
    """Write the results, print the table and, as the last line, all as JSON; see `write`."""
    result, table = write(arguments, name, rows, facts, peers=peers)
    print(table)
    print(json.dumps(result, ensure_ascii=False), flush=True)


def write(
    arguments: argparse.Namespace,
    name: str,
    rows: Sequence[Row],
    facts: Mapping[str, Any],
    *,
    peers: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], str]:
    """Write the results; return them as JSON types, and the table.

    Args:
        arguments: of the program.
        name: of the benchmark; its results are in the folder of this name.
        rows: of the table.
        facts: what else belongs to the result, as JSON types.
        peers: versions of the other projects, or why one is missing.
    """
    from machine import describe_machine  # the other benchmarks' too; loads torch

    result = {
        "benchmark": name,
        "command": _command(arguments),
        "quick": arguments.quick,
        "started": arguments.started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine() | {"threads": arguments.threads, "load": _load()},
        "peers": dict(peers or {}),
        "rows": list(rows),
        **facts,
    }
    table = format_table(rows)
    folder = arguments.results / name
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    (folder / "result.json").write_text(text + "\n", encoding="utf-8")
    (folder / "table.txt").write_text(table + "\n", encoding="utf-8")
    return result, table


def format_table(rows: Sequence[Row]) -> str:
    """Columns of text: medians, and in brackets the spread of the runs in percent of them."""
    heads = ("work", "unit", "Heedful", "peer", "ratio", "lowest-highest", "at least", "aim")
    heads += ("asked", "met")
    lines = [heads]
    for row in rows:
        found = row.get("ratio")
        lines.append(
            (
                str(row["work"]),
                str(row.get("unit", "")),
                _shown(row.get("ours")),
                _shown(row.get("theirs")),
                "" if found is None else f"{found['median']:.2f}",
                "" if found is None else f"{found['lowest']:.2f}-{found['highest']:.2f}",
                _limit(row.get("least")),
                _limit(row.get("aim")),
                str(row.get("asked", "")),
                str(row.get("met", "")),
            )
        )
    used = [i for i in range(len(heads)) if any(line[i] for line in lines[1:])]
    widths = {i: max(len(line[i]) for line in lines) for i in used}
    return "\n".join(
        "  ".join(
            line[i].ljust(widths[i]) if i < 2 else line[i].rjust(widths[i]) for i in used
        ).rstrip()
        for line in lines
    )


def _shown(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    return f"{found['median']:,.4g} ({found['spread_percent']:.0f} %)"


def _limit(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _command(arguments: argparse.Namespace) -> str:
    """The command as it was given, with names in the place of this machine's paths."""
    names = {"--data": "DIR", "--envs": "ENVS", "--work": "WORK", "--results": "RESULTS"}
    names["--other"] = "OTHER"
    names |= {"--model": "MODEL", "--nanogpt": "CLONE"}
    words, hidden = [], None
    for word in sys.argv[1:]:
        words.append(hidden or word)
        hidden = names.get(word)
    program = Path(sys.argv[0]).resolve().relative_to(ROOT).as_posix()
    return shlex.join(["python", program, *words])


def _load() -> float:
    """What else the machine does, in the mean of the last minute."""
    return round(os.getloadavg()[0], 2)
