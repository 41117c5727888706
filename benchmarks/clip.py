"""Two encoders with one space for pictures of digits and their captions (CLIP, Radford 2021).

    python benchmarks/clip.py --data DIR [--seeds 1 2 3]

DIR holds mnist/train-images-idx3-ubyte.gz and the other three files (or set HEEDFUL_DATA). Half of
the pictures to train on have one or two handwritten digits at half their size, such as "a seven",
"two threes" or "a four and a nine", half a whole digit of 28 × 28 pixels. Labels are never given,
only captions. Pictures of training, validation and test are made of images of their own: all but
the last 5,000 training images, those, and the test images.

Measured are the recall of captions for 5,000 test pictures of small digits, and of pictures for
their captions; and zero-shot classification: the share of MNIST's 10,000 test images for which "a
seven" and so on is the nearest of ten captions. Everything goes through the `heedful` command.
"""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from captions import caption_of, processor_seconds, square_picture, write_pictures
from driver import HERE, heedful, hide_paths, new_parser, parse, train, write_result

from heedful.data.idx_files import read_labelled

NAME = "clip"
TRAINED = {"train": 60_000, "valid": 1_000, "test": 0}
TESTED = {"train": 0, "valid": 0, "test": 5_000}
"""Pictures of each part; those of the test have small digits only."""


def main() -> None:
    """Make the pictures, train with each seed, measure, write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parse(parser)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    mnist = arguments.data / "mnist"
    files = write_pictures(mnist, runs, mixed_picture, TRAINED)
    files["test"] = write_pictures(mnist, runs / "small", square_picture, TESTED)["test"]
    results = []
    for seed in arguments.seeds:
        began, before = time.monotonic(), processor_seconds()
        run, log = runs / f"seed-{seed}", out / f"seed-{seed}.log"
        parts = {name: [str(files[name])] for name in ("train", "valid")}
        settings = {"seed": seed, "data.cache": runs / "pictures"}
        train(run, HERE / NAME / "clip.toml", parts, settings, arguments.extra, log)
        used = processor_seconds() - before
        hide_paths(log, {runs: "RUNS", arguments.data: "DIR"})
        measured = {
            "seed": seed,
            "training_minutes": round((time.monotonic() - began) / 60, 1),
            # Without what other programs took of the processor.
            "processor_minutes": round(used / 60, 1),
            "recall": recall(run, files["test"]),
            "zero_shot": zero_shot(run, mnist),
        }
        results.append(measured)
        print(json.dumps(measured), flush=True)
    command = "python benchmarks/clip.py --data DIR"
    write_result(out, command, arguments.extra, started, runs=results)


def mixed_picture(draw: random.Random, digits: Any, kinds: Any) -> dict[str, Any]:
    """Return a record of a whole digit, or of small ones, each half of the time."""
    if draw.random() < 0.5:
        return square_picture(draw, digits, kinds)
    number = draw.randrange(len(digits))
    return {"image": digits[number].tolist(), "caption": caption_of([int(kinds[number])])}


def recall(run: Path, test: Path) -> dict[str, float]:
    """Return the recall both ways among test pictures and their captions."""
    said = json.loads(heedful(["evaluate", str(run), "--data", str(test), "--json"]))
    return {name: round(each["score"], 4) for name, each in said["scores"].items()}


def zero_shot(run: Path, mnist: Path) -> dict[str, float]:
    """Return the share of MNIST's test images whose caption is the nearest of ten."""
    images, labels = (mnist / f"t10k-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    captions = [caption_of([digit]) for digit in range(10)]
    said = heedful(["classify", str(run), str(images), "--labels", *captions, "--json"])
    nearest = [json.loads(line)["labels"][0]["label"] for line in said.splitlines()]
    _, kinds = read_labelled(images, labels)
    right = sum(captions[kind] == each for kind, each in zip(kinds, nearest, strict=True))
    return {"images": len(nearest), "accuracy": round(right / len(nearest), 4)}


if __name__ == "__main__":
    main()
