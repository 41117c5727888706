"""Why some mixers write worse text: how well they copy, and recall what stood beside a symbol.

    python benchmarks/recall.py
    python benchmarks/recall.py --systems full mamba --seeds 1 --steps 200

Two tasks of random symbols, new in every batch. *copy*: n symbols, a sign, the same n symbols.
*recall*: n pairs of a key and its value, a sign, the keys again in another order, each followed by
its value (Arora 2023). Every system of benchmarks/compare/equal_cost, here of two layers of width
64, learns texts of mixed n; reported is the share of right symbols at each n, also of n longer than
those in training. A result is written after every run, and runs that are done stay: the same
command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from driver import HERE
from machine import describe_machine
from tables import markdown_table, mean_cell
from torch import Tensor, nn

from heedful.models.build import build_model
from heedful.models.causal_lm import CausalLM
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec

TRAINED = {"copy": (4, 8, 16, 32), "recall": (2, 4, 8)}
READ = {task: (*lengths, 2 * lengths[-1]) for task, lengths in TRAINED.items()}
LONGEST = max(map(max, READ.values()))
SYMBOLS = 16
"""Of the alphabet, and as many values; the sign before the answers is one more."""

BATCH_TOKENS = 4096
TEST_TEXTS = 256
SMALL = {"width": 64, "decoder_layers": 2, "dropout": 0.0}
BLOCK = {"num_heads": 2, "feedforward": 128}
CHANGES = {"hybrid": {"attention_every": 2}, "lstm": {"width": 88}}


def texts(task: str, n: int, rows: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw texts of one task.

    Returns:
        Symbols [rows, L] int64, and which of them are answers, [rows, L] bool.
    """
    sign = torch.full((rows, 1), 2 * SYMBOLS)
    if task == "copy":
        said = torch.randint(SYMBOLS, (rows, n), generator=draw)
        ids = torch.cat([said, sign, said], 1)
        return ids, torch.arange(2 * n + 1).expand(rows, -1) > n
    keys = torch.rand(rows, SYMBOLS, generator=draw).argsort(1)[:, :n]
    values = torch.randint(SYMBOLS, 2 * SYMBOLS, (rows, n), generator=draw)
    order = torch.rand(rows, n, generator=draw).argsort(1)
    asked, answers = keys.gather(1, order), values.gather(1, order)
    told = torch.stack([keys, values], 2).flatten(1)
    asks = torch.stack([asked, answers], 2).flatten(1)
    place = torch.arange(4 * n + 1).expand(rows, -1)
    return torch.cat([told, sign, asks], 1), (place > 2 * n) & (place % 2 == 0)


def make_model(system: str) -> CausalLM:
    """The model of one system, small."""
    file = HERE / "compare" / "equal_cost" / f"{system}.toml"
    options = tomllib.loads(file.read_text(encoding="utf-8"))["model"] | SMALL
    options |= {} if "recurrent" in options else BLOCK
    shape = TranslatorShape.parse(options | CHANGES.get(system, {}))
    model = build_model(causal_lm_spec(shape, 2 * SYMBOLS + 1, 4 * LONGEST + 1))
    assert isinstance(model, CausalLM)
    return model


def answer(model: CausalLM, ids: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """Loss, and share of right answers."""
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    states = model(ids, positions)[:, :-1][answers[:, 1:]]
    logits, right = model.logits(states).float(), ids[answers]
    return nn.functional.cross_entropy(logits, right), (logits.argmax(-1) == right).float().mean()


def learn(system: str, task: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one model and ask it texts of every length."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(1000 + seed)
    model = make_model(system)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.004, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 50) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    began = time.perf_counter()
    for step in range(steps):
        n = TRAINED[task][step % len(TRAINED[task])]
        length = (2 if task == "copy" else 4) * n + 1
        loss, _ = answer(model, *texts(task, n, BATCH_TOKENS // length, draw))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
    seconds = time.perf_counter() - began
    draw.manual_seed(0)
    model.eval()
    with torch.inference_mode():
        right = {n: float(answer(model, *texts(task, n, TEST_TEXTS, draw))[1]) for n in READ[task]}
    return {
        "system": system,
        "task": task,
        "seed": seed,
        "parameters": sum(each.numel() for each in model.parameters()),
        "seconds": round(seconds, 1),
        "right": {str(n): round(share, 4) for n, share in right.items()},
    }


def table(runs: list[dict[str, Any]], task: str) -> str:
    """Shares of right symbols in percent, a line for each system: mean and half an interval."""
    rows = [["symbols" if task == "copy" else "pairs", *map(str, READ[task])]]
    for system in dict.fromkeys(run["system"] for run in runs):
        mine = [run for run in runs if (run["system"], run["task"]) == (system, task)]
        lengths = READ[task] if mine else ()
        cells = [mean_cell([100 * run["right"][str(n)] for run in mine], 1) for n in lengths]
        rows.append([system, *cells])
    return markdown_table(rows)


def main() -> None:
    """Run what is missing; write what came out."""
    systems = sorted(path.stem for path in (HERE / "compare" / "equal_cost").glob("*.toml"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--systems", nargs="+", choices=systems, default=systems)
    parser.add_argument("--tasks", nargs="+", choices=[*TRAINED], default=[*TRAINED])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    out = arguments.results / "recall"
    out.mkdir(parents=True, exist_ok=True)
    file = out / "result.json"
    result = {
        "benchmark": "recall",
        "command": f"python benchmarks/recall.py --steps {arguments.steps}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "steps": arguments.steps,
        "trained": TRAINED,
        "runs": [],
    }
    if file.exists():
        result = json.loads(file.read_text(encoding="utf-8"))
        if result["steps"] != arguments.steps:
            parser.error(f"{file} is of {result['steps']} steps; give another --results")
    done = {(run["system"], run["task"], run["seed"]) for run in result["runs"]}
    for seed in arguments.seeds:
        for task in arguments.tasks:
            for system in arguments.systems:
                if (system, task, seed) in done:
                    continue
                result["runs"].append(learn(system, task, seed, arguments.steps))
                print(json.dumps(result["runs"][-1]), file=sys.stderr)
                file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    tables = "".join(f"{task}\n\n{table(result['runs'], task)}\n" for task in TRAINED)
    (out / "table.md").write_text(tables, encoding="utf-8")
    print(tables)


if __name__ == "__main__":
    main()
