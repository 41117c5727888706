"""Position methods past the trained length: trained at 128 characters, read at 128 to 2,048.

    python benchmarks/extrapolation.py --data DIR

DIR holds tinyshakespeare/input.txt (or set HEEDFUL_DATA). `heedful sweep` trains a language model
of characters with each method and several seeds (benchmarks/compare/extrapolation.toml) on the
first 90 % of the text; `heedful evaluate --by-position` reads the rest in windows of 2,048. Rotary
models are also read with their positions stretched by the ratio of the lengths: linear, NTK, YaRN.
A run that was interrupted goes on when the same command is given again. Flags of heedful sweep may
follow after --, such as: -- --seeds 1 --max-steps 200
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driver import HERE, compare, heedful, new_parser, parse
from machine import describe_machine
from tables import markdown_table

from heedful.apps.evaluation.seed_intervals import student_interval

METHODS = ("sinusoidal", "learned", "rotary", "alibi", "kerple", "t5", "relative_keys", "none")
SCALINGS = ("linear", "ntk", "yarn")
TRAINED = 128


def main() -> None:
    """Train, read long windows, and write a table and a chart."""
    arguments = _parse()
    started = datetime.now(UTC)
    out = arguments.results / "extrapolation"
    out.mkdir(parents=True, exist_ok=True)
    arguments.run.mkdir(parents=True, exist_ok=True)
    train, valid = _split(arguments.data / "tinyshakespeare" / "input.txt", arguments.run)
    sweep = ["sweep", str(HERE / "compare" / "extrapolation.toml")]
    sweep += ["--over", f"model.positions={','.join(arguments.methods)}"]
    sweep += ["--train", str(train), "--valid", str(valid), *arguments.extra]
    table = compare(sweep, arguments.run)
    rows = _read_all(arguments, valid)
    result = {
        "benchmark": "extrapolation",
        "command": "python benchmarks/extrapolation.py --data DIR",
        "extra": arguments.extra,
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "trained_length": TRAINED,
        "length": arguments.length,
        "training": {name: table[name] for name in ("budget", "seeds", "variants")},
        "by_position": rows,
    }
    text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    (out / "result.json").write_text(text, encoding="utf-8")
    (out / "table.md").write_text(_markdown(rows), encoding="utf-8")
    _draw(rows, out / "positions.svg")
    print(_markdown(rows))


def _parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--length", type=int, default=2048, help="characters of a window read")
    arguments = parse(parser)
    if arguments.run is None:
        arguments.run = Path("runs") / "extrapolation"
    return arguments


def _split(text: Path, run: Path) -> tuple[Path, Path]:
    """The first 90 % of the characters, and the rest."""
    characters = text.read_text(encoding="utf-8")
    cut = int(0.9 * len(characters))
    paths = (run / "train.txt", run / "valid.txt")
    for path, part in zip(paths, (characters[:cut], characters[cut:]), strict=True):
        path.write_text(part, encoding="utf-8")
    return paths


def _read_all(arguments: argparse.Namespace, text: Path) -> dict[str, list[dict[str, Any]]]:
    """The loss at each range of positions, averaged over seeds, by method."""
    results: dict[str, list[dict[str, Any]]] = {}
    for method in arguments.methods:
        runs = sorted((arguments.run / "runs" / f"model.positions={method}").glob("seed-*"))
        results[method] = _averaged([_read(run, text, arguments.length) for run in runs])
        for scaling in SCALINGS if method == "rotary" else ():
            flags = ["--rotary-scaling", scaling]
            flags += ["--rotary-factor", str(arguments.length / TRAINED)]
            read = [_read(run, text, arguments.length, flags) for run in runs]
            results[f"{method}, {scaling}"] = _averaged(read)
    return results


def _read(run: Path, text: Path, length: int, flags: list[str] | None = None) -> list[Any]:
    words = ["evaluate", str(run), "--text", str(text), "--by-position", "--length", str(length)]
    found = json.loads(heedful([*words, *(flags or []), "--json"]))
    rows: list[Any] = found["by_position"]
    return rows


def _averaged(seeds: list[list[Any]]) -> list[dict[str, Any]]:
    """Rows of the same positions, averaged over seeds; none where there is no loss."""
    rows = []
    for several in zip(*seeds, strict=True):
        row = {name: several[0][name] for name in ("first", "last", "tokens", "problem")}
        if several[0]["loss"] is not None:
            mean = student_interval([each["loss"] for each in several])
            row |= {"loss": mean.score, "low": mean.low, "high": mean.high}
        rows.append(row)
    return rows


def _markdown(rows: dict[str, list[dict[str, Any]]]) -> str:
    """A table of losses in nats per character, a line for each method."""
    # Learned positions have rows of their own where the table ends.
    usual = next((v for k, v in rows.items() if k != "learned"), next(iter(rows.values())))
    ends = [row["last"] for row in usual]
    table = [["positions to", *map(str, ends)]]
    for method, several in rows.items():
        by_end = {row["last"]: row.get("loss") for row in several}
        cells = [f"{loss:.3f}" if (loss := by_end.get(end)) is not None else "–" for end in ends]
        table.append([method, *cells])
    return markdown_table(table)


def _draw(rows: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from heedful.apps import charts

    series = {
        method: [
            charts.Estimate(
                (row["first"] * row["last"]) ** 0.5, row["loss"], row["low"], row["high"]
            )
            for row in several
            if "loss" in row
        ]
        for method, several in rows.items()
    }
    chart = charts.bands(
        series,
        x="position in the window",
        y="loss, nats per character",
        title="Position methods past their trained length",
        more="Means over seeds with 95 % confidence intervals",
        log=True,
        mark=TRAINED,
        mark_label="trained length",
    )
    charts.save(chart, path)


if __name__ == "__main__":
    main()
