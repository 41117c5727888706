"""Make a model at hand of token sequences, that is of pixels, music, acts or series: one command.

    python benchmarks/pretrained/records.py NAME --data DIR

NAME is digit-pixels, bach-chorales, room-actor, coin-player or seasonal-series. DIR holds
mnist/train-images-idx3-ubyte.gz and the other three files, and
jsb_chorales/Jsb16thSeparated.json.gz (or set HEEDFUL_DATA); the last three models are trained on
records that are drawn. What a model is measured with, it was not trained on, and the measured model
is the one that is stored. The settings stand in NAME.toml. --finish publishes a run as it is.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import forecast  # noqa: E402 (scripts of the folder above)
import mnist  # noqa: E402
import numpy as np  # noqa: E402
from driver import heedful, new_parser, parse, read_events  # noqa: E402
from publish import store, write_card  # noqa: E402

from heedful.apps.acting import coins, rooms  # noqa: E402
from heedful.apps.studio.pages.everywhere_page import read_tunes  # noqa: E402
from heedful.apps.studio.pages.image_page import example_image  # noqa: E402
from heedful.data.corpus_spec import RecordSpec  # noqa: E402
from heedful.data.series_files import bins_of, scale_of  # noqa: E402

Files = dict[str, Path]
"""Files of a corpus by part: train, valid and test; and `test` of what is drawn may be missing."""

Score = dict[str, Any]

TESTED = 1000
"""Test images of MNIST that the model of pixels is measured with."""
PITCHES = range(36, 85)
"""Pitches of the pieces, transposed ones as well: from two octaves below the middle C."""
SHIFTS = range(-3, 4)
VOICES = 4
MOMENTS = 64
"""Moments of a part of a piece, of an eighth each: eight bars."""
OPENING = 16
"""Moments of an example's beginning: two bars."""
EPISODES = {"rooms": 40000, "coins": 3000}
SEEDS = {"rooms": (0, 9), "coins": (1, 2)}
"""Seeds of the episodes that are trained on, and of those that are validated on."""


@dataclass(frozen=True)
class Kind:
    """A model at hand of token sequences.

    Args:
        corpus: writer of the files, from the folder of the data and a place for them.
        scores: measures of the stored model, from its directory and the files.
        facts: fields of its card, but for scores, examples and the circumstances of training.
        examples: pairs of a record, or the beginning of one, and a remark.
    """

    corpus: Callable[[Path, Path], Files]
    scores: Callable[[Path, Files], list[Score]]
    facts: dict[str, Any]
    examples: Callable[[], list[tuple[dict[str, Any], str]]]


def main() -> None:
    """Train, store, measure, write the card."""
    parser = new_parser(__doc__)
    parser.add_argument("name", choices=[*KINDS])
    parser.add_argument("--finish", action="store_true", help="publish a run as it is")
    arguments = parse(parser)
    name, kind = arguments.name, KINDS[arguments.name]
    run = arguments.run or Path("runs") / name
    run.parent.mkdir(parents=True, exist_ok=True)
    files = kind.corpus(arguments.data, run)
    if not arguments.finish:
        settings = HERE / f"{name.replace('-', '_')}.toml"
        words = ["train", str(run), "--config", str(settings)]
        words += ["--train", str(files["train"]), "--valid", str(files["valid"])]
        heedful([*words, *arguments.extra])
    place = store(run, name)
    scores = kind.scores(place, files)
    card = {
        "task": "tokens",
        **kind.facts,
        "command": f"python benchmarks/pretrained/records.py {name} --data DIR",
        "scores": scores,
        "examples": [
            {"text": json.dumps(record), "about": about} for record, about in kind.examples()
        ],
    }
    seconds = [event for event in read_events(run) if event.get("event") == "summary"][-1]
    write_card(place, card, minutes=seconds["seconds"] / 60)
    print(json.dumps({"model": name, "scores": scores}))


# Pixels


def _digits(data: Path, run: Path) -> Files:
    (train, _), (valid, _) = mnist.split(data / "mnist", run)
    pair = []
    for kind, head in (("images-idx3", 16), ("labels-idx1", 8)):
        content = gzip.decompress((data / "mnist" / f"t10k-{kind}-ubyte.gz").read_bytes())
        # The first ones, whose number stands after the four bytes of the kind.
        size = (len(content) - head) // int.from_bytes(content[4:8], "big")
        path = run.with_suffix(f".test-{kind.split('-')[0]}.idx")
        count = TESTED.to_bytes(4, "big")
        path.write_bytes(content[:4] + count + content[8 : head + TESTED * size])
        pair.append(path)
    return {"train": train, "valid": valid, "test": pair[0]}


def _digit_examples() -> list[tuple[dict[str, Any], str]]:
    names = {"two": "2", "three": "3", "seven": "7", "zero": "0", "four": "4"}
    examples = []
    for name, label in names.items():
        large = example_image(name, 28).astype(int)
        small = large.reshape(14, 2, 14, 2).mean((1, 3)).astype(int) * 8 // 256
        examples.append(({"label": label, "pixels": small.tolist()}, f"a {name}, drawn here"))
    return [*examples, ({"label": "5"}, "nothing but the name of a five")]


# Music


def _chorales(data: Path, run: Path) -> Files:
    source = data / "jsb_chorales" / "Jsb16thSeparated.json.gz"
    splits = json.loads(gzip.decompress(source.read_bytes()))
    files = {}
    for part, pieces in splits.items():
        shifts = SHIFTS if part == "train" else [0]
        stride = OPENING if part == "train" else MOMENTS
        cuts = [
            {"notes": cut}
            for piece in pieces
            for shift in shifts
            if (cut_piece := _eighths(piece, shift)) is not None
            for cut in _cuts(cut_piece, stride)
        ]
        files[part] = _write_records(run.with_suffix(f".{part}.jsonl"), cuts)
    return files


def _eighths(piece: list[list[int]], shift: int) -> list[list[int]] | None:
    """Every second moment of a piece, transposed; None where a pitch leaves the range."""
    moved = [[0 if p < 0 else p + shift for p in moment] for moment in piece[::2]]
    return moved if {p for moment in moved for p in moment} <= {0, *PITCHES} else None


def _cuts(piece: list[list[int]], stride: int) -> Iterable[list[list[int]]]:
    last = len(piece) - MOMENTS
    for first in range(0, last + 1, stride):
        yield piece[first : first + MOMENTS]


def _tune_examples() -> list[tuple[dict[str, Any], str]]:
    """The beginnings of the studio's tunes of four voices, a voice a column."""
    examples = []
    for tune in read_tunes().values():
        if len(tune.voices) != VOICES:
            continue
        step = tune.steps_per_beat / 2
        moments = [[0] * VOICES for _ in range(OPENING)]
        for column, notes in enumerate(tune.parts()):
            for note in notes:
                for at in range(round(note.start / step), min(round(note.end / step), OPENING)):
                    moments[at][column] = note.pitch
        examples.append(({"notes": moments}, tune.title))
    return [*examples, ({"notes": [[67, 62, 59, 55]] * 2}, "a chord alone, G major")]


# Acting


def _world(name: str) -> Callable[[Path, Path], Files]:
    def corpus(_: Path, run: Path) -> Files:
        files = {}
        for part, seed in zip(("train", "valid"), SEEDS[name], strict=True):
            draw, count = Random(seed), EPISODES[name] if part == "train" else 200
            records = (
                rooms.draw_records(draw, count)
                if name == "rooms"
                else coins.draw_records(draw, count, returns=True)
            )
            files[part] = _write_records(run.with_suffix(f".{part}.jsonl"), records)
        return files

    return corpus


def _acts(world: str, episodes: int = 400) -> Callable[[Path, Files], list[Score]]:
    names = {"named in training": "goals reached", "never named": "unnamed goals reached"}

    def scores(place: Path, _: Files) -> list[Score]:
        words = ["act", str(place), "--world", world, "--episodes", str(episodes), "--seed", "7"]
        said = json.loads(heedful([*words, *RETURNS.get(world, []), "--json"]))["scores"]
        return [
            {
                "metric": names.get(name, f"coins, asked for {name}"),
                "data": f"{episodes} drawn episodes",
                "value": round(found["score"], 3),
                "interval": [round(found["low"], 3), round(found["high"], 3)],
                "note": "Of the stored weights of 8 bits.",
            }
            for name, found in said.items()
        ]

    return scores


RETURNS = {"coins": ["--return", "1", "3", "5"]}


def _room_examples() -> list[tuple[dict[str, Any], str]]:
    draw = Random(11)
    drawn = [rooms.draw_room(draw, held_out=False) for _ in range(60)]
    far = sorted(drawn, key=lambda room: -len(room.route() or ()))
    examples = [(room.prompt(), room.instruction) for room in far[:30:8]]
    unseen = rooms.draw_room(draw, held_out=True)
    about = f"{unseen.instruction}, which no instruction of the training names"
    return [*examples, (unseen.prompt(), about)]


def _coin_examples() -> list[tuple[dict[str, Any], str]]:
    place = coins.Game((2, 2)).place
    return [({"moments": [asked, place]}, f"return asked for: {asked}") for asked in (5, 3, 1, 0)]


# Series


def _series(_: Path, run: Path) -> Files:
    run.with_suffix("").mkdir(parents=True, exist_ok=True)
    drawn, _, _ = forecast.make_series(np.random.default_rng(0))
    return forecast.write_parts(drawn, run.with_suffix(""))


def _forecasts(place: Path, files: Files) -> list[Score]:
    """Error and coverage of the last 24 values of test series, beside the season before."""
    drawn, _, seasons = forecast.make_series(np.random.default_rng(0))
    test = slice(-forecast.COUNTS["test"], None)
    window = drawn[test, -forecast.CONTEXT - forecast.HORIZON :]
    past, future = np.split(window, [forecast.CONTEXT], axis=1)
    futures = forecast.forecast(place, past, samples=40, seed=1)
    median, low, high = np.quantile(futures, (0.5, *forecast.INTERVAL), axis=1)
    found = forecast.scored(past, future, seasons[test], median, low, high)
    naive = forecast.naive(past, seasons[test])
    before = forecast.scored(past, future, seasons[test], *naive)["mase"]
    data = f"the last {forecast.HORIZON} values of {forecast.COUNTS['test']} drawn series"
    return [
        {"metric": "MASE", "data": data, "value": round(found["mase"], 3)}
        | {"note": f"Of the stored weights of 8 bits; the value one season before: {before:.3f}."},
        {"metric": "share within the interval", "data": data, "value": round(found["coverage"], 3)}
        | {"note": "80 % would be right."},
    ]


def _series_examples() -> list[tuple[dict[str, Any], str]]:
    """Windows of series that are drawn by another seed, with values whose mean is one."""
    drawn, _, seasons = forecast.make_series(np.random.default_rng(5))
    spec = RecordSpec.parse({"reader": "series", **SERIES})
    examples = []
    for number in (0, 1, 2, 3):
        past = drawn[number, -forecast.CONTEXT - forecast.HORIZON :]
        codes = bins_of(past, scale_of(past[: forecast.CONTEXT]), spec)
        about = f"a season of {seasons[number]}, drawn"
        examples.append(({"values": codes.tolist()}, about))
    return examples


# What all have in common


def _write_records(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records), encoding="utf-8")
    return path


def _likelihood(field: str, metric: str, measure: str, data: str) -> Any:
    """The measure of a field on the test part, by `heedful evaluate`."""

    def scores(place: Path, files: Files) -> list[Score]:
        said = heedful(["evaluate", str(place), "--data", str(files["test"]), "--json"])
        value = json.loads(said)["scores"]["fields"][field][measure]
        note = "Of the stored weights of 8 bits."
        return [{"metric": metric, "data": data, "value": round(value, 4), "note": note}]

    return scores


SERIES = {"bins": 256, "bin_limit": 4.0, "context": 96, "horizon": 24}
DRAWN = {"licence": "Apache 2.0", "attribution": "Heedful, which draws the data"}

KINDS = {
    "digit-pixels": Kind(
        _digits,
        _likelihood(
            "pixels", "bits per pixel", "bits_per_value", f"{TESTED:,} test images of MNIST"
        ),
        {
            "title": "Digits, pixel by pixel",
            "summary": "Draws and completes a handwritten digit, a pixel after the other",
            "data": "MNIST, 55,000 training images, as 14 × 14 pixels of 8 grey levels",
            "licence": "CC BY-SA 3.0",
            "attribution": "Yann LeCun, Corinna Cortes and Christopher J. C. Burges, MNIST",
            "limits": [
                "It draws ten digits of 14 × 14 pixels, and nothing else.",
                "Each pixel follows from those above and to its left: one that goes wrong stays.",
            ],
        },
        _digit_examples,
    ),
    "bach-chorales": Kind(
        _chorales,
        _likelihood("notes", "nats per note", "nats_per_value", "the test pieces, 64 eighths each"),
        {
            "title": "Four voices, eighth by eighth",
            "summary": "Continues music of four voices, as in the chorales of Bach",
            "data": "JSB chorales, 229 pieces in seven keys each, at every eighth note",
            "licence": "Apache 2.0; the pieces are in the public domain",
            "attribution": "Johann Sebastian Bach, in the selection of Boulanger-Lewandowski 2012",
            "limits": [
                "A moment is an eighth; two equal notes after each other are one long note.",
                "It was trained for minutes: it keeps the key and the voices, and knows no form.",
                "Eight bars are all that it can hold.",
            ],
        },
        _tune_examples,
    ),
    "room-actor": Kind(
        _world("rooms"),
        _acts("rooms"),
        {
            "title": "Goes where it is told",
            "summary": "Sees a drawn room, reads an instruction, and acts step by step",
            "data": f"the shortest ways in {EPISODES['rooms']:,} drawn rooms",
            **DRAWN,
            "limits": [
                "It knows rooms of 6 × 6 cells and three phrases.",
                "A thing that no instruction of its training named it rarely finds.",
            ],
        },
        _room_examples,
    ),
    "coin-player": Kind(
        _world("coins"),
        _acts("coins"),
        {
            "title": "Plays for the return that is asked",
            "summary": "Collects about as many coins as it is asked for, in twelve moves",
            "data": f"{EPISODES['coins']:,} drawn episodes of players of any skill",
            **DRAWN,
            "limits": [
                "The coins always lie at the same places.",
                "Asked for none it still gets some: hardly any episode of its training has none.",
            ],
        },
        _coin_examples,
    ),
    "seasonal-series": Kind(
        _series,
        _forecasts,
        {
            "title": "Series with a season",
            "summary": "Continues a series of numbers, with an interval",
            "data": "3,000 drawn series of a level, a trend, a season of 12 or 24, and noise",
            **DRAWN,
            "limits": [
                "It has seen series of this one kind, and nothing of the world.",
                "It is not told the date, and no other series.",
            ],
        },
        _series_examples,
    ),
}


if __name__ == "__main__":
    main()
