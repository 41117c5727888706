"""Spoken digits by a vision Transformer over spectrograms: speakers mixed, and one kept aside.

    python benchmarks/sounds.py --data DIR [--seeds 1 2 3] [--aside george jackson]

DIR holds fsdd/recordings.tar.gz (or set HEEDFUL_DATA): WAV files DIGIT_SPEAKER_NUMBER.wav. With
speakers mixed, recordings 0 to 4 of each digit and speaker are the test, as the corpus asks; the
others are trained on. With a speaker aside, all of that speaker's recordings are the test. Nothing
is chosen by the tests: settings stand in benchmarks/sounds/vit.toml, and the last model is tested.
Everything goes through the `heedful` command.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driver import HERE, heedful, hide_paths, new_parser, parse, train, write_result

NAME = "sounds"
MIXED = "mixed"
HELD_OUT = 5  # first recordings of each digit and speaker


def main() -> None:
    """Unpack, train each variant, label its test recordings, write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--aside", nargs="*", help="speakers to keep aside (every one of them)")
    arguments = parse(parser)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    sounds = unpack(arguments.data / "fsdd" / "recordings.tar.gz", runs)
    speakers = sorted({speaker_of(path) for path in sounds})
    variants: list[tuple[str, int]] = [(MIXED, seed) for seed in arguments.seeds]
    aside = speakers if arguments.aside is None else arguments.aside
    variants += [(speaker, arguments.seeds[0]) for speaker in aside]
    rows: list[dict[str, Any]] = []
    for variant, seed in variants:

        def is_test(path: Path, variant: str = variant) -> bool:
            if variant == MIXED:
                return int(path.stem.split("_")[2]) < HELD_OUT
            return speaker_of(path) == variant

        run, log = runs / f"{variant}-{seed}", out / f"{variant}-{seed}.log"
        folder = training_folder(sounds, runs / f"{variant}-sounds", is_test)
        train(
            run,
            HERE / "sounds" / "vit.toml",
            {"train": [str(folder)]},
            {"task": "images", "seed": seed},
            arguments.extra,
            log,
        )
        hide_paths(log, {runs: "RUNS", arguments.data: "DIR"})
        rows.append({"variant": variant, "seed": seed, **measured(run, filter(is_test, sounds))})
        print(json.dumps(rows[-1]), flush=True)
    command = "python benchmarks/sounds.py --data DIR"
    write_result(out, command, arguments.extra, started, runs=rows)


def unpack(archive: Path, folder: Path) -> list[Path]:
    """The recordings of an archive, as files."""
    place = folder / "recordings"
    if not place.exists():
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
    return sorted(place.glob("*.wav"))


def speaker_of(path: Path) -> str:
    """The speaker in a file's name."""
    return path.stem.split("_")[1]


def training_folder(sounds: list[Path], folder: Path, is_test: Callable[[Path], bool]) -> Path:
    """A folder with a folder of links to recordings for each digit, without those of the test."""
    for path in sounds:
        if not is_test(path):
            place = folder / path.stem[0] / path.name
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                place.symlink_to(path.resolve())
    return folder


def measured(run: Path, sounds: Any) -> dict[str, Any]:
    """The share of recordings that get their digit."""
    files = [str(path) for path in sounds]
    said = heedful(["classify", str(run), *files, "--top", "1", "--json"])
    given = [json.loads(line)["labels"][0]["label"] for line in said.splitlines()]
    right = sum(Path(file).stem[0] == digit for file, digit in zip(files, given, strict=True))
    return {"recordings": len(files), "right": right, "accuracy": round(right / len(files), 4)}


if __name__ == "__main__":
    main()
