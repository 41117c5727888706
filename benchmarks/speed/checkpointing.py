"""Memory and time of activation checkpointing: none, selective, full.

    python benchmarks/speed/checkpointing.py                 about 8 minutes
    python benchmarks/speed/checkpointing.py --device cuda

Updates of a language model of 12 blocks on random tokens, windows of 512 and of 2,048, and of one
whose attention has dropout, which keeps its weights. A process for each mode, which take turns; the
loss after as many updates must be the same. Memory is the peak of the process, on CUDA that of the
device; beside it stands what `heedful.engines.cost_memory` foresees.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from harness import Row, finish, new_parser, parse, say
from turns import Worker, alternate, ratio, summary

MODES = ("none", "selective", "full")
SHAPE: dict[str, Any] = {
    "width": 256,
    "decoder_layers": 12,
    "num_heads": 4,
    "feedforward": 1024,
    "norm_placement": "pre",
    "activation": "gelu",
    "dropout": 0.1,
}
SMALL = {**SHAPE, "width": 32, "decoder_layers": 3, "num_heads": 2, "feedforward": 64}
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "length 512": (512, 4, {}),
    "length 2,048": (2048, 1, {}),
    "length 512, dropout of attention": (512, 2, {"attention_dropout": 0.1}),
}
"""Tokens of a window, windows, and changes of the model."""


def main() -> None:
    """Measure every mode in every case; write what came out."""
    parser = new_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--only", default="", help="cases whose name holds this")
    arguments = parse(parser)
    rows: list[Row] = []
    facts: dict[str, Any] = {}
    for name in CASES:
        if arguments.only in name:
            rows += measure(arguments, name, facts.setdefault(name, {}))
    device = "" if arguments.device == "cpu" else f"-{arguments.device}"
    finish(arguments, f"speed-checkpointing{device}", rows, {"cases": facts})


def measure(arguments: Any, name: str, facts: dict[str, Any]) -> list[Row]:
    """The lines of a case."""
    length, windows, changes = CASES[name]
    shape = (SMALL if arguments.quick else SHAPE) | changes
    length = length // 8 if arguments.quick else length
    key = "peak_memory_mb" if arguments.device == "cpu" else "gpu_memory_mb"
    answers: dict[str, Any] = {}
    with ExitStack() as stack:
        turns = {}
        for mode in MODES:
            log = arguments.work / "checkpointing" / f"{mode}.log"
            worker = Worker("language_model_trainer.py", log, threads=arguments.threads)
            stack.callback(worker.close)
            begun = worker.ask(
                "begin",
                shape=shape,
                vocabulary=8192,
                length=length,
                rows=windows,
                checkpointing=mode,
                precision=arguments.precision,
                device=arguments.device,
            )
            facts[mode] = {"foreseen_mb": begun["foreseen_mb"]}

            def turn(_: int, mode: str = mode, worker: Worker = worker) -> float:
                answers[mode] = worker.ask("train", updates=1)
                return float(answers[mode]["seconds"])

            turns[mode] = turn
        seconds = alternate(turns, arguments.rounds, say)
    rows: list[Row] = []
    for mode in MODES:
        facts[mode] |= {"peak_mb": answers[mode][key], "loss": answers[mode]["loss"]}
        assert answers[mode]["loss"] == answers["none"]["loss"], f"{mode}: another loss"
        memory = [float(answers[mode][key])]
        base = [float(answers["none"][key])]
        rows.append(
            {
                "work": f"{name}: {mode}",
                "unit": "MB",
                "ours": summary(memory),
                "ratio": ratio(memory, base),
            }
        )
        rows.append(
            {
                "work": f"{name}: {mode}",
                "unit": "s/update",
                "ours": summary(seconds[mode]),
                "ratio": ratio(seconds[mode], seconds["none"]),
            }
        )
    return rows


if __name__ == "__main__":
    main()
