"""Make `digits`, the vision Transformer of MNIST at hand: one command.

    python benchmarks/pretrained/digits.py --data DIR

DIR holds mnist/train-images-idx3-ubyte.gz and the other three files (or set HEEDFUL_DATA). The last
5,000 training images are validated on; the 10,000 test images are labelled once, at the end, by the
model as it is stored. The settings stand in digits.toml.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import mnist  # noqa: E402 (a script of the folder above)
from driver import heedful, new_parser, parse  # noqa: E402
from publish import store, write_card  # noqa: E402


def main() -> None:
    """Train, store, label the test images, write the card."""
    arguments = parse(new_parser(__doc__))
    run = arguments.run or Path("runs") / "digits"
    run.parent.mkdir(parents=True, exist_ok=True)
    folder = arguments.data / "mnist"
    if not (run / "model").exists():
        train, valid = mnist.split(folder, run)
        words = ["train", str(run), "--config", str(HERE / "digits.toml")]
        words += ["--train", *map(str, train), "--valid", *map(str, valid)]
        heedful([*words, *arguments.extra])
    place = store(run, "digits")
    found = mnist.label_test_images(place, folder)
    share, count = found["accuracy"], found["images"]
    margin = 1.96 * math.sqrt(share * (1 - share) / count)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = [e for e in map(json.loads, lines) if e.get("event") == "summary"][-1]["seconds"]
    facts = {
        "title": "Handwritten digits",
        "summary": "Reads a handwritten digit in a picture of 28 × 28 pixels",
        "task": "images",
        "data": "MNIST, 55,000 training images; shifted, turned and resized a little in training",
        "licence": "CC BY-SA 3.0",
        "attribution": "Yann LeCun, Corinna Cortes and Christopher J. C. Burges, MNIST",
        "command": "python benchmarks/pretrained/digits.py --data DIR",
        "scores": [
            {
                "metric": "accuracy",
                "data": f"the {count:,} test images of MNIST",
                "value": share,
                "interval": [round(share - margin, 4), round(share + margin, 4)],
                "note": "Measured on the stored weights of 8 bits.",
            }
        ],
        "limits": [
            "It knows the ten digits only, and calls every other picture one of them.",
            "It expects one digit, white on black, in the middle, about two thirds of the height.",
        ],
    }
    write_card(place, facts, minutes=seconds / 60)
    print(json.dumps({"model": "digits", **found}))


if __name__ == "__main__":
    main()
