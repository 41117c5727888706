"""Captions of pictures of digits, read by an encoder and written by a decoder; or the other way.

    python benchmarks/captions.py --data DIR [--task captions pictures] [--seeds 1 2 3]

DIR holds mnist/train-images-idx3-ubyte.gz and the other three files (or set HEEDFUL_DATA). A
picture has one or two digits, such as "a seven", "two threes" or "a four and a nine", in 14 × 28
pixels of four grey levels; a token is a patch of 2 × 2 pixels, one of 4⁴ = 256. Pictures of
training, validation and test are made of images of their own: all but the last 5,000 training
images, those, and the test images.

`captions` writes captions of the test pictures greedily and counts those that are exact. `pictures`
samples pictures for the captions of the test pictures; the model `digits` that comes with Heedful
reads the digits of what was drawn. Everything goes through the `heedful` command.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from driver import HERE, heedful, hide_paths, new_parser, parse, processor_seconds, train
from machine import describe_machine
from mnist import split

import heedful as library
from heedful.data.idx_files import read_labelled

NAME = "captions"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COUNTS = {"train": 100_000, "valid": 1_000, "test": 5_000}
"""Pictures of each part."""
LEVELS = 4
"""Grey levels of a pixel."""
DRAWN = 500
"""Pictures that are drawn for captions of the test pictures."""


def main() -> None:
    """Make the pictures, train each way with each seed, measure, write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--task", nargs="+", default=["captions"], choices=["captions", "pictures"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    arguments = parse(parser)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    files = write_pictures(arguments.data / "mnist", runs)
    names = {runs: "RUNS", arguments.data: "DIR"}
    for task in arguments.task:
        for seed in arguments.seeds:
            started, began, before = datetime.now(UTC), time.monotonic(), processor_seconds()
            run, log = runs / f"{task}-{seed}", out / f"{task}-{seed}.log"
            parts = {name: [str(files[name])] for name in ("train", "valid")}
            settings = {"seed": seed}
            train(run, HERE / NAME / f"{task}.toml", parts, settings, arguments.extra, log)
            minutes = (time.monotonic() - began) / 60
            # Without what other programs took of the processor.
            used = (processor_seconds() - before) / 60
            hide_paths(log, names)
            measured = exact_captions if task == "captions" else right_pictures
            result = {
                "benchmark": NAME,
                "command": f"python benchmarks/captions.py --data DIR --task {task}",
                "extra": arguments.extra,
                "started": started.isoformat(timespec="seconds"),
                "machine": describe_machine(),
                "seed": seed,
                "training_minutes": round(minutes, 1),
                "processor_minutes": round(used, 1),
                "test": measured(run, files["test"]),
            }
            text = json.dumps(result, indent=2) + "\n"
            (out / f"{task}-{seed}.json").write_text(text, encoding="utf-8")
            print(json.dumps(result), flush=True)


def picture(draw: random.Random, digits: Any, kinds: Any) -> dict[str, Any]:
    """Return a record of the patches of a canvas and its caption; see `drawn_canvas`."""
    canvas, caption = drawn_canvas(draw, digits, kinds)
    return {"image": patches(canvas), "caption": caption}


def square_picture(draw: random.Random, digits: Any, kinds: Any) -> dict[str, Any]:
    """Return a record of a canvas at half its size, amid 28 × 28 grey values, and its caption."""
    canvas, caption = drawn_canvas(draw, digits, kinds)
    halved = canvas.reshape(14, 2, 28, 2).mean((1, 3)).astype(np.int64)
    return {"image": np.pad(halved, ((7, 7), (0, 0))).tolist(), "caption": caption}


def drawn_canvas(draw: random.Random, digits: Any, kinds: Any) -> tuple[Any, str]:
    """Return a canvas of one digit at any place, of two equal ones, or of two that differ.

    Args:
        draw: random numbers.
        digits: images [N, 28, 28] uint8.
        kinds: digit of each [N].

    Returns:
        Grey values [28, 56], and their caption.
    """
    canvas = np.zeros((28, 56), np.int64)
    form = draw.choice(("one", "equal", "different"))
    first = second = draw.randrange(len(digits))
    if form == "one":
        place = draw.randrange(29)
        canvas[:, place : place + 28] = digits[first]
        return canvas, caption_of([int(kinds[first])])
    while first == second or (kinds[first] == kinds[second]) is (form == "different"):
        second = draw.randrange(len(digits))
    canvas[:, :28], canvas[:, 28:] = digits[first], digits[second]
    return canvas, caption_of([int(kinds[i]) for i in (first, second)])


def caption_of(kinds: list[int]) -> str:
    """Return the caption of one digit or of two."""
    if len(kinds) == 2 and kinds[0] == kinds[1]:
        return f"two {WORDS[kinds[0]]}{'es' if kinds[0] == 6 else 's'}"
    return " and ".join(f"{'an' if kind == 8 else 'a'} {WORDS[kind]}" for kind in kinds)


def write_pictures(
    mnist: Path,
    runs: Path,
    drawn: Callable[[random.Random, Any, Any], dict[str, Any]] = picture,
    counts: Mapping[str, int] = COUNTS,
) -> dict[str, Path]:
    """Write the pictures of each part as records, and return the files by name.

    Args:
        mnist: folder of the images.
        runs: folder of the runs.
        drawn: maker of a record, `picture` or `square_picture`.
        counts: pictures of each part.
    """
    runs.mkdir(parents=True, exist_ok=True)
    test = [mnist / f"t10k-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    parts = dict(zip(counts, (*split(mnist, runs / "digits"), test), strict=True))
    files = {name: runs / f"{name}.jsonl" for name in parts}
    for number, (name, (images, labels)) in enumerate(parts.items()):
        if files[name].exists():
            continue
        digits, kinds = read_labelled(images, labels)
        draw = random.Random(number)
        with files[name].open("w", encoding="utf-8") as file:
            for _ in range(counts[name]):
                file.write(json.dumps(drawn(draw, digits, kinds)) + "\n")
    return files


def patches(canvas: Any) -> list[list[int]]:
    """Return grey values [28, 56] as patches [7, 14] of 2 × 2 pixels, each of the mean of four."""
    means = canvas.reshape(14, 2, 28, 2).mean((1, 3))
    levels = (means * LEVELS // 256).astype(np.int64).reshape(7, 2, 14, 2)
    places = LEVELS ** np.arange(4).reshape(2, 2)
    return (levels * places[None, :, None, :]).sum((1, 3)).tolist()


def pixels_of(image: list[list[int]]) -> Any:
    """Return patches [7, 14] as grey values [28, 56] uint8."""
    places = LEVELS ** np.arange(4).reshape(2, 2)
    levels = np.array(image)[:, None, :, None] // places[None, :, None, :] % LEVELS
    # The middle of a level's values, stretched so that the lightest is white.
    grey = np.where(levels > 0, (2 * levels + 1) * 255 / (2 * LEVELS - 1), 0)
    return enlarged(grey.reshape(14, 28))


def enlarged(grey: Any) -> Any:
    """Return grey values at twice their height and width, smooth between their pixels, uint8."""
    for axis, size in enumerate(grey.shape):
        # Three quarters of the pixel that a half lies in, one quarter of the next one beyond it.
        side = np.clip(np.arange(2 * size) // 2 + np.tile([-1, 1], size), 0, size - 1)
        grey = 0.75 * grey.repeat(2, axis) + 0.25 * grey.take(side, axis)
    return grey.astype(np.uint8)


def exact_captions(run: Path, test: Path) -> dict[str, Any]:
    """Return the share of test pictures whose caption is exact, and the nats of a caption."""
    said = json.loads(heedful(["evaluate", str(run), "--data", str(test), "--json"]))
    scores = said["scores"]
    return {
        "pictures": said["records"],
        "exact": scores["exact"]["caption"],
        "nats_per_record": scores["nats_per_record"],
    }


def right_pictures(run: Path, test: Path) -> dict[str, Any]:
    """Return the shares of digits and of pictures that the model `digits` reads as their captions.

    Only captions of two digits are drawn for, as the place of a single one is free. The same is
    measured of the test pictures themselves, as no picture of so few levels is read better.
    """
    records = [json.loads(line) for line in test.read_text(encoding="utf-8").splitlines()]
    records = [record for record in records if len(digits_of(record["caption"])) == 2][:DRAWN]
    asked = run.parent / f"{run.name}-asked.jsonl"
    lines = (json.dumps({"caption": record["caption"]}) + "\n" for record in records)
    asked.write_text("".join(lines), encoding="utf-8")
    said = heedful(["generate", str(run), "-i", str(asked), "--sampling"])
    drawn = [json.loads(line) for line in said.splitlines()]
    parts = {"drawn": drawn, "test": records}
    shares = {
        name: read([pixels_of(each["image"]) for each in part], [each["caption"] for each in part])
        for name, part in parts.items()
    }
    return {"pictures": len(drawn), **shares}


def digits_of(caption: str) -> list[int]:
    """Return the digits that a caption names."""
    first, *others = caption.replace(" and", "").split()
    if first == "two":
        return [WORDS.index(others[0].removesuffix("es" if others[0] == "sixes" else "s"))] * 2
    return [WORDS.index(word) for word in others if word in WORDS]


def read(pictures: Sequence[Any], captions: Sequence[str]) -> dict[str, float]:
    """Let the model `digits` read both halves of pictures [28, 56], and compare with captions."""
    halves = [half for each in pictures for half in np.split(each, 2, axis=1)]
    answers = library.load("digits").classify(halves)
    wanted = [digit for each in captions for digit in digits_of(each)]
    right = [answer[0].label == str(digit) for answer, digit in zip(answers, wanted, strict=True)]
    both = [left and other for left, other in zip(right[::2], right[1::2], strict=True)]
    return {"digits": sum(right) / len(right), "pictures": sum(both) / len(both)}


if __name__ == "__main__":
    main()
