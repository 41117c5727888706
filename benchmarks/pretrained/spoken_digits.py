"""Make `spoken-digits`, the vision Transformer of spectrograms at hand: one command.

    python benchmarks/pretrained/spoken_digits.py --data DIR

DIR holds fsdd/recordings.tar.gz (or set HEEDFUL_DATA). Recordings 0 to 4 of each digit and speaker
are the test, as the corpus asks, and are labelled once, by the model as it is stored; 5 to 7 are
validated on. The settings stand in spoken_digits.toml. --finish publishes a run as it is.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import sounds  # noqa: E402 (a script of the folder above)
from driver import heedful, new_parser, parse, read_events  # noqa: E402
from publish import store, write_card  # noqa: E402

TRAIN, VALID, TEST = "train", "valid", "test"
VALIDATED = sounds.HELD_OUT + 3
"""The number of the first recording of a digit and a speaker that is trained on."""


def main() -> None:
    """Train, store, label the test recordings, write the card."""
    parser = new_parser(__doc__)
    parser.add_argument("--finish", action="store_true", help="publish a run as it is")
    arguments = parse(parser)
    run = arguments.run or Path("runs") / "spoken-digits"
    run.parent.mkdir(parents=True, exist_ok=True)
    corpus = run.with_suffix(".corpus")
    files = sounds.unpack(arguments.data / "fsdd" / "recordings.tar.gz", corpus)
    if not arguments.finish:
        words = ["train", str(run), "--config", str(HERE / "spoken_digits.toml")]
        for part, others in (("train", (VALID, TEST)), ("valid", (TRAIN, TEST))):
            folder = corpus / part
            sounds.training_folder(files, folder, lambda path, o=others: _part_of(path) in o)
            words += [f"--{part}", str(folder)]
        heedful([*words, *arguments.extra])
    place = store(run, "spoken-digits")
    found = sounds.measured(place, [file for file in files if _part_of(file) == TEST])
    trained_on = sum(_part_of(file) == TRAIN for file in files)
    share, count = found["accuracy"], found["recordings"]
    margin = 1.96 * math.sqrt(share * (1 - share) / count)
    facts = {
        "title": "Spoken digits",
        "summary": "Hears which digit is said, in the picture of a sound",
        "task": "sounds",
        "data": f"FSDD, {trained_on:,} recordings of five speakers",
        "licence": "CC BY-SA 4.0",
        "attribution": "The speakers of the Free Spoken Digit Dataset; Zohar Jackson, its editor",
        "command": "python benchmarks/pretrained/spoken_digits.py --data DIR",
        "scores": [
            {
                "metric": "accuracy",
                "data": f"{count} other recordings of the same speakers",
                "value": share,
                "interval": [round(share - margin, 3), round(min(1, share + margin), 3)],
                "note": "Of the stored weights of 8 bits.",
            }
        ],
        "limits": [
            "It knows the ten digits in English, and calls every other sound one of them.",
            "Voices that are new to it it mishears: of the studio's ten words five are right.",
            "It expects a recording of one word, without silence before and after it.",
        ],
    }
    seconds = [event for event in read_events(run) if event.get("event") == "summary"][-1]
    write_card(place, facts, minutes=seconds["seconds"] / 60)
    print(json.dumps({"model": "spoken-digits", **found}))


def _part_of(path: Path) -> str:
    number = int(path.stem.split("_")[2])
    return TEST if number < sounds.HELD_OUT else VALID if number < VALIDATED else TRAIN


if __name__ == "__main__":
    main()
