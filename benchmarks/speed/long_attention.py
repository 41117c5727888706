"""Attention over long texts: a window of 512 tokens beside full attention, in time and in memory.

    python benchmarks/speed/long_attention.py        about 6 minutes

Self-attention of 16,384 tokens in float32 by the `chunked` kernel, each query seeing itself and
the 511 tokens before it. Beside it full attention in three forms: by the same kernel, by PyTorch's
fused one (`sdpa`), which does not hold the scores either, and as plain products that hold them all
(`matmul`). Every run is a process of its own, since only then peak memory means something: it is
what is held above the queries, keys and values. Then the window's growth from 2,048 to 32,768.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from harness import Row, finish, new_parser, parse, say
from turns import Worker, WorkerError, alternate, ratio, summary

WINDOW = 512
LENGTH = 16_384
LENGTHS = (2048, 4096, 8192, 16_384, 32_768)
LEAST, AIM = 8.0, 16.0
KINDS = {
    "window": (WINDOW, "chunked"),
    "full, chunked": (0, "chunked"),
    "full, sdpa": (0, "sdpa"),
    "full, scores held": (0, "matmul"),
}


class Cases:
    """Attentions that are measured, and what they were found to take.

    Args:
        arguments: of the program.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.memory: dict[str, list[float]] = {}

    def measure(self, kind: str, length: int, repeats: int, *, backward: bool) -> dict[str, Any]:
        """One case in a process of its own."""
        window, kernel = KINDS[kind]
        log = self.arguments.work / "long-attention" / "worker.log"
        worker = Worker("attention_case.py", log, threads=self.arguments.threads)
        try:
            return worker.ask(
                "case",
                length=length,
                window=window,
                kernel=kernel,
                repeats=repeats,
                heads=self.arguments.heads,
                backward=backward,
            )
        finally:
            worker.close()

    def seconds(self, kind: str, length: int, *, backward: bool) -> float:
        """Of one run; its memory is kept beside."""
        found = self.measure(kind, length, 1, backward=backward)
        self.memory.setdefault(kind, []).append(max(found["memory_mb"], 0.1))
        return float(found["seconds"][0])


def compare(arguments: argparse.Namespace, length: int, *, backward: bool) -> list[Row]:
    """The window beside full attention, at one length."""
    cases = Cases(arguments)
    turns = {
        kind: lambda _, kind=kind: cases.seconds(kind, length, backward=backward)
        for kind in KINDS
        if kind != "full, scores held" or arguments.dense
    }
    figures = alternate(turns, arguments.rounds, say)
    pass_name = "forward and backward" if backward else "forward"
    rows: list[Row] = []
    for unit, found in (("s", figures), ("MB", cases.memory)):
        for kind in (kind for kind in found if kind != "window"):
            # how often less the window takes: theirs through ours
            rows.append(
                {
                    "work": f"{length:,} tokens, {pass_name}: window / {kind}",
                    "unit": unit,
                    "ours": summary(found["window"]),
                    "theirs": summary(found[kind]),
                    "ratio": ratio(found[kind], found["window"]),
                    "least": LEAST,
                    "aim": AIM,
                }
            )
    return rows


def growth(
    arguments: argparse.Namespace, lengths: tuple[int, ...], *, backward: bool
) -> tuple[list[Row], dict[str, float]]:
    """The window's time and memory by length, and their exponents: 1 is linear."""
    cases = Cases(arguments)
    rows: list[Row] = []
    found: dict[str, list[float]] = {"time": [], "memory": []}
    pass_name = "forward and backward" if backward else "forward"
    for length in lengths:
        done = cases.measure("window", length, arguments.rounds, backward=backward)
        seconds = summary(done["seconds"])
        rows.append(
            {"work": f"window, {length:,} tokens, {pass_name}", "unit": "s", "ours": seconds}
        )
        memory = summary([max(done["memory_mb"], 0.1)])
        rows.append({**rows[-1], "unit": "MB", "ours": memory})
        found["time"].append(seconds["median"])
        found["memory"].append(memory["median"])
    exponents = {
        name: round(math.log2(values[-1] / values[0]) / math.log2(lengths[-1] / lengths[0]), 2)
        for name, values in found.items()
    }
    return rows, exponents


def main() -> None:
    """Compare, then grow; write what came out."""
    parser = new_parser(__doc__)
    parser.add_argument("--heads", type=int, default=2, help="of 64 (2)")
    parser.add_argument(
        "--no-dense",
        dest="dense",
        action="store_false",
        help="leave out plain products, which hold some GB",
    )
    arguments = parse(parser)
    length, lengths = (1024, (1024, 2048)) if arguments.quick else (LENGTH, LENGTHS)
    rows: list[Row] = []
    exponents: dict[str, dict[str, float]] = {}
    facts: dict[str, Any] = {"window": WINDOW, "heads": arguments.heads, "exponents": exponents}
    for backward in (False,) if arguments.quick else (False, True):
        name = "forward and backward" if backward else "forward"
        try:
            rows += compare(arguments, length, backward=backward)
            more, exponents[name] = growth(arguments, lengths, backward=backward)
        except WorkerError as error:
            facts["failed"] = str(error)
            say(f"{name}: {error}")
            continue
        rows += more
        say(f"{name}: growth with the length to the power of {exponents[name]}")
    finish(arguments, "speed-long-attention", rows, facts)


if __name__ == "__main__":
    main()
