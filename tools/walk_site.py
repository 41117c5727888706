"""Choose at random in an exported course, and print what it cannot answer.

    heedful studio --export site
    python tools/walk_site.py site [--pages scale masks …] [--choices 20] [--seed 1]

Every page is opened from disk in Firefox; its controls get values that no list of requests names.
What the page then says, and what a script of it says to the console, is printed with the address.
Exit status 1 if there was any.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from heedful.apps.studio.pages import PAGES
from tests.apps.studio.firefox import PROBLEMS, Firefox, window
from tools.record_requests import FOLDS, LIST, SET, wait

STOPS = "25"
"""Number of places on a slider from which one is drawn: others than those that are recorded."""


def walk(firefox: Firefox, address: str, choices: int, draw: random.Random) -> list[str]:
    """Return what a page said after each of some choices, every message once."""
    found: dict[str, str] = {}
    firefox.open(address)
    for _ in range(choices):
        firefox.value(FOLDS)  # what is folded has controls, too
        wait(firefox)
        controls = json.loads(firefox.value(f"JSON.stringify({LIST.replace('STOPS', STOPS)})"))
        if not controls:
            break
        index, values = draw.choice(controls)
        firefox.value(f"{SET}({index}, {json.dumps(draw.choice(values))})")
        wait(firefox)
        for said in [firefox.value(PROBLEMS), *firefox.said()]:
            if said:
                found.setdefault(said, firefox.value("location.href"))
    return [f"{where}\n  {said}" for said, where in found.items()]


def main() -> int:
    """Walk through the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path, help="folder of the exported course")
    parser.add_argument("--pages", nargs="*", help="all if not given")
    parser.add_argument("--choices", type=int, default=20, help="number of choices on each page")
    parser.add_argument("--seed", type=int, default=1, help="seed of the choices")
    asked = parser.parse_args()
    count = 0
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        window(Path(profile)) as firefox,
    ):
        for name in asked.pages or [page.name for page in PAGES]:
            address = (asked.site.resolve() / f"{name}.html").as_uri()
            said = walk(firefox, address, asked.choices, random.Random(f"{asked.seed} {name}"))
            print(f"{name}: {len(said)} messages", *said, sep="\n", flush=True)
            count += len(said)
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())
