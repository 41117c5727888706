"""Record what the length of the warm-up changes for a small translator: one command.

    python benchmarks/pretrained/warmups.py [--runs DIR] [--seeds 4]

It is the translator of six layers of `components.py`, trained as there with each of some warm-ups;
nothing else differs. A run that is finished in DIR is not trained again. The page "Schedule" of the
studio shows the figures.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components import curves, measure, train  # of this folder

from heedful.apps.demo_corpus import write_demo
from heedful.apps.studio.small_translator import VARIANTS, WARMUPS_FILE, small_corpus

WARMUPS = (0, 40, 80, 160, 320, 640)
"""Steps of the 800: none to four fifths."""


def main() -> None:
    """Train with every warm-up and every seed, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs") / "warmups")
    parser.add_argument("--seeds", type=int, default=4, help="how many, from 1 on")
    arguments = parser.parse_args()
    folder: Path = arguments.runs
    folder.mkdir(parents=True, exist_ok=True)
    corpus = small_corpus()
    files = write_demo(corpus, folder / "pairs")
    variant = VARIANTS["six"]
    records: dict[int, list[dict[str, Any]]] = {warmup: [] for warmup in WARMUPS}
    for seed in range(1, arguments.seeds + 1):
        for warmup in WARMUPS:
            run = folder / f"warmup-{warmup}-{seed}"
            settings = variant.settings(seed)
            settings["schedule"]["warmup_steps"] = warmup
            train(run, settings, files)
            _, scores = measure(run, corpus.test)
            figures = {"seed": seed, "exact": scores["exact"], "loss": curves(run)["loss"]}
            records[warmup].append(figures)
    result = {
        "command": "python benchmarks/pretrained/warmups.py",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "steps": variant.steps,
        "rate": variant.rate,
        "warmups": [{"steps": steps, "runs": runs} for steps, runs in records.items()],
    }
    text = json.dumps(result, separators=(",", ":"))
    WARMUPS_FILE.write_text(text + "\n", encoding="utf-8")
    print(f"{WARMUPS_FILE.name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
