"""A language model of 124 million parameters by nanoGPT's recipe: tokens a second beside nanoGPT.

    python benchmarks/speed/gpt2.py --nanogpt CLONE         on CUDA, about 5 minutes
    python benchmarks/speed/gpt2.py --device cpu --quick    shows that it runs

12 layers, 768 wide, 12 heads, windows of 1,024 tokens, 12 of them in a batch, 50,304 pieces,
learned positions, GELU, no dropout and no biases, AdamW, gradients clipped at 1, random tokens.
Heedful in bfloat16, uncompiled, with its blocks compiled, and these with full activation
checkpointing; nanoGPT's own model and optimiser from a clone of it, compiled as its script does, in
bfloat16 under autocast (float32 on a processor, as there); without a clone its recipe stated again
in plain PyTorch. The share is that of the rate of one large product of matrices, measured in the
same rounds; operations are counted from the model. All processes live on and take turns.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import Row, finish, new_parser, parse, say
from turns import Turn, Worker, WorkerError, alternate, ratio, summary

RECIPE: dict[str, Any] = {
    "context": 1024,
    "layers": 12,
    "heads": 12,
    "width": 768,
    "rate": 6e-4,
    "betas": (0.9, 0.95),
    "decay": 0.1,
}
SMALL = RECIPE | {"context": 64, "layers": 2, "heads": 2, "width": 64}
WINDOWS, PIECES = 12, 50_304
VARIANTS: dict[str, dict[str, Any]] = {
    "uncompiled": {"compile": False, "checkpointing": "none"},
    "compiled": {"compile": True, "checkpointing": "none"},
    "compiled, full checkpointing": {"compile": True, "checkpointing": "full"},
}


def main() -> None:
    """Warm all up, let them take turns, write what came out."""
    parser = new_parser(__doc__)
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT")
    parser.add_argument(
        "--device", default="cuda", choices=["cpu", "cuda"], help="where all of them train (cuda)"
    )
    parser.add_argument("--updates", type=int, help="in a turn; 10, or 1 with --quick")
    arguments = parse(parser)
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        say("skipped: there is no CUDA GPU here")
        return
    with ExitStack() as stack:
        figures, facts = race(arguments, stack)
    rows, name = rows_of(figures, facts), f"speed-gpt2-{arguments.device}"
    finish(arguments, name, rows, {"contestants": facts})


def race(
    arguments: Any, stack: ExitStack
) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]]]:
    """Tokens a second of each, the GFLOP/s of a large product, and what belongs to them."""
    quick, device = arguments.quick, arguments.device
    recipe = SMALL if quick else RECIPE
    windows, pieces = (2, 512) if quick else (WINDOWS, PIECES)
    updates = arguments.updates or (1 if quick else 10)
    facts: dict[str, dict[str, Any]] = {}
    turns: dict[str, Turn] = {}

    def enter(name: str, script: str, **details: Any) -> None:
        log = arguments.work / "gpt2" / f"{name}.log"
        worker = Worker(script, log, threads=arguments.threads)
        stack.callback(worker.close)
        begun = worker.ask("begin", rows=windows, vocabulary=pieces, device=device, **details)
        say(f"{name} is warm after {begun['warm_up_seconds']:.1f} s")
        facts[name] = begun

        def turn(_: int) -> float:
            first = {} if script.startswith("language") else {"first": 0}
            done = worker.ask("train", updates=updates, **first)
            kept = ("loss", "peak_memory_mb", "gpu_memory_mb")
            facts[name] |= {key: done[key] for key in kept if key in done}
            each = done["seconds"] if first == {} else done["seconds"] / updates
            return float(windows * recipe["context"] / each)

        turns[name] = turn

    for variant, how in VARIANTS.items():
        if quick and how["compile"]:  # a compiler takes longer than all else here
            continue
        enter(
            f"heedful {variant}",
            "language_model_trainer.py",
            shape=shape_of(recipe),
            length=recipe["context"],
            precision="bf16",
            optimizer=optimizer_of(recipe),
            **how,
        )
    if not arguments.no_peers:
        clone = None if arguments.nanogpt is None else str(arguments.nanogpt.resolve())
        name = "nanoGPT" if clone else "nanoGPT's recipe in plain PyTorch"
        try:
            enter(name, "characters_trainer.py", recipe=recipe, clone=clone, compile=not quick)
        except WorkerError as error:
            say(f"{name} is left out: {error}")
    rates = Worker("matmul_rate.py", arguments.work / "gpt2" / "rate.log")
    stack.callback(rates.close)

    def measure(_: int) -> float:
        found = rates.ask("measure", device=device, shrink=64 if quick else 1)
        return float(found["gflops"]["bf16"])

    turns["matmul"] = measure
    return alternate(turns, arguments.rounds, say), facts


def shape_of(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe's model as options of ours."""
    return {
        "width": recipe["width"],
        "decoder_layers": recipe["layers"],
        "num_heads": recipe["heads"],
        "feedforward": 4 * recipe["width"],
        "activation": "gelu",
        "norm_placement": "pre",
        "positions": "learned",
        "dropout": 0.0,
        "bias": False,
        "max_length": recipe["context"],
    }


def optimizer_of(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe's optimiser as settings of ours."""
    first, second = recipe["betas"]
    return {
        "kind": "adamw",
        "beta1": first,
        "beta2": second,
        "epsilon": 1e-8,
        "weight_decay": recipe["decay"],
        "clip_norm": 1.0,
    }


def rows_of(figures: dict[str, list[float]], facts: dict[str, dict[str, Any]]) -> list[Row]:
    """The lines of the table."""
    rates = figures.pop("matmul")
    ours = [name for name in figures if name.startswith("heedful")]
    peer = next((name for name in figures if name not in ours), None)
    operations = facts[ours[0]]["operations_a_token"]
    rows: list[Row] = []
    for name in ours:
        row: dict[str, Any] = {
            "work": name,
            "unit": "tokens/s",
            "ours": summary(figures[name]),
        }
        if peer is not None:
            row |= {"work": f"{name} / {peer}", "theirs": summary(figures[peer])}
            row["ratio"] = ratio(figures[name], figures[peer])
        rows.append(row)
    for name, speeds in figures.items():
        shares = [1e-7 * x * operations / rate for x, rate in zip(speeds, rates, strict=True)]
        shared = f"{name}: share of the bf16 matmul rate"
        rows.append({"work": shared, "unit": "%", "ours": summary(shares)})
    return rows


if __name__ == "__main__":
    main()
