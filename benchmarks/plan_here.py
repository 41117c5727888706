"""Plans against this machine: time and memory of short trainings by the real command line.

    python benchmarks/plan_here.py --data DIR [--processes 2] [--results DIR]

Each case trains twice, with few and with more updates; the difference is the time of updates alone.
One process of one thread is timed by its processor seconds, so that other work on the machine does
not count, and so are the products that the plan measures. Several processes (`heedful train
--processes N`) are timed by the clock, and need a quiet machine. Nothing is fitted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from report import say, write_result

from heedful import device as device_module
from heedful.apps.planning.cluster import NUMBER_BYTES, Cluster, read_devices
from heedful.apps.planning.estimates import TrainingPlan, UpdateBatch, estimate
from heedful.apps.planning.layouts import Layout
from heedful.apps.planning.model_costs import model_costs
from heedful.models.preset_files import preset_spec

CASES = (
    ("tiny", "bf16"),
    ("tiny", "fp32"),
    ("transformer-base", "bf16"),
    ("transformer-base", "fp32"),
)

UPDATES = {"tiny": (5, 30), "transformer-base": (2, 8)}
"""Of the shorter and the longer training."""

PIECES, BATCH_TOKENS, LENGTH = 10_000, 4096, 15
"""As in `benchmarks/speed`: Multi30k, whose texts have 15 pieces."""

PADDED = 1.031
"""Target positions over target tokens of these batches (results/speed-training-base)."""


def train(
    run: Path, data: Path, preset: str, precision: str, updates: int, processes: int
) -> dict[str, float]:
    """Train by the command line; return seconds, target tokens and the peak of memory in bytes."""
    sides = [str(data / f"train.{language}.gz") for language in ("en", "de")]
    words = ["train", str(run), "--preset", preset, "--precision", precision, "--train", *sides]
    words += ["--tokenizer.vocabulary-size", str(PIECES), "--max-steps", str(updates)]
    words += ["--data.batch-tokens", str(BATCH_TOKENS), "--data.cache", str(run.parent / "cache")]
    words += ["--checkpoint.every-steps", "1000000", "--checkpoint.average", "none"]
    if processes > 1:
        words += ["--processes", str(processes)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "heedful", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [event for event in events if "tokens_per_second" in event]
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": busy if processes == 1 else steps[-1]["seconds"],
        "tokens": steps[-1]["total_tokens"],
        "peak": events[-1]["peak_memory_bytes"],
    }


def plan(preset: str, precision: Any, processes: int, positions: float) -> TrainingPlan:
    """Return the plan for updates of so many positions."""
    with ExitStack() as stack:
        if processes == 1:
            clock = SimpleNamespace(perf_counter=time.process_time)
            stack.enter_context(mock.patch.object(device_module, "time", clock))
        spec = preset_spec(preset, PIECES)
        device, per_host = read_devices(f"{processes}xcpu", width=spec.width)
    costs = model_costs(spec, LENGTH, NUMBER_BYTES[precision])
    batch = UpdateBatch(positions=round(positions), length=LENGTH, precision=precision)
    cluster = Cluster(device=device, per_host=per_host)
    return estimate(costs, cluster, batch, Layout(data=processes))


def measure(folder: Path, arguments: argparse.Namespace, preset: str, precision: str) -> Any:
    """Return a case as plain data."""
    few, many = UPDATES[preset]
    found = [
        train(
            folder / f"{preset}-{precision}-{updates}",
            arguments.data,
            preset,
            precision,
            updates,
            arguments.processes,
        )
        for updates in (few, many)
    ]
    updates = many - few
    tokens = (found[1]["tokens"] - found[0]["tokens"]) / updates
    seconds = (found[1]["seconds"] - found[0]["seconds"]) / updates
    planned = plan(preset, precision, arguments.processes, tokens * PADDED)
    return {
        "run": f"{preset}, {precision}",
        "processes": arguments.processes,
        "measured_seconds": round(seconds, 4),
        "planned_seconds": round(planned.seconds, 4),
        "time": round(planned.seconds / seconds, 3),
        "measured_peak_bytes": round(found[1]["peak"]),
        "planned_bytes": planned.memory.needed,
        "memory": round(planned.memory.needed / found[1]["peak"], 3),
        "target_tokens_per_second": round(tokens / seconds),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the cases as a table in Markdown."""
    lines = [
        "| training | processes | planned s | measured | time | planned MB | measured | memory |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['run']} | {row['processes']} | {row['planned_seconds']:.2f} "
        f"| {row['measured_seconds']:.2f} | {row['time']:.2f} "
        f"| {row['planned_bytes'] / 1e6:,.0f} | {row['measured_peak_bytes'] / 1e6:,.0f} "
        f"| {row['memory']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of Multi30k's raw files (HEEDFUL_DATA)")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    arguments = parser.parse_args()
    if arguments.data is None and "HEEDFUL_DATA" not in os.environ:
        say("skipped: give the corpus by --data or HEEDFUL_DATA")
        return
    arguments.data = arguments.data or Path(os.environ["HEEDFUL_DATA"])
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for preset, precision in CASES:
            rows.append(measure(Path(folder), arguments, preset, precision))
            say(json.dumps(rows[-1]))
    name = "plan-here" if arguments.processes == 1 else f"plan-here-{arguments.processes}"
    command = "python benchmarks/plan_here.py --data DIR"
    if arguments.processes > 1:
        command += f" --processes {arguments.processes}"
    write_result(arguments.results, name, command, {"runs": rows})
    (arguments.results / name / "table.md").write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
