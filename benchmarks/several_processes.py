"""Training by several processes: the losses of one, and the tokens a second.

`losses` trains a small translator for some updates under one plan after the other and compares
every loss with that of one process, beside the difference that another number of threads makes.
`resume` does so of a run that goes on with other plans. `speed` trains `base` with two processes of
one thread each and with one process of two threads, in turns.

    python benchmarks/several_processes.py losses --data DIR --results benchmarks/results/processes
    python benchmarks/several_processes.py speed --data DIR --results benchmarks/results/processes
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PLANS: dict[str, tuple[str, ...]] = {
    "2 copies": ("--processes", "2"),
    "4 copies": ("--processes", "4"),
    "2 shards": ("--processes", "2", "--parallel.shard", "2"),
    "2 copies of 2 shards": ("--processes", "4", "--parallel.shard", "2"),
    "2 tensor": ("--processes", "2", "--parallel.tensor", "2"),
    "2 context": ("--processes", "2", "--parallel.context", "2"),
    "4 context": ("--processes", "4", "--parallel.context", "4"),
    "2 shards of 2 tensor": ("--processes", "4", "--parallel.shard", "2", "--parallel.tensor", "2"),
}


def train(run: Path, data: Path, threads: int, *more: str) -> list[dict[str, Any]]:
    """Train on Multi30k; return the metrics of every update."""
    pairs = {
        kind: [str(data / "multi30k" / "raw" / f"{name}.{side}.gz") for side in ("en", "de")]
        for kind, name in (("train", "train"), ("valid", "val"))
    }
    command = [
        *(sys.executable, "-m", "heedful", "train", str(run)),
        *("--train", *pairs["train"], "--precision", "fp32", *more),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if "event" not in each]


def weights(run: Path) -> str:
    """A digest of the weights of a run."""
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def table(result: dict[str, Any]) -> str:
    """The differences of losses as a table of Markdown: a row for each plan."""
    kinds = list(result)
    lines = [f"| plan | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for plan in result[kinds[0]]:
        rows = [result[kind][plan] for kind in kinds]
        cells = [
            "0, same weights" if row.get("same weights") else f"{row['largest']:.1e}"
            for row in rows
        ]
        lines.append(f"| {plan} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def relative(values: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[float]:
    """The differences of the losses of two runs, as shares of them."""
    pairs = zip(values, others, strict=True)
    return [abs(one["loss"] - other["loss"]) / other["loss"] for one, other in pairs]


def losses(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare the losses of every plan with those of one process."""
    shared = (
        *("--preset", "tiny", "--max-steps", str(options.steps), "--optimizer.accumulate", "4"),
        *("--data.batch-tokens", "512", "--data.cache", str(folder / "encoded")),
        *("--tokenizer.vocabulary-size", "2000", "--checkpoint.every-steps", "1000"),
        *("--parallel.parts", "1"),  # gradients of the four batches are summed in one order
    )
    result: dict[str, Any] = {}
    for name, kind in {
        "pre-norm, GELU": ("pre", "gelu"),
        "post-norm, ReLU": ("post", "relu"),
    }.items():
        placement, activation = kind
        smooth = (
            *("--model.norm-placement", placement, "--model.activation", activation),
            *("--model.dropout", "0"),
        )
        number = len(result)
        alone = train(folder / f"{number}-alone", options.data, 1, *shared, *smooth)
        rows: dict[str, Any] = {}
        threads = train(folder / f"{number}-threads", options.data, 2, *shared, *smooth)
        rows["1 process of 2 threads"] = {"largest": max(relative(threads, alone))}
        for plan, flags in PLANS.items():
            run = folder / f"{number}-{plan.replace(' ', '-')}"
            found = train(run, options.data, 1, *shared, *smooth, *flags)
            differences = relative(found, alone)
            rows[plan] = {
                "largest": max(differences),
                "same tokens": [each["tokens"] for each in found]
                == [each["tokens"] for each in alone],
                "same weights": weights(run) == weights(folder / f"{number}-alone"),
            }
            print(name, plan, rows[plan], flush=True)
        result[name] = rows
    if options.results is not None:
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / "losses.md").write_text(table(result))
    return result


def resume(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare a run resumed by 4 copies, 2 shards and 1 process with one that never stopped."""
    shared = (
        *("--preset", "tiny", "--optimizer.accumulate", "4", "--data.batch-tokens", "512"),
        *("--data.cache", str(folder / "encoded"), "--tokenizer.vocabulary-size", "2000"),
        *("--model.norm-placement", "pre", "--model.activation", "gelu", "--max-steps"),
    )
    alone = train(folder / "alone", options.data, 1, *shared, str(options.steps))
    run, third = folder / "run", options.steps // 3
    train(run, options.data, 1, *shared, str(third), "--processes", "4")
    more = (str(2 * third), "--resume", "--processes", "2", "--parallel.shard", "2")
    train(run, options.data, 1, *shared, *more)
    last = (str(options.steps), "--resume", "--parallel.shard", "1")
    found = train(run, options.data, 1, *shared, *last)
    return {"updates": len(found), "largest": max(relative(found, alone))}


def speed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tokens a second of two processes and of one with two threads, in turns."""
    shared = (
        *("--preset", "transformer-base", "--max-steps", str(options.steps)),
        *("--optimizer.accumulate", str(options.accumulate), "--data.batch-tokens", "4096"),
        *("--data.cache", str(folder / "encoded"), "--checkpoint.every-steps", "1000"),
        *("--model.dropout", "0.1"),
    )
    ways = {"one process, two threads": (2, ()), "two processes": (1, ("--processes", "2"))}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds):
        for number, (name, (threads, flags)) in enumerate(ways.items()):
            run = folder / f"{turn}-{number}"
            found = train(run, options.data, threads, *shared, *flags)[1:]  # the first warms up
            rates[name].append(statistics.median(each["tokens_per_second"] for each in found))
            print(turn, name, round(rates[name][-1]), flush=True)
    one, two = (rates[name] for name in ways)
    ratios = [second / first for first, second in zip(one, two, strict=True)]
    return {"tokens a second": rates, "ratios": ratios, "median ratio": statistics.median(ratios)}


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["losses", "resume", "speed"])
    parser.add_argument("--data", type=Path, default=os.environ.get("HEEDFUL_DATA"), required=False)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--accumulate", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    if options.data is None:
        parser.error("name the folder of corpora: --data DIR, or set HEEDFUL_DATA")
    options.data = Path(options.data)
    with tempfile.TemporaryDirectory() as folder:
        found = {"losses": losses, "resume": resume, "speed": speed}[options.what](
            options, Path(folder)
        )
    values = vars(options)
    found["settings"] = {name: values[name] for name in ("what", "steps", "accumulate", "rounds")}
    found["date"] = datetime.date.today().isoformat()
    found["load"] = os.getloadavg()
    print(json.dumps(found, indent=2))
    if options.results is not None:
        options.results.mkdir(parents=True, exist_ok=True)
        path = options.results / f"{options.what}.json"
        path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
