"""Train a vision Transformer on MNIST: one command, one JSON line at the end.

    python benchmarks/mnist.py --data DIR

DIR holds mnist/train-images-idx3-ubyte.gz and the other three files (or set HEEDFUL_DATA). The last
5,000 training images are validated on and not trained on; the 10,000 test images are labelled once,
at the end. The settings stand in benchmarks/mnist/vit.toml. Everything goes through the `heedful`
command.
"""

from __future__ import annotations

import argparse
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driver import HERE, heedful, hide_paths, new_parser, parse, write_curve
from machine import describe_machine

NAME = "mnist-vit"
VALID = 5_000
PIXELS = 28 * 28


def main() -> None:
    """Split, train, label the test images, write the results."""
    arguments = _parse()
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    arguments.run.parent.mkdir(parents=True, exist_ok=True)
    folder = arguments.data / "mnist"
    train, valid = split(folder, arguments.run)
    report = arguments.run.with_suffix(".report.json")
    words = ["train", str(arguments.run), "--config", str(HERE / "mnist" / "vit.toml")]
    words += ["--train", *map(str, train), "--valid", *map(str, valid)]
    heedful([*words, "--report", str(report), *arguments.extra], out / "train.log")
    names = {arguments.run: "RUN", arguments.data: "DIR"}
    hide_paths(out / "train.log", names)
    training = json.loads(report.read_text(encoding="utf-8"))
    for name in ("settings", "signatures"):
        training.pop(name, None)
    write_curve(arguments.run / "metrics.jsonl", out / "curve.csv", ("accuracy", "macro_f1"))
    result = {
        "benchmark": NAME,
        "command": "python benchmarks/mnist.py --data DIR",
        "extra": arguments.extra,
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "training_minutes": round(training["training_seconds"] / 60, 1),
        "training": training,
        "test": label_test_images(arguments.run, folder),
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


def _parse() -> argparse.Namespace:
    arguments = parse(new_parser(__doc__))
    if arguments.run is None:
        arguments.run = Path("runs") / NAME
    return arguments


def split(folder: Path, run: Path) -> tuple[list[Path], list[Path]]:
    """The training images and labels as two pairs of IDX files beside the run."""
    images = _content(folder / "train-images-idx3-ubyte.gz")
    labels = _content(folder / "train-labels-idx1-ubyte.gz")
    total = len(labels) - 8
    parts = {"train": (0, total - VALID), "valid": (total - VALID, total)}
    pairs = []
    for name, (first, last) in parts.items():
        count = (last - first).to_bytes(4, "big")
        files = [run.with_suffix(f".{name}-{kind}.idx") for kind in ("images", "labels")]
        pixels = images[16 + first * PIXELS : 16 + last * PIXELS]
        files[0].write_bytes(images[:4] + count + images[8:16] + pixels)
        files[1].write_bytes(labels[:4] + count + labels[8 + first : 8 + last])
        pairs.append(files)
    return pairs[0], pairs[1]


def label_test_images(run: Path, folder: Path) -> dict[str, Any]:
    """Label the test images and compare.

    Args:
        run: run or model directory.
        folder: of the corpus.
    """
    said = heedful(["classify", str(run), str(folder / "t10k-images-idx3-ubyte.gz"), "--json"])
    given = [json.loads(line)["labels"][0]["label"] for line in said.splitlines()]
    right = [str(label) for label in _content(folder / "t10k-labels-idx1-ubyte.gz")[8:]]
    correct = sum(ours == theirs for ours, theirs in zip(given, right, strict=True))
    return {"images": len(right), "correct": correct, "accuracy": correct / len(right)}


def _content(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes())


if __name__ == "__main__":
    main()
