"""The cost curve: every attention and every rival by the length of a text, in time and memory.

    python benchmarks/speed/mixers.py --width 256 --heads 4 --rounds 3 --most 4    25 minutes
    python benchmarks/speed/mixers.py … --only rwkv,s4d    measure these anew

One layer's mixer over one text in float32, from 512 to 32,768 tokens, forward and with gradients.
The mixers are those of the registry `heedful.models.mixers`, and of some the forms that options
make. Every run is a process of its own, since only then peak memory means something. A mixer stops
growing once a run took longer than --most seconds. Exponents are fitted to the logarithms of the
longer half of the lengths: 1 is linear, 2 quadratic. The facts of the result say from which length
on a mixer is faster than attention, and how many times longer it takes than its operations would
at the rate of matrix products.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import Row, finish, new_parser, parse, say
from tables import markdown_table
from turns import Worker, WorkerError, summary

NAME = "speed-mixers"

LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
Options = Callable[[int], Mapping[str, Any]]
"""Options of a shape for a text of so many tokens."""

FORMS: Mapping[str, tuple[str, Options]] = {
    "window": ("attention", lambda n: {"window": 256}),
    "strided": ("attention", lambda n: {"mask": f"strided({math.isqrt(n)})"}),
    "fixed": ("attention", lambda n: {"mask": f"fixed({math.isqrt(n)}, 1)"}),
    "Longformer": ("attention", lambda n: {"mask": "window(256) | global(4)", "global_tokens": 4}),
    "BigBird": (
        "attention",
        lambda n: {"mask": f"window(128) | global(4) | random(64, 2, {n}, 7)"},
    ),
    "relative keys": ("attention", lambda n: {"positions": "relative_keys"}),
    "Performer": ("linear_attention", lambda n: {"features": "random"}),
    "cosFormer": ("linear_attention", lambda n: {"features": "cosine", "max_length": n}),
    "LSTM": ("recurrent", lambda n: {"cell": "lstm"}),
}
"""Mixers that options make of those in the registry, and the cell of 1997."""

ORDERS: Mapping[str, float] = {
    "attention": 2,
    "relative keys": 2,
    "strided": 1.5,
    "fixed": 1.5,
}
"""Powers of the length that tables of the field give; of all others 1."""

DRAWN = ("attention", "window", "BigBird", "strided", "linear_attention", "mamba", "rwkv", "LSTM")
"""Lines that one chart holds."""

Curve = dict[int, dict[str, Any]]
"""What was measured, by length."""


def measure(
    arguments: Any,
    mixer: str,
    options: Options,
    lengths: Sequence[int],
    *,
    backward: bool,
) -> Curve:
    """Run one mixer at every length, until it takes too long or cannot."""
    curve: Curve = {}
    for length in lengths:
        log = arguments.work / "mixers" / "worker.log"
        worker = Worker("mixer_case.py", log, threads=arguments.threads)
        try:
            curve[length] = worker.ask(
                "case",
                mixer=mixer,
                options=dict(options(length)),
                length=length,
                width=arguments.width,
                heads=arguments.heads,
                repeats=arguments.rounds,
                backward=backward,
            )
        except WorkerError as error:
            say(f"{mixer} at {length:,}: {error}")
            break
        finally:
            worker.close()
        if summary(curve[length]["seconds"])["median"] > arguments.most:
            break
    return curve


def exponent(curve: Curve, value: str) -> float | None:
    """The slope of log value over log length, by least squares, of the longer half.

    None where the figure falls there: another kernel took over, and the slope would be of neither.
    """
    points = [
        (math.log(length), math.log(_positive(found, value)))
        for length, found in sorted(curve.items())
    ]
    points = points[len(points) // 2 :] if len(points) > 3 else points
    # Half as much at a longer text is no noise.
    falls = any(after[1] < before[1] - math.log(2) for before, after in pairwise(points))
    if len(points) < 2 or falls:
        return None
    mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return round(above / sum((x - mean_x) ** 2 for x, _ in points), 2)


def overtakes(curve: Curve, attention: Curve) -> int | None:
    """The shortest length from which on a mixer is faster than attention; None if none is."""
    faster = None
    for length in sorted(curve.keys() & attention.keys(), reverse=True):
        if _figure(curve[length], "seconds") >= _figure(attention[length], "seconds"):
            break
        faster = length
    return faster


def times_arithmetic(curve: Curve, rate: float) -> dict[int, float]:
    """Time with gradients over that of its operations, thrice those forward, at products' rate."""
    return {
        length: round(_figure(found, "seconds") * rate / (3 * found["operations"]), 2)
        for length, found in curve.items()
    }


def _figure(found: Mapping[str, Any], value: str) -> float:
    if value == "seconds":
        return float(summary(found["seconds"])["median"])
    return float(found[value])


def _positive(found: Mapping[str, Any], value: str) -> float:
    """A figure that has a logarithm: memory may not have grown at all."""
    return max(_figure(found, value), 1e-6)


def table_rows(name: str, pass_name: str, curve: Curve) -> list[Row]:
    """Seconds and MB of one mixer at every length."""
    rows: list[Row] = []
    for length, found in curve.items():
        work = f"{name}, {length:,} tokens, {pass_name}"
        rows.append({"work": work, "unit": "s", "ours": summary(found["seconds"])})
        rows.append({"work": work, "unit": "MB", "ours": summary([found["memory_mb"]])})
    return rows


def markdown(facts: Mapping[str, Any]) -> str:
    """A table for each pass: exponents beside those of the literature, times and memory."""
    parts = []
    for pass_name, curves in facts["curves"].items():
        head = ["mixer", "O(n^)", "time ^", "memory ^"]
        head += ["ms, 1,024", "ms, 8,192", "ms, 32,768", "MB, 32,768", "faster than attention from"]
        table = [head]
        for name, curve in curves.items():
            powers = facts["exponents"][f"{name}, {pass_name}"]
            times = [
                f"{1000 * _figure(curve[n], 'seconds'):,.0f}" if n in curve else "–"
                for n in (1024, 8192, 32_768)
            ]
            memory = f"{curve[32_768]['memory_mb']:,.0f}" if 32_768 in curve else "–"
            crossing = facts["faster_from"][f"{name}, {pass_name}"]
            order = f"{ORDERS.get(name, 1):g}"
            cells = [name.replace("_", " "), order, *(_shown(each) for each in powers.values())]
            table.append([*cells, *times, memory, f"{crossing:,}" if crossing else "–"])
        parts.append(f"**{pass_name.capitalize()}**\n\n{markdown_table(table)}")
    return "\n".join(parts)


def _shown(power: float | None) -> str:
    return "–" if power is None else f"{power:.2f}"


def draw(curves: Mapping[str, Curve], folder: Path) -> None:
    """Seconds and memory by length, on axes that are both logarithmic."""
    from heedful.apps.charts import Estimate, bands, save

    for value, title in (("seconds", "seconds"), ("memory_mb", "MB at the peak")):
        series = {}
        for name in DRAWN:
            found = sorted(curves.get(name, {}).items())
            points = [(n, _positive(each, value)) for n, each in found]
            if points:
                series[name.replace("_", " ")] = [Estimate(n, y, y, y) for n, y in points]
        chart = bands(series, x="tokens", y=title, log=True, log_y=True)
        save(chart, folder / f"{value}.svg")


def main() -> None:
    """Measure all of them; write curves, exponents and crossings."""
    parser = new_parser(__doc__)
    parser.add_argument("--width", type=int, default=512, help="D (512)")
    parser.add_argument("--heads", type=int, default=8, help="of mixers that have some (8)")
    parser.add_argument("--most", type=float, default=20.0, help="seconds of a run (20)")
    parser.add_argument(
        "--only", default="", help="names of mixers, with commas: measure these anew"
    )
    arguments = parse(parser)
    lengths = (128, 256) if arguments.quick else LENGTHS
    log = arguments.work / "mixers" / "worker.log"
    asking = Worker("mixer_case.py", log, threads=arguments.threads)
    registered = asking.ask("names")["names"]
    rate = asking.ask("rate", width=arguments.width, repeats=20)["operations_per_second"]
    kinds = {name: (name, lambda n: {"max_length": n}) for name in registered} | dict(FORMS)
    asking.close()
    folder = arguments.results / NAME
    chosen = [word.lower() for word in arguments.only.split(",")]
    curves = _stored(folder) if arguments.only else {}
    rows: list[Row] = []
    facts: dict[str, Any] = {"width": arguments.width, "operations_per_second": rate}
    facts |= {"exponents": {}, "faster_from": {}, "times_arithmetic": {}, "curves": curves}
    for backward in (False, True):
        pass_name = "with gradients" if backward else "forward"
        mine = curves.setdefault(pass_name, {})
        for name, (mixer, options) in kinds.items():
            if name.lower() in chosen or not arguments.only:
                mine[name] = measure(arguments, mixer, options, lengths, backward=backward)
                say(f"{name}, {pass_name}: {exponent(mine[name], 'seconds')}")
        for name, curve in mine.items():
            rows += table_rows(name, pass_name, curve)
            powers = {value: exponent(curve, value) for value in ("seconds", "memory_mb")}
            facts["exponents"][f"{name}, {pass_name}"] = powers
            if backward:
                facts["times_arithmetic"][name] = times_arithmetic(curve, rate)
            faster = overtakes(curve, mine["attention"]) if "attention" in mine else None
            facts["faster_from"][f"{name}, {pass_name}"] = faster
    finish(arguments, NAME, rows, facts)
    (folder / "table.md").write_text(markdown(facts), encoding="utf-8")
    draw(curves["with gradients"], folder)


def _stored(folder: Path) -> dict[str, dict[str, Curve]]:
    """The curves of an earlier run, of which some are measured anew."""
    file = folder / "result.json"
    stored = json.loads(file.read_text(encoding="utf-8"))["curves"] if file.exists() else {}
    return {
        pass_name: {
            name: {int(length): found for length, found in curve.items()}
            for name, curve in curves.items()
        }
        for pass_name, curves in stored.items()
    }


if __name__ == "__main__":
    main()
