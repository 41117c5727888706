"""Train one small translator with three learning rates and two widths: one command.

    python benchmarks/pretrained/learning_rates.py [--runs DIR]

The page "Runs" of the studio opens on them: runs of one task, whose curves may be compared. The
data are generated (`heedful.apps.studio.small_translator`), so nothing is downloaded. A run that is
finished in DIR is not trained again. Of each run its settings and its metrics are kept, and no
model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from components import events, train  # of this folder

from heedful.apps.demo_corpus import write_demo
from heedful.apps.studio.small_translator import Components, small_corpus
from heedful.apps.studio.workspace import COMPARED

RATES, WIDTHS = (0.0002, 0.004, 0.08), (32, 64)
STEPS = 500
VALIDATE_EVERY = 20
KEPT_EVERY = 10
"""Steps between two lines of training that are kept; more are not seen in a chart."""
SHOWN = 2
"""Number of validation sentences whose translations are kept."""


def main() -> None:
    """Train the runs, and keep what a page shows of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs") / "learning_rates")
    folder: Path = parser.parse_args().runs
    folder.mkdir(parents=True, exist_ok=True)
    files = write_demo(small_corpus(), folder / "pairs")
    for rate in RATES:
        for width in WIDTHS:
            run = folder / f"rate-{rate:g}-width-{width}"
            values = Components().settings(1, STEPS)
            values["model"] |= {"width": width, "feedforward": 4 * width}
            values["schedule"]["peak_learning_rate"] = rate
            values["validation"]["every_steps"] = VALIDATE_EVERY
            train(run, values, files)
            keep(run, COMPARED / run.name)


def keep(run: Path, place: Path) -> None:
    """Copy settings and metrics, without the folders of this machine and most of the lines."""
    place.mkdir(parents=True, exist_ok=True)
    settings = (run / "config.toml").read_text(encoding="utf-8")
    (place / "config.toml").write_text(
        settings.replace(str(run.parent / "pairs"), "DIR"), encoding="utf-8"
    )
    lines = [e for e in events(run) if "event" in e or e["step"] % KEPT_EVERY == 0]
    for line in lines:
        line.pop("worst", None)
        if "samples" in line:
            line["samples"] = line["samples"][:SHOWN]
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    (place / "metrics.jsonl").write_text(text, encoding="utf-8")
    print(f"{place.name}: {len(lines)} lines, {len(text)} bytes", flush=True)


if __name__ == "__main__":
    main()
