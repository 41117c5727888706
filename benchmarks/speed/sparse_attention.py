"""Masks with gaps beside full attention: seconds and peak memory by length, and their exponents.

    python benchmarks/speed/sparse_attention.py        about 4 minutes

Forward and backward of self-attention in float32, by the `chunked` kernel where the mask has gaps
and by PyTorch's fused kernel where it has none. Every run is a process of its own, since only then
peak memory means something: it is what is held above queries, keys and values.
"""

from __future__ import annotations

import math
from typing import Any

from harness import Row, finish, new_parser, parse, say
from turns import Worker, summary

LENGTHS = (1024, 2048, 4096, 8192)
PATTERNS = {
    "full": lambda n: "",
    "strided": lambda n: f"causal & strided({math.isqrt(n)})",
    "fixed": lambda n: f"causal & fixed({math.isqrt(n)}, 1)",
    "dilated": lambda n: "causal & dilated(128, 4)",
    "Longformer": lambda n: "window(128) | global(2)",
    "BigBird": lambda n: f"window(128) | global(2) | random(64, 3, {n}, 1)",
}


def measure(arguments: Any, name: str, length: int) -> dict[str, Any]:
    """One pattern at one length, in a process of its own."""
    log = arguments.work / "sparse-attention" / "worker.log"
    worker = Worker("attention_case.py", log, threads=arguments.threads)
    try:
        return worker.ask(
            "case",
            length=length,
            window=0,
            kernel="sdpa" if name == "full" else "chunked",
            repeats=arguments.rounds,
            backward=True,
            pattern=PATTERNS[name](length),
        )
    finally:
        worker.close()


def main() -> None:
    """Measure every pattern at every length; write what came out."""
    arguments = parse(new_parser(__doc__))
    lengths = LENGTHS[:3] if arguments.quick else LENGTHS
    rows: list[Row] = []
    exponents: dict[str, dict[str, float]] = {}
    for name in PATTERNS:
        medians: dict[str, list[float]] = {"s": [], "MB": []}
        for length in lengths:
            done = measure(arguments, name, length)
            figures = {"s": done["seconds"], "MB": [max(done["memory_mb"], 0.1)]}
            for unit, runs in figures.items():
                found = summary(runs)
                rows.append({"work": f"{name}, {length:,} tokens", "unit": unit, "ours": found})
                medians[unit].append(found["median"])
        span = math.log2(lengths[-1] / lengths[0])
        exponents[name] = {
            unit: round(math.log2(values[-1] / values[0]) / span, 2)
            for unit, values in medians.items()
        }
        say(f"{name}: {medians} grow with the length to the power of {exponents[name]}")
    finish(arguments, "speed-sparse-attention", rows, {"exponents": exponents})


if __name__ == "__main__":
    main()
