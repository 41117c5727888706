"""Additive or dot product? Scores of attention by the width of their keys: quality and speed.

    python benchmarks/compare/scores.py --data DIR
    python benchmarks/compare/scores.py --data DIR -- --seeds 1 --max-steps 100

Vaswani (2017, section 3.2.1): both are alike for narrow keys, and for wide ones additive attention
is better than dot products without a scale, which grow and leave softmax no gradient. Two tests on
Multi30k (DIR/multi30k/raw, or HEEDFUL_DATA): a GRU translator whose attention compares keys of 8,
64 and 512 numbers, by additive scores, dot products, and dot products times 1/sqrt(width); and
a Transformer with heads of 16, 64 and 256 numbers, scaled and not. `heedful compare` trains them
(flags for it after --); reported is the loss on validation. Then the time of each score alone,
forward and backward. An interrupted run goes on when the same command is given again.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
from driver import compare, multi30k_raw, new_parser, parse  # noqa: E402
from machine import describe_machine  # noqa: E402
from tables import markdown_table  # noqa: E402

from heedful.config import dump_toml, merge  # noqa: E402
from heedful.nn.attention.score_attention import ScoreAttention  # noqa: E402
from heedful.nn.mixer import Context, Memory  # noqa: E402
from heedful.nn.mixer_spec import ScoreAttentionSpec  # noqa: E402
from heedful.nn.positions import Positions  # noqa: E402

KEY_WIDTHS = (8, 64, 512)
HEAD_WIDTHS = (16, 64, 256)
SCORES = ("additive", "dot", "scaled dot")
BASE: dict[str, Any] = {
    "max_steps": 400,
    "model": {"width": 128, "dropout": 0.1, "share_embeddings": "all"},
    "tokenizer": {"vocabulary_size": 3000},
    "data": {"batch_tokens": 2048},
    "optimizer": {"clip_norm": 1.0},
    "schedule": {"kind": "cosine", "peak_learning_rate": 0.003, "warmup_steps": 60},
    "validation": {"every_steps": 200, "metrics": [], "choose_by": "loss"},
    "checkpoint": {"average": "none"},
}
GRU: dict[str, Any] = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "positions": "none",
    "recurrent": {"cell": "gru", "direction": "both", "feeding": "context", "readout": "maxout"},
}
TRANSFORMER: dict[str, Any] = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_heads": 2,
    "feedforward": 256,
    "norm_placement": "pre",
}


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and model of every configuration."""
    for width in KEY_WIDTHS:
        for score in SCORES:
            scale = width**-0.5 if score == "scaled dot" else 1.0
            own = {"attention": score.split()[-1], "key_width": width, "scale": scale}
            yield f"GRU, {score}, {width}", merge(GRU, {"recurrent": own})
    for width in HEAD_WIDTHS:
        for score, options in (("dot", {"attention_scale": 1.0}), ("scaled dot", {})):
            yield f"Transformer, {score}, {width}", TRANSFORMER | {"head_width": width} | options


def score_seconds(score: str, width: int, *, length: int = 32, rounds: int = 9) -> float:
    """Median seconds of attention of 32 sentences, forward and backward."""
    torch.manual_seed(1)
    scale = width**-0.5 if score == "scaled dot" else 1.0
    spec = ScoreAttentionSpec.parse({"score": score.split()[-1], "width": width, "scale": scale})
    module = ScoreAttention(128, spec)
    x, memory = (torch.randn(32, length, 128, requires_grad=True) for _ in range(2))
    positions = torch.arange(length).expand(32, -1)
    context = Context(Positions.of_self(positions), Positions(positions, positions))
    seconds = []
    for _ in range(rounds + 2):
        began = time.perf_counter()
        y, _ = module.step(x, module.read(Memory(memory, positions)), context)
        torch.autograd.grad(y.sum(), [x, memory, *module.parameters()])
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:])


def cell(found: dict[str, Any]) -> str:
    """A mean, and its interval where several seeds give one."""
    if found["low"] is None:
        return f"{found['mean']:.3f}"
    return f"{found['mean']:.3f} ({found['low']:.3f}–{found['high']:.3f})"


def markdown(rows: dict[str, dict[str, Any]], speed: dict[str, dict[int, float]]) -> str:
    """Two tables: losses, and milliseconds."""
    tables = []
    for model, scores, widths in (
        ("GRU", SCORES, KEY_WIDTHS),
        ("Transformer", SCORES[1:], HEAD_WIDTHS),
    ):
        table = [[f"{model}: loss, width of keys", *map(str, widths)]]
        for score in scores:
            found = [rows[f"{model}, {score}, {width}"] for width in widths]
            table.append([score, *map(cell, found)])
        tables.append(markdown_table(table))
    table = [["milliseconds, width of keys", *map(str, KEY_WIDTHS)]]
    table += [[k, *[f"{1000 * v[w]:.1f}" for w in KEY_WIDTHS]] for k, v in speed.items()]
    return "\n".join([*tables, markdown_table(table)])


def main() -> None:
    """Compare, then time the scores alone."""
    arguments = parse(new_parser(__doc__))
    out = arguments.results / "scores"
    run = arguments.run or Path("runs") / "scores"
    for folder in (out, run / "configs"):
        folder.mkdir(parents=True, exist_ok=True)
    configs = []
    for name, model in variants():
        configs.append(run / "configs" / f"{name.replace(', ', '-').replace(' ', '-')}.toml")
        configs[-1].write_text(dump_toml(merge(BASE, {"model": model})), encoding="utf-8")
    parts = multi30k_raw(arguments.data)
    started = datetime.now(UTC)
    words = ["compare", *map(str, configs), "--train", *parts["train"], "--valid", *parts["valid"]]
    table = compare([*words, *arguments.extra], run)
    names = [name for name, _ in variants()]
    losses = {
        name: row["scores"]["loss"] for name, row in zip(names, table["variants"], strict=True)
    }
    speed = {score: {w: score_seconds(score, w) for w in KEY_WIDTHS} for score in SCORES}
    result = {
        "benchmark": "scores",
        "command": "python benchmarks/compare/scores.py --data DIR",
        "extra": arguments.extra,
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "training": {key: table[key] for key in ("budget", "seeds", "variants")},
        "losses": losses,
        "seconds": speed,
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (out / "table.md").write_text(markdown(losses, speed), encoding="utf-8")
    print(markdown(losses, speed))


if __name__ == "__main__":
    main()
