"""Characters of Shakespeare by nanoGPT's recipe for processors: Heedful's steps beside nanoGPT's.

    python benchmarks/speed/characters.py --data DIR --nanogpt CLONE        about 2 minutes

4 layers, 128 wide, 4 heads, context 64, batches of 12 windows, learned positions, GELU, no dropout,
no biases, AdamW, gradients clipped at 1. Heedful makes the windows, and both train on these.
nanoGPT's own model and optimiser come from a clone of it; without one its recipe is stated again in
plain PyTorch. Its loop leaves out what its script does besides (drawing batches, saying the time);
Heedful's is its whole training run. nanoGPT computes in float32 on processors.
"""

from __future__ import annotations

import argparse
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import Row, finish, new_parser, parse, say
from turns import Turn, Worker, alternate, ratio, summary

CONTEXT, WINDOWS = 64, 12
RECIPE = {
    "context": CONTEXT,
    "layers": 4,
    "heads": 4,
    "width": 128,
    "rate": 1e-3,
    "betas": (0.9, 0.99),
    "decay": 0.1,
}
LEAST, AIM = 1.5, 2.5


def run_settings(data: Path, cache: Path, precision: str) -> dict[str, Any]:
    """The recipe as settings of a training run."""
    return {
        "task": "causal_lm",
        "max_steps": 10**6,
        "precision": precision,
        "model": {
            "width": 128,
            "decoder_layers": 4,
            "num_heads": 4,
            "feedforward": 512,
            "activation": "gelu",
            "norm": "layer",
            "norm_placement": "pre",
            "positions": "learned",
            "dropout": 0.0,
            "bias": False,
            "max_length": CONTEXT,
        },
        "tokenizer": {"kind": "characters"},
        "data": {
            "train": [{"file": str(data / "tinyshakespeare" / "input.txt")}],
            "max_length": CONTEXT,
            "batch_tokens": CONTEXT * WINDOWS,
            "cache": str(cache),
        },
        "schedule": {"kind": "constant", "peak_learning_rate": 1e-3, "warmup_steps": 100},
        "checkpoint": {"every_steps": 10**9, "average": "none"},
    }


def write_batches(settings: dict[str, Any], folder: Path, count: int) -> tuple[Path, int]:
    """The first batches of a run with these settings, and the size of its vocabulary."""
    from heedful.events import Events
    from heedful.train.run_config import resolve_settings
    from heedful.train.task import prepare_task

    folder.mkdir(parents=True)
    task = prepare_task(folder, resolve_settings(None, None, settings), None, Events())
    assert task.tokenizers is not None
    batches: list[Any] = [task.source.batch(0, number) for number in range(count)]
    path = folder / "batches.json"
    content = [[batch.ids.tolist(), batch.targets.tolist()] for batch in batches]
    path.write_text(json.dumps(content), encoding="utf-8")
    return path, task.tokenizers.target.size


def main() -> None:
    """Warm all up, let them take turns, write what came out."""
    parser = new_parser(__doc__, data=True)
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], help="of Heedful")
    parser.add_argument("--block", type=int, help="steps in a block")
    arguments = parse(parser)
    with ExitStack() as stack:
        figures, facts = race(arguments, stack)
    peer = next((name for name in figures if not name.startswith("heedful")), None)
    rows: list[Row] = []
    for name, runs in figures.items():
        if name == peer:
            continue
        row: dict[str, Any] = {"work": name, "unit": "steps/s", "ours": summary(runs)}
        if peer is not None:
            row |= {"theirs": summary(figures[peer]), "ratio": ratio(runs, figures[peer])}
            row |= {"work": f"{name} / {peer}", "least": LEAST, "aim": AIM}
        rows.append(row)
    finish(arguments, "speed-characters", rows, facts)


def race(
    arguments: argparse.Namespace, stack: ExitStack
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Steps a second of each, and what belongs to them."""
    block = arguments.block or (3 if arguments.quick else 100)
    warm_up = 2 if arguments.quick else 50
    folder = arguments.work / "characters"
    shutil.rmtree(folder, ignore_errors=True)
    cache = arguments.work / "encoded"
    settings = run_settings(arguments.data, cache, "fp32")
    batches, vocabulary = write_batches(settings, folder, warm_up + arguments.rounds * block)
    turns: dict[str, Turn] = {}
    facts: dict[str, Any] = {"steps_a_block": block, "vocabulary": vocabulary}
    losses = facts["last_losses"] = {}

    def started(script: str, name: str) -> Worker:
        worker = Worker(script, folder / f"{name}.log", threads=arguments.threads)
        stack.callback(worker.close)
        return worker

    for precision in arguments.precisions:
        name = f"heedful {precision}"
        worker = started("heedful_trainer.py", name)
        run = str(folder / f"run-{precision}")
        settings = run_settings(arguments.data, cache, precision)
        begun = worker.ask("begin", preset=None, settings=settings, run=run, updates=warm_up)
        say(f"{name} is warm after {begun['seconds']:.1f} s")

        def turn(_: int, name: str = name, worker: Worker = worker) -> float:
            done = worker.ask("train", updates=block)
            losses[name] = round(done["loss"], 3)
            return float(block / done["seconds"])

        turns[name] = turn
    if not arguments.no_peers:
        name = "nanoGPT" if arguments.nanogpt else "nanoGPT's recipe in plain PyTorch"
        worker = started("characters_trainer.py", "nanogpt")
        clone = str(arguments.nanogpt.resolve()) if arguments.nanogpt else None
        begun = worker.ask(
            "begin",
            recipe=RECIPE,
            clone=clone,
            batches_file=str(batches),
            vocabulary=vocabulary,
        )
        facts["nanogpt_parameters"] = begun["parameters"]
        worker.ask("train", first=0, updates=warm_up)

        def peer(number: int, worker: Worker = worker) -> float:
            done = worker.ask("train", first=warm_up + number * block, updates=block)
            losses[name] = round(done["loss"], 3)
            return float(block / done["seconds"])

        turns[name] = peer
    return alternate(turns, arguments.rounds, say), facts


if __name__ == "__main__":
    main()
