"""Pictures for captions, in the codes of an autoencoder (DALL-E's way; Ramesh 2021).

    python benchmarks/drawing.py --data DIR [--seeds 1 2 3]

DIR holds mnist/train-images-idx3-ubyte.gz and the other three files (or set HEEDFUL_DATA). The
pictures are those of `captions.py`, one or two handwritten digits of 14 × 14 pixels amid 28 × 28,
and so are their parts. An autoencoder learns to write them in 7 × 7 codes; a decoder learns which
codes follow a caption, and draws pictures for captions of the test pictures. The model `digits`
that comes with Heedful reads the digits of what was drawn, beside those of the test pictures and of
their reconstructions. Everything goes through the `heedful` command.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from captions import digits_of, enlarged, processor_seconds, read, square_picture, write_pictures
from driver import HERE, heedful, hide_paths, new_parser, parse, read_events, train, write_result
from PIL import Image

NAME = "drawing"
COUNTS = {"train": 20_000, "valid": 300, "test": 1_000}
"""Pictures of each part."""
DRAWN = 300
"""Pictures that are drawn."""
TEMPERATURES = (1.0, 0.7)
COMMAND = "python benchmarks/drawing.py --data DIR --seeds"


def main() -> None:
    """Train the autoencoder once and a decoder with each seed, draw, and write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    arguments = parse(parser)
    started, out = datetime.now(UTC), arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    files = write_pictures(arguments.data / "mnist", runs, square_picture, COUNTS)
    names = {runs: "RUNS", arguments.data: "DIR"}
    codes, facts = runs / "codes", dict[str, Any]()
    facts["autoencoder"] = trained(codes, "codes", files, 1, arguments.extra, out, names)
    records = {name: runs / f"{name}-codes.jsonl" for name in files}
    for name, file in records.items():
        if not file.exists():
            heedful(["data", "codes", str(codes), str(files[name]), "--out", str(file)])
    # The place of a single digit is free, so captions of two are drawn for.
    known = [each for each in lines_of(files["test"]) if is_pair(each)][:DRAWN]
    coded = [each for each in lines_of(records["test"]) if is_pair(each)][:DRAWN]
    shown = {"test": known, "reconstructed": decoded(codes, coded, runs / "reconstructed")}
    facts["read"] = {name: judged(each) for name, each in shown.items()}
    facts["runs"] = []
    for seed in arguments.seeds:
        run = runs / f"draw-{seed}"
        result = {"seed": seed, **trained(run, "draw", records, seed, arguments.extra, out, names)}
        for heat in TEMPERATURES:
            drawn = sampled(run, [each["caption"] for each in known], heat)
            pictures = decoded(codes, drawn, runs / f"drawn-{seed}-{round(100 * heat)}")
            result[f"drawn at {heat}"] = judged(pictures)
            shown[f"drawn at {heat}"] = pictures
        facts["runs"].append(result)
        print(json.dumps(result), flush=True)
    write_samples(out / "samples.svg", shown)
    seeds = " ".join(map(str, arguments.seeds))
    write_result(out, f"{COMMAND} {seeds}", arguments.extra, started, **facts)


def trained(
    run: Path,
    name: str,
    files: dict[str, Path],
    seed: int,
    extra: Sequence[str],
    out: Path,
    names: dict[Path, str],
) -> dict[str, Any]:
    """Train a model by its settings; return its last scores and the minutes it took."""
    began, before = time.monotonic(), processor_seconds()
    log = out / f"{run.name}.log"
    parts = {part: [str(files[part])] for part in ("train", "valid")}
    train(run, HERE / NAME / f"{name}.toml", parts, {"seed": seed}, extra, log)
    minutes = (time.monotonic() - began) / 60
    if log.exists():
        hide_paths(log, names)
    last = [each for each in read_events(run) if each.get("event") == "validation"][-1]
    return {
        "minutes": round(minutes, 1),
        # Without what other programs took of the processor.
        "processor_minutes": round((processor_seconds() - before) / 60, 1),
        "validation": {k: v for k, v in last.items() if k != "event"},
    }


def sampled(run: Path, captions: Sequence[str], temperature: float) -> list[dict[str, Any]]:
    """Return records of codes that a decoder samples for captions."""
    asked = run.parent / f"{run.name}-asked.jsonl"
    asked.write_text("".join(json.dumps({"caption": each}) + "\n" for each in captions))
    flags = ["--sampling", "--temperature", str(temperature), "--seed", "1"]
    said = heedful(["generate", str(run), "-i", str(asked), *flags])
    return [json.loads(line) for line in said.splitlines()]


def decoded(codes: Path, records: Sequence[dict[str, Any]], place: Path) -> list[dict[str, Any]]:
    """Return records with the pictures of codes."""
    given, made = place.with_suffix(".codes.jsonl"), place.with_suffix(".pictures.jsonl")
    given.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    made.unlink(missing_ok=True)
    heedful(["data", "pictures", str(codes), str(given), "--out", str(made)])
    return lines_of(made)


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the records of a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def is_pair(record: dict[str, Any]) -> bool:
    """Return True for a picture of two digits."""
    return len(digits_of(record["caption"])) == 2


def middle(record: dict[str, Any]) -> Any:
    """Return the 14 rows of a picture that may have digits [14, 28]."""
    return np.array(record["image"], float)[7:21]


def judged(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the shares of digits and of pictures that are read as their captions say."""
    pictures = [enlarged(middle(each)) for each in records]
    return read(pictures, [each["caption"] for each in records])


def write_samples(file: Path, shown: dict[str, list[dict[str, Any]]], count: int = 12) -> None:
    """Write the first pictures of each way, a row each, below their captions."""
    width, height, left, top = 84, 42, 120, 40
    captions = [each["caption"].replace(" and ", "\n") for each in shown["test"][:count]]
    parts = [
        f'<text x="{left + number * (width + 4) + width / 2}" y="{14 + 14 * line}" '
        f'text-anchor="middle">{text}</text>'
        for number, caption in enumerate(captions)
        for line, text in enumerate(caption.split("\n"))
    ]
    for row, (name, records) in enumerate(shown.items()):
        place = top + row * (height + 4)
        parts.append(f'<text x="0" y="{place + height / 2}">{name}</text>')
        for number, record in enumerate(records[:count]):
            held = io.BytesIO()
            Image.fromarray(255 - middle(record).astype(np.uint8)).save(held, "png")
            data = base64.b64encode(held.getvalue()).decode("ascii")
            parts.append(
                f'<image x="{left + number * (width + 4)}" y="{place}" width="{width}" '
                f'height="{height}" href="data:image/png;base64,{data}"/>'
            )
    sizes = left + count * (width + 4), top + len(shown) * (height + 4)
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {sizes[0]} {sizes[1]}" '
        f'width="{sizes[0]}" height="{sizes[1]}" font-family="sans-serif" font-size="11">\n'
        + "\n".join(parts)
        + "\n</svg>\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
