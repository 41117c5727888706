"""Bach's chorales as token sequences: nats a note by positions, on pieces that are held out.

    python benchmarks/chorales.py --data DIR [--positions sinusoidal relative_keys] [--seeds 1 2 3]

DIR holds jsb_chorales/Jsb16thSeparated.json.gz (or set HEEDFUL_DATA): four voices at every 16th
note. A token is the pitch of a voice, or silence; the voices of a moment follow each other, as in
Huang 2018. Training pieces are transposed and cut. Relative keys reach over a whole part, as in the
Music Transformer. Everything goes through the `heedful` command.
"""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driver import (
    HERE,
    heedful,
    hide_paths,
    new_parser,
    parse,
    processor_seconds,
    train,
    write_result,
)

NAME = "chorales"
SETTINGS = HERE / "chorales" / "decoder.toml"
LOWEST, HIGHEST = 30, 87
"""Range of the pitches, as MIDI numbers, with room for transposed pieces."""
SHIFTS = range(-2, 3)
"""Transpositions of the training pieces in semitones: most stay in keys that Bach used."""
STEPS = 64
"""Moments of a cut, of four tokens each: four bars of four quarters."""


def main() -> None:
    """Write the pieces, train each variant with each seed, measure, write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--positions", nargs="+", default=["sinusoidal", "relative_keys"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    arguments = parse(parser)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    files = write_pieces(arguments.data / "jsb_chorales" / "Jsb16thSeparated.json.gz", runs)
    names = {runs: "RUNS", arguments.data: "DIR"}
    rows = []
    for positions in arguments.positions:
        for seed in arguments.seeds:
            run, log = runs / f"{positions}-{seed}", out / f"{positions}-{seed}.log"
            parts = {name: [str(files[name])] for name in ("train", "valid")}
            settings = {"task": "tokens", "model.positions": positions, "seed": seed}
            if positions == "relative_keys":
                settings["model.relative-distance"] = 4 * STEPS
            before = processor_seconds()
            train(run, SETTINGS, parts, settings, arguments.extra, log)
            # None of a run that was there already.
            minutes = round((processor_seconds() - before) / 60, 1) or None
            hide_paths(log, names)
            row = {"positions": positions, "seed": seed, "processor_minutes": minutes}
            rows.append(row | measured(run, files))
            print(json.dumps(rows[-1]), flush=True)
            print(f"{continued(run, files['test'])} goes on from the first bar of a test piece")
    command = "python benchmarks/chorales.py --data DIR"
    write_result(out, command, arguments.extra, started, runs=rows)


def write_pieces(source: Path, runs: Path) -> dict[str, Path]:
    """Write the pieces of each split as records, and return the files by name.

    Args:
        source: the corpus.
        runs: folder of the runs.
    """
    splits = json.loads(gzip.decompress(source.read_bytes()))
    runs.mkdir(parents=True, exist_ok=True)
    cuts = {
        # Half a cut further each time, so that most moments are seen with a past of several
        # lengths.
        "train": [
            cut
            for piece in splits["train"]
            for shift in SHIFTS
            for cut in cuts_of(transposed(piece, shift), STEPS // 2)
        ],
        **{
            name: [cut for piece in splits[name] for cut in cuts_of(transposed(piece, 0), STEPS)]
            for name in ("valid", "test")
        },
    }
    files = {}
    for name, pieces in cuts.items():
        files[name] = runs / f"{name}.jsonl"
        lines = (json.dumps({"notes": piece}) + "\n" for piece in pieces)
        files[name].write_text("".join(lines), encoding="utf-8")
    return files


def transposed(piece: list[list[int]], shift: int) -> list[list[int]]:
    """Return a piece with its values as tokens: 0 for silence, else the pitch from the lowest on.

    Args:
        piece: MIDI pitches of the four voices at each moment; −1 is silence.
        shift: semitones.
    """
    return [[0 if p < 0 else p + shift - LOWEST + 1 for p in moment] for moment in piece]


def cuts_of(piece: list[list[int]], stride: int) -> list[list[list[int]]]:
    """Cut a piece into parts of `STEPS` moments, each `stride` after the one before."""
    firsts = range(0, max(len(piece) - (STEPS - stride), 1), stride)
    return [piece[first : first + STEPS] for first in firsts]


def measured(run: Path, files: dict[str, Path]) -> dict[str, Any]:
    """Return nats a note of the validation and test pieces."""
    scores = {}
    for name in ("valid", "test"):
        said = heedful(["evaluate", str(run), "--data", str(files[name]), "--json"])
        scores[name] = json.loads(said)["scores"]["fields"]["notes"]["nats_per_value"]
    return scores


def continued(run: Path, test: Path) -> Path:
    """Let a model go on from the first bar of a test piece, as MIDI; return the folder of the file.

    Args:
        run: run directory.
        test: records of the test pieces.
    """
    with test.open(encoding="utf-8") as file:
        bar = json.loads(file.readline())["notes"][:16]
    said = heedful(["generate", str(run), json.dumps({"notes": bar}), "--sampling", "--seed", "1"])
    # `data midi` reads MIDI pitches.
    moments = [
        [value and value + LOWEST - 1 for value in moment] for moment in json.loads(said)["notes"]
    ]
    record, out = run / "continuation.jsonl", run / "continuation"
    record.write_text(json.dumps({"notes": moments}) + "\n", encoding="utf-8")
    heedful(["data", "midi", str(record), "--out", str(out)])
    return out


if __name__ == "__main__":
    main()
