"""Train networks of images on MNIST: one command, one JSON line at the end.

    python benchmarks/mnist.py --data DIR
    python benchmarks/mnist.py --data DIR --amounts 100 1000 10000 55000 [--seeds 1 2 3]

DIR holds mnist/train-images-idx3-ubyte.gz and the other three files (or set HEEDFUL_DATA). The last
5,000 training images are validated on and not trained on; the 10,000 test images are labelled once,
at the end. Everything goes through the `heedful` command.

Without amounts one vision Transformer is trained on all images (benchmarks/mnist/vit.toml). With
amounts a smaller one and a residual network of as many parameters (small-vit.toml, resnet.toml) are
trained on the same random images of each amount, each seed with others, in equally many updates.
"""

from __future__ import annotations

import argparse
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from driver import (
    HERE,
    heedful,
    hide_paths,
    new_parser,
    parse,
    read_events,
    train,
    write_curve,
    write_result,
)
from machine import describe_machine
from tables import markdown_table, mean_cell

NAME = "mnist-vit"
BY_AMOUNT = "mnist-networks"
NETWORKS = {"ViT": "small-vit.toml", "ResNet": "resnet.toml"}
UPDATES = {100: 300, 1_000: 500, 10_000: 1_000, 55_000: 2_000}
"""Updates of 64 images for each amount: more images take longer to learn from."""
VALID = 5_000
PIXELS = 28 * 28


def main() -> None:
    """Split, train, label the test images, write the results."""
    arguments = _parse()
    if arguments.amounts:
        by_amount(arguments)
        return
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
    parser = new_parser(__doc__)
    parser.add_argument("--amounts", nargs="+", type=int, choices=UPDATES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parse(parser)
    if arguments.run is None:
        arguments.run = Path("runs") / (BY_AMOUNT if arguments.amounts else NAME)
    return arguments


def by_amount(arguments: argparse.Namespace) -> None:
    """Train both networks on each amount of images with each seed, and label the test images.

    Args:
        arguments: of the program.
    """
    started = datetime.now(UTC)
    out, runs = arguments.results / BY_AMOUNT, arguments.run
    out.mkdir(parents=True, exist_ok=True)
    runs.mkdir(parents=True, exist_ok=True)
    folder = arguments.data / "mnist"
    command = "python benchmarks/mnist.py --data DIR --amounts "
    command += " ".join(map(str, arguments.amounts))
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        for amount in arguments.amounts:
            # Drawn once for both networks.
            chosen = np.random.default_rng(seed).permutation(60_000 - VALID)[:amount]
            files = split(folder, runs / f"{amount}-{seed}", np.sort(chosen))
            parts = {"train": [*map(str, files[0])], "valid": [*map(str, files[1])]}
            for network, config in NETWORKS.items():
                name = f"{network.lower()}-{amount}-{seed}"
                settings = {"max-steps": UPDATES[amount], "seed": seed}
                # Two validations, of which the better one's weights are kept.
                every = UPDATES[amount] // 2
                settings |= {"validation.every-steps": every, "checkpoint.every-steps": every}
                log = out / f"{name}.log"
                train(runs / name, HERE / "mnist" / config, parts, settings, arguments.extra, log)
                hide_paths(log, {runs: "RUNS", arguments.data: "DIR"})
                summary = read_events(runs / name)[-1]
                row = {"network": network, "images": amount, "seed": seed}
                row |= {name: summary[name] for name in ("parameters", "seconds", "accuracy")}
                rows.append(row | {"test": label_test_images(runs / name, folder)["accuracy"]})
                print(json.dumps(rows[-1]), flush=True)
        write_result(out, command, arguments.extra, started, runs=rows)
    print(table_of(rows))


def table_of(rows: list[dict[str, Any]]) -> str:
    """A Markdown table: percent of the test images by amount and network, mean over the seeds."""
    lines = [["images", *NETWORKS]]
    for amount in dict.fromkeys(row["images"] for row in rows):
        cells = [
            [100 * row["test"] for row in rows if (row["images"], row["network"]) == (amount, name)]
            for name in NETWORKS
        ]
        lines.append([f"{amount:,}", *(mean_cell(values, 2) for values in cells)])
    return markdown_table(lines)


def split(
    folder: Path, run: Path, chosen: np.ndarray | None = None
) -> tuple[list[Path], list[Path]]:
    """The training images and labels as two pairs of IDX files beside the run.

    Args:
        folder: of the corpus.
        run: path that the names of the files begin with.
        chosen: numbers of the images to train on; all but those of validation if None.
    """
    images = _content(folder / "train-images-idx3-ubyte.gz")
    labels = _content(folder / "train-labels-idx1-ubyte.gz")
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, PIXELS)
    classes = np.frombuffer(labels, np.uint8, offset=8)
    total = len(classes)
    parts = {
        "train": np.arange(total - VALID) if chosen is None else chosen,
        "valid": np.arange(total - VALID, total),
    }
    pairs = []
    for name, numbers in parts.items():
        count = len(numbers).to_bytes(4, "big")
        files = [run.with_suffix(f".{name}-{kind}.idx") for kind in ("images", "labels")]
        files[0].write_bytes(images[:4] + count + images[8:16] + pixels[numbers].tobytes())
        files[1].write_bytes(labels[:4] + count + classes[numbers].tobytes())
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
