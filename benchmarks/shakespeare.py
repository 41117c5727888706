"""Train a language model on the characters of Shakespeare: one command, one JSON line at the end.

    python benchmarks/shakespeare.py minute --data DIR     about the time of nanoGPT's CPU recipe
    python benchmarks/shakespeare.py hour --data DIR       as well as an hour allows

DIR holds tinyshakespeare/input.txt (or set HEEDFUL_DATA). The first 90 % of the characters are
trained on, the rest is validated on, as nanoGPT does. The settings stand in
benchmarks/shakespeare/*.toml. Everything goes through the `heedful` command. With --nanogpt CLONE
nanoGPT's own scripts train by the recipe for processors in its README before, on the same machine.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driver import HERE, heedful, hide_paths, new_parser, parse
from machine import describe_machine

NANOGPT = (
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 "
    "--log_interval=100 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)
"""The recipe for a machine without a GPU in nanoGPT's README."""

PROMPTS = ("ROMEO:", "What is love?", "First Citizen:\nBefore we proceed")


def main() -> None:
    """Split the text, train, write samples and results."""
    arguments = _parse()
    started = datetime.now(UTC)
    out = arguments.results / f"shakespeare-{arguments.recipe}"
    out.mkdir(parents=True, exist_ok=True)
    arguments.run.parent.mkdir(parents=True, exist_ok=True)
    text = arguments.data / "tinyshakespeare" / "input.txt"
    peer = _nanogpt(arguments.nanogpt, text) if arguments.nanogpt else None
    train, valid = _split(text, arguments.run)
    config = HERE / "shakespeare" / f"{arguments.recipe}.toml"
    report = arguments.run.with_suffix(".report.json")
    words = ["train", str(arguments.run), "--config", str(config), "--train", str(train)]
    words += ["--valid", str(valid), "--report", str(report), *arguments.extra]
    clock = time.monotonic()
    heedful(words, out / "train.log")
    seconds = time.monotonic() - clock
    hide_paths(out / "train.log", {arguments.run: "RUN", arguments.data: "DIR"})
    samples = [_sample(arguments.run, prompt) for prompt in PROMPTS]
    result = {
        "benchmark": f"shakespeare-{arguments.recipe}",
        "command": f"python benchmarks/shakespeare.py {arguments.recipe} --data DIR",
        "extra": arguments.extra,
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "seconds": round(seconds, 1),
        "nanogpt": peer,
        "training": json.loads(report.read_text(encoding="utf-8")),
        "samples": samples,
    }
    for name in ("run", "overrides", "settings", "arguments"):
        result["training"].pop(name, None)
    (out / "result.json").write_text(
        json.dumps(result, indent=2, ensure_ascii=False).replace(str(arguments.run), "RUN") + "\n",
        encoding="utf-8",
    )
    print(json.dumps(result, ensure_ascii=False))


def _parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("recipe", choices=["minute", "hour"])
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT, to run beside")
    arguments = parse(parser)
    if arguments.run is None:
        arguments.run = Path("runs") / f"shakespeare-{arguments.recipe}"
    return arguments


def _nanogpt(clone: Path, text: Path) -> dict[str, Any]:
    """Train by nanoGPT's recipe: its seconds from start to end, and its last validation loss."""
    shutil.copyfile(text, clone / "data" / "shakespeare_char" / "input.txt")
    prepare = [sys.executable, "data/shakespeare_char/prepare.py"]
    subprocess.run(prepare, cwd=clone, check=True, stdout=subprocess.DEVNULL)
    clock = time.monotonic()
    command = [sys.executable, "train.py", *NANOGPT.split()]
    done = subprocess.run(command, cwd=clone, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.monotonic() - clock
    losses = re.findall(r"val loss ([0-9.]+)", done.stdout)
    return {"command": NANOGPT, "seconds": round(seconds, 1), "valid_loss": float(losses[-1])}


def _split(text: Path, run: Path) -> tuple[Path, Path]:
    characters = text.read_text(encoding="utf-8")
    cut = int(0.9 * len(characters))
    paths = (run.with_suffix(".train.txt"), run.with_suffix(".valid.txt"))
    for path, part in zip(paths, (characters[:cut], characters[cut:]), strict=True):
        path.write_text(part, encoding="utf-8")
    return paths


def _sample(run: Path, prompt: str) -> dict[str, str]:
    words = ["generate", str(run), "--prompt", prompt, "--max-length", "300"]
    found = heedful([*words, "--temperature", "0.8", "--seed", "1", "--json"])
    return {"prompt": prompt, "text": json.loads(found.splitlines()[0])["text"]}


if __name__ == "__main__":
    main()
