"""Strings of spoken digits to text, by an encoder-decoder and by CTC: word error rates.

    python benchmarks/strings.py --data DIR [--ways decoder ctc] [--seeds 1 2 3] [--aside george]

DIR holds fsdd/recordings.tar.gz (or set HEEDFUL_DATA). A string is two to five recordings of one
speaker, joined with silences of 20 to 200 ms under noise 35 to 50 dB below the loudest sample. With
speakers mixed, strings of the test are made of recordings 0 to 4 of each digit and speaker, as the
corpus asks; strings of validation, by which settings were chosen, of 5 to 9; those of training of
the others, faster or slower by up to 15 %. With a speaker aside, strings of that speaker's
recordings are the test, and training has none of them. Answers are written greedily, and by a beam
of eight.
"""

from __future__ import annotations

import json
import wave
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from driver import HERE, hide_paths, new_parser, parse, train, write_result
from sounds import MIXED, speaker_of, unpack

from heedful.apps.evaluation.record_likelihood import answer_scores, read_records
from heedful.data.corpus_spec import CorpusSpec
from heedful.pipelines.any_pipeline import load_generator

NAME = "strings"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COUNTS = {"train": 10_000, "valid": 300, "test": 1_000}
"""Strings of each part."""
RATE = 8000


def main() -> None:
    """Make the strings, train each way with each seed, measure, write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--ways", nargs="+", default=["decoder", "ctc"], choices=["decoder", "ctc"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--aside", nargs="*", default=["george"], help="speakers to keep aside")
    arguments = parse(parser)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    recordings = unpack(arguments.data / "fsdd" / "recordings.tar.gz", runs)
    # Seeds are of training: the strings are the same in all runs of a variant.
    variants = [(MIXED, seed) for seed in arguments.seeds]
    variants += [(speaker, arguments.seeds[0]) for speaker in arguments.aside]
    rows: list[dict[str, Any]] = []
    for variant, seed in variants:
        files = write_strings(recordings, variant, runs / f"{variant}-strings")
        for way in arguments.ways:
            run, log = runs / f"{way}-{variant}-{seed}", out / f"{way}-{variant}-{seed}.log"
            parts = {name: [str(files[name])] for name in ("train", "valid")}
            settings = HERE / NAME / f"{way}.toml"
            own = {"seed": seed, "data.cache": runs / "cache"}  # sounds are read once for all runs
            train(run, settings, parts, own, arguments.extra, log)
            hide_paths(log, {runs: "RUNS", arguments.data: "DIR"})
            found = {
                "greedy": measured(run, files["test"]),
                "beam": measured(run, files["test"], 8),
            }
            rows.append({"way": way, "variant": variant, "seed": seed, **found})
            print(json.dumps(rows[-1]), flush=True)
    command = "python benchmarks/strings.py --data DIR"
    write_result(out, command, arguments.extra, started, runs=rows)


def measured(run: Path, test: Path, beam: int = 1) -> dict[str, float]:
    """Return the word error rate of strings, and the share that is exact."""
    pipeline = load_generator(run)
    strings = read_records(pipeline, CorpusSpec(file=str(test)))
    scores = answer_scores(pipeline, strings, beam)
    return {name: round(each["text"], 4) for name, each in scores.items()}


def write_strings(recordings: Sequence[Path], variant: str, folder: Path) -> dict[str, Path]:
    """Write the strings of each part, and return the files that list them by name.

    Args:
        recordings: all recordings.
        variant: `mixed`, or the speaker who is kept aside.
        folder: folder of the strings.
    """
    files = {name: folder / f"{name}.jsonl" for name in COUNTS}
    for number, (name, count) in enumerate(COUNTS.items()):
        if files[name].exists():
            continue
        draw = np.random.default_rng([number, *variant.encode()])
        chosen: dict[str, dict[int, list[Any]]] = {}
        for path in recordings:
            if part_of(path, variant) == name:
                digits = chosen.setdefault(speaker_of(path), {})
                digits.setdefault(int(path.stem[0]), []).append(samples_of(path))
        (folder / name).mkdir(parents=True, exist_ok=True)
        lines = []
        for each in range(count):
            speaker = draw.choice(sorted(chosen))
            digits = draw.integers(10, size=draw.integers(2, 6))
            parts = [(found := chosen[speaker][int(d)])[draw.integers(len(found))] for d in digits]
            sound = joined(parts, draw, changed=name == "train")
            place = folder / name / f"{each}.wav"
            write_sound(place, sound)
            text = " ".join(WORDS[digit] for digit in digits)
            lines.append(json.dumps({"sound": f"{name}/{place.name}", "text": text}) + "\n")
        files[name].write_text("".join(lines), encoding="utf-8")
    return files


def part_of(path: Path, variant: str) -> str:
    """Return the part that a recording belongs to: train, valid, test or none of them."""
    number = int(path.stem.split("_")[2])
    if variant == MIXED:
        return "test" if number < 5 else "valid" if number < 10 else "train"
    if speaker_of(path) == variant:
        return "test"
    return "valid" if 5 <= number < 10 else "train"


def samples_of(path: Path) -> Any:
    """Return the samples of a recording, the loudest of them 1."""
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getsampwidth()) == (RATE, 2)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float64)
    return samples / np.abs(samples).max()


def joined(parts: Sequence[Any], draw: np.random.Generator, *, changed: bool) -> Any:
    """Join recordings with silences, under noise.

    Args:
        parts: samples of the recordings.
        draw: random numbers.
        changed: flag that the speed of each recording is changed, as in training.
    """
    pieces = [np.zeros(int(RATE * draw.uniform(0.02, 0.1)))]
    for part in parts:
        if changed:
            speed = draw.uniform(0.85, 1.15)
            part = np.interp(np.arange(0, len(part) - 1, speed), np.arange(len(part)), part)
        pieces += [part * draw.uniform(0.5, 1), np.zeros(int(RATE * draw.uniform(0.02, 0.2)))]
    whole = np.concatenate(pieces)
    return whole + draw.normal(0, 10 ** (-draw.uniform(35, 50) / 20), len(whole))


def write_sound(path: Path, samples: Any) -> None:
    """Write samples between −1 and 1 as a WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(samples * 0.9, -1, 1) * 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    main()
