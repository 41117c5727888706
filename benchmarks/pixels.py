"""Handwritten digits as sequences of pixels: bits a pixel by what a pixel sees.

    python benchmarks/pixels.py --data DIR [--side 14] [--levels 8] [--seeds 1 2 3]

DIR holds mnist/train-images-idx3-ubyte.gz and the other three files (or set HEEDFUL_DATA). Trained
on are the first 4,000 training images, validated on the last 500, and measured on the first 1,000
test images. A pixel sees all before it, a window of them in one dimension, a window in two
(Image Transformer; Parmar 2018), or convolutions over the rows above and the pixels to the left
(PixelCNN; van den Oord 2016). Both windows hold equally many pixels; all models have about the same
number of parameters and equally many updates. The models of the first seed complete the upper
halves of test images in completions.svg. Everything goes through the `heedful` command.
"""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from driver import (
    HERE,
    heedful,
    hide_paths,
    new_parser,
    parse,
    processor_seconds,
    read_events,
    train,
    write_result,
)
from tables import markdown_table, mean_cell

from heedful.data.corpus_spec import RecordSpec
from heedful.data.record_files import ImageRecords

NAME = "pixels"
SETTINGS = HERE / "pixels" / "decoder.toml"
TITLES = {
    "full": "attention to all pixels before",
    "line": "attention, window in one dimension",
    "square": "attention, window in two dimensions",
    "convolution": "convolutions, 5 × 5",
}
PARTS = {
    "train": ("train", 0, 4_000),
    "valid": ("train", 59_500, 60_000),
    "test": ("t10k", 0, 1_000),
}
"""File, first image and end of each part."""
DRAWN = 10
"""Test images whose lower halves are completed."""
CELL, GAP, LABEL = 5, 8, 250
"""Pixels of the picture: a pixel of an image, the space between images, and that for titles."""


def main() -> None:
    """Train each variant with each seed, measure, draw, write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--side", type=int, default=14)
    parser.add_argument("--levels", type=int, default=8)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--variants", nargs="+", default=list(TITLES), choices=list(TITLES))
    arguments = parse(parser)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    files = write_images(arguments.data / "mnist", runs)
    names = {runs: "RUNS", arguments.data: "DIR"}
    rows = []
    # Seed by seed, so that a run that is stopped has compared all variants.
    for seed in arguments.seeds:
        for variant in arguments.variants:
            run, log = runs / f"{variant}-{seed}", out / f"{variant}-{seed}.log"
            parts = {name: [str(files[name])] for name in ("train", "valid")}
            settings = settings_of(variant, arguments.side, arguments.levels) | {"seed": seed}
            found = run / "measured.json"
            if not found.exists():
                before = processor_seconds()
                train(run, SETTINGS, parts, settings, arguments.extra, log)
                hide_paths(log, names)
                values = measured(run, files["test"], processor_seconds() - before)
                found.write_text(json.dumps(values), encoding="utf-8")
            values = json.loads(found.read_text(encoding="utf-8"))
            rows.append({"variant": variant, "seed": seed, **values})
            print(json.dumps(rows[-1]), flush=True)
    command = "python benchmarks/pixels.py --data DIR"
    sizes = {"side": arguments.side, "levels": arguments.levels}
    write_result(out, command, arguments.extra, started, **sizes, runs=rows)
    (out / "table.md").write_text(table(rows), encoding="utf-8")
    spec = RecordSpec(levels=arguments.levels, size=arguments.side)
    records = islice(ImageRecords(files["test"], spec).records(), DRAWN)
    digits = [record["pixels"] for _, record in records]
    drawn = {
        TITLES[each]: completed(runs / f"{each}-{arguments.seeds[0]}", digits)
        for each in arguments.variants
    }
    picture = draw({"test images": digits} | drawn, arguments.side, arguments.levels)
    (out / "completions.svg").write_text(picture, encoding="utf-8")


def write_images(mnist: Path, runs: Path) -> dict[str, Path]:
    """Write the images of each part as an IDX file of its own, and return the files by name.

    Args:
        mnist: folder of the corpus.
        runs: folder of the runs.
    """
    runs.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, (source, first, end) in PARTS.items():
        data = gzip.decompress((mnist / f"{source}-images-idx3-ubyte.gz").read_bytes())
        size = int.from_bytes(data[8:12], "big") * int.from_bytes(data[12:16], "big")
        pixels = data[16 + first * size : 16 + end * size]
        files[name] = runs / f"{name}-images.idx"
        files[name].write_bytes(data[:4] + (end - first).to_bytes(4, "big") + data[8:16] + pixels)
    return files


def settings_of(variant: str, side: int, levels: int) -> dict[str, Any]:
    """Return the settings of a variant.

    Args:
        variant: what a pixel sees.
        side: rows and columns of an image.
        levels: grey levels.
    """
    images = {
        "task": "tokens",
        "tokens.reader": "images",
        "tokens.levels": levels,
        "tokens.size": side,
        "tokens.fields": f"pixels:{levels}:{side}x{side}",
    }
    # Three rows above and three columns to both sides hold 3 · 7 + 3 pixels, and the pixel itself.
    near = 4
    seen = (near - 1) * (2 * near - 1) + near
    blocks = {
        "model.width": 96,
        "model.num-heads": 6,
        "model.feedforward": 384,
        "model.norm-placement": "pre",
    }
    return (
        images
        | {
            "full": blocks,
            "line": {**blocks, "model.window": seen},
            "square": {**blocks, "model.mask": f"window_2d({side},{near},{near},1)"},
            # Two rows more above with every layer: eight in all.
            "convolution": {
                "model.width": 64,
                "model.convolution.kernel-width": 5,
                "model.convolution.columns": side,
                "model.convolution.first": 1,
            },
        }[variant]
    )


def measured(run: Path, test: Path, seconds: float) -> dict[str, Any]:
    """Return the bits a pixel of the test images, the parameters, and the time.

    Args:
        run: run directory.
        test: test images.
        seconds: processor time of the run, which other programs hardly change.
    """
    said = json.loads(heedful(["evaluate", str(run), "--data", str(test), "--json"]))
    summary = read_events(run)[-1]
    return {
        "bits": said["scores"]["bits_per_value"],
        "parameters": summary["parameters"],
        "updates": summary["steps"],
        "run_seconds": round(seconds, 1),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return what came out as a table: means over seeds, with 95 % intervals."""
    lines = [["what a pixel sees", "parameters", "bits a pixel", "a run"]]
    for variant, title in TITLES.items():
        own = [row for row in rows if row["variant"] == variant]
        if own:
            cells = [f"{own[0]['parameters']:,}", mean_cell([row["bits"] for row in own], 3)]
            cells.append(f"{mean_cell([row['run_seconds'] for row in own], 0)} s")
            lines.append([title, *cells])
    return markdown_table(lines)


def completed(run: Path, digits: list[list[list[int]]]) -> list[list[list[int]]]:
    """Return images whose upper halves are given and whose lower ones a model samples.

    Args:
        run: run directory.
        digits: images [N, side, side] of grey levels.
    """
    asked = run / "halves.jsonl"
    halves = [json.dumps({"pixels": image[: len(image) // 2]}) + "\n" for image in digits]
    asked.write_text("".join(halves), encoding="utf-8")
    said = heedful(["generate", str(run), "-i", str(asked), "--sampling", "--seed", "1"])
    return [json.loads(line)["pixels"] for line in said.splitlines()]


def draw(images: dict[str, list[list[list[int]]]], side: int, levels: int) -> str:
    """Return a picture (SVG) with a row of images for each title, dark on white.

    Args:
        images: images [N, side, side] of grey levels by title; the halves of the first row are
            those that were given to the others.
        side: rows and columns of an image.
        levels: grey levels.
    """
    step = side * CELL + GAP
    width, height = LABEL + step * max(map(len, images.values())), GAP + step * len(images)
    parts = [f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for row, (title, several) in enumerate(images.items()):
        top = GAP + row * step
        parts.append(f'<text x="{GAP}" y="{top + step // 2}">{title}</text>')
        for column, image in enumerate(several):
            left = LABEL + column * step
            # What the model did not write stands on blue.
            given = side if row == 0 else side // 2
            size = f'width="{side * CELL}" height="{{}}"'
            parts.append(f'<rect x="{left}" y="{top}" {size.format(side * CELL)} fill="#eee"/>')
            parts.append(f'<rect x="{left}" y="{top}" {size.format(given * CELL)} fill="#cde"/>')
            parts += [
                f'<path d="{path}" fill-opacity="{level / (levels - 1):.2f}"/>'
                for level in range(1, levels)
                if (path := _cells(image, level, left, top))
            ]
    font = 'font-family="sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {font}>'
    return head + "".join(parts) + "</svg>\n"


def _cells(image: list[list[int]], level: int, left: int, top: int) -> str:
    """Return a path around the pixels of a level, those of a row that touch together."""
    path = ""
    for y, values in enumerate(image):
        x = 0
        for value, group in groupby(values):
            length = len(list(group))
            if value == level:
                path += (
                    f"M{left + x * CELL} {top + y * CELL}h{length * CELL}v{CELL}h-{length * CELL}z"
                )
            x += length
    return path


if __name__ == "__main__":
    main()
