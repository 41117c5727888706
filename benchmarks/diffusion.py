"""Pictures of digits drawn for captions by diffusion, and read by the model `digits`.

    python benchmarks/diffusion.py --data DIR [--task digits pictures] [--seeds 1 2 3]

DIR holds mnist/train-images-idx3-ubyte.gz and the other three files (or set HEEDFUL_DATA). `digits`
are single ones of 14 × 14 pixels amid 16 × 16, with captions such as "a seven"; `pictures` have one
or two of them in 14 × 28 pixels amid 28 × 28 (see captions.py). Pictures are drawn for captions of
the test images by several strengths of guidance and numbers of steps, doubled in size and read by
the model `digits`. Of `pictures` only captions of two digits are drawn for, as the place of a
single one is free. A sheet of samples is written as PNG. Models are trained by the `heedful`
command.
"""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from captions import (
    WORDS,
    caption_of,
    digits_of,
    doubled,
    processor_seconds,
    square_picture,
    write_pictures,
)
from driver import HERE, hide_paths, new_parser, parse, train, write_result
from PIL import Image

import heedful as library

NAME = "diffusion"
COUNTS = {
    "digits": {"train": 30_000, "valid": 1_000, "test": 1_000},
    "pictures": {"train": 60_000, "valid": 1_000, "test": 1_000},
}
"""Pictures of each part."""
DRAWN = {"digits": 250, "pictures": 250}
"""Pictures that are drawn with each setting."""
SETTINGS = [(2.0, 20), (1.0, 20), (4.0, 20), (2.0, 5)]
"""Strengths of guidance, and numbers of steps."""


def main() -> None:
    """Train each task with each seed, draw, let the drawings be read, write the results."""
    parser = new_parser(__doc__)
    tasks = list(COUNTS)
    parser.add_argument("--task", nargs="+", default=tasks, choices=tasks)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    arguments = parse(parser)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    root = arguments.run or Path("runs") / NAME
    started, runs = datetime.now(UTC), []
    for task in arguments.task:
        drawn = {"digits": single_digit, "pictures": square_picture}[task]
        files = write_pictures(arguments.data / "mnist", root / task, drawn, COUNTS[task])
        for seed in arguments.seeds:
            began, before = time.monotonic(), processor_seconds()
            run, log = root / f"{task}-{seed}", out / f"{task}-{seed}.log"
            parts = {name: [str(files[name])] for name in ("train", "valid")}
            config = HERE / NAME / f"{task}.toml"
            train(run, config, parts, {"seed": seed}, arguments.extra, log)
            if log.exists():
                hide_paths(log, {root: "RUNS", arguments.data: "DIR"})
            minutes = {
                "training_minutes": round((time.monotonic() - began) / 60, 1),
                "processor_minutes": round((processor_seconds() - before) / 60, 1),
            }
            facts = measure(run, task, files["test"])
            write_sheet(run, task, out / f"{task}-{seed}.png")
            runs.append({"task": task, "seed": seed, **minutes, **facts})
            print(json.dumps(runs[-1]), flush=True)
            # After each run, as the next one may be stopped.
            command = f"python benchmarks/{NAME}.py --data DIR"
            write_result(out, command, arguments.extra, started, runs=runs)


def single_digit(draw: random.Random, digits: Any, kinds: Any) -> dict[str, Any]:
    """Return a record of a digit at half its size, amid 16 × 16 grey values, and its caption."""
    number = draw.randrange(len(digits))
    halved = digits[number].astype(np.int64).reshape(14, 2, 14, 2).mean((1, 3)).astype(np.int64)
    return {"image": np.pad(halved, 1).tolist(), "caption": caption_of([int(kinds[number])])}


def halves_of(image: Any) -> list[Any]:
    """Return the digits of a picture, without the empty pixels around them, doubled [28, 28]."""
    image = np.asarray(image)
    margin = (image.shape[0] - 14) // 2
    rows = image[margin : margin + 14]
    columns = [rows[:, 1:15]] if image.shape[1] == 16 else np.split(rows, 2, axis=1)
    return [doubled(each) for each in columns]


def measure(run: Path, task: str, test: Path) -> dict[str, Any]:
    """Return the shares of digits and pictures that are read as asked, by setting."""
    records = [json.loads(line) for line in test.read_text(encoding="utf-8").splitlines()]
    wanted = 1 if task == "digits" else 2
    records = [r for r in records if len(digits_of(r["caption"])) == wanted][: DRAWN[task]]
    captions = [record["caption"] for record in records]
    model, results = library.load(run), []
    for guidance, steps in SETTINGS:
        began = time.monotonic()
        images = model.draw(captions, guidance=guidance, steps=steps)
        seconds = round(time.monotonic() - began, 1)
        drawn = [{"image": i, "caption": c} for i, c in zip(images, captions, strict=True)]
        setting = {"guidance": guidance, "steps": steps, "seconds": seconds}
        results.append({**setting, **read(drawn), "spread": spread_of(drawn)})
        print(json.dumps(results[-1]), flush=True)
    # The judge itself: how it reads the test pictures in the same size.
    real = {**read(records), "spread": spread_of(records)}
    return {"pictures": len(records), "drawn": results, "test": real}


def read(records: list[dict[str, Any]]) -> dict[str, float]:
    """Let the model `digits` read every digit of pictures, and compare with their captions."""
    answers = library.load("digits").classify(
        [half for each in records for half in halves_of(each["image"])]
    )
    wanted = [digit for each in records for digit in digits_of(each["caption"])]
    right = [answer[0].label == str(digit) for answer, digit in zip(answers, wanted, strict=True)]
    each_picture = np.array(right).reshape(len(records), -1).all(axis=1)
    return {"digits": sum(right) / len(right), "pictures": float(each_picture.mean())}


def spread_of(records: list[dict[str, Any]]) -> float:
    """Return the mean standard deviation of a pixel among pictures of a caption, in grey values.

    Guidance makes pictures of a caption alike; the test pictures show how much they differ.
    """
    groups: dict[str, list[Any]] = {}
    for each in records:
        groups.setdefault(each["caption"], []).append(each["image"])
    spreads = [np.std(group, axis=0).mean() for group in groups.values() if len(group) > 1]
    return round(float(np.mean(spreads)), 1)


def write_sheet(run: Path, task: str, file: Path) -> None:
    """Draw a sheet of samples: a column for each caption, a row for each of six samples."""
    pairs = [[0, 1], [2, 2], [3, 8], [4, 9], [5, 5], [7, 0], [9, 6], [8, 8]]
    kinds = [[kind] for kind in range(len(WORDS))] if task == "digits" else pairs
    captions = [caption_of(each) for each in kinds] * 6
    images = library.load(run).draw(captions, guidance=2.0, steps=20)
    margin = (images[0].shape[0] - 14) // 2
    cells = [np.pad(image[margin : margin + 14], 1) for image in images]
    rows = [np.concatenate(cells[i : i + len(kinds)], 1) for i in range(0, len(cells), len(kinds))]
    sheet = 255 - np.concatenate(rows).repeat(2, 0).repeat(2, 1)
    Image.fromarray(sheet).save(file, optimize=True)


if __name__ == "__main__":
    main()
