"""Measure how soon each page of an exported course shows its first picture, from disk in Firefox.

    python tools/site_speed.py SITE [--times 3]

SITE is what `heedful studio --export SITE` wrote. A line tells the median time of a page from the
begin of its loading until its first picture is drawn; first comes the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.apps.studio.firefox import PROBLEMS, Firefox, window

NOTED = "Math.round(performance.getEntriesByName('drawn')[0]?.startTime ?? performance.now())"
"""Milliseconds until the page was drawn: its own mark, see `live` in `static/api.js`."""


def main() -> None:
    """Open every page of the site, and print times and the size of the whole."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path, help="folder of the exported course")
    parser.add_argument("--times", type=int, default=3, help="of each page")
    arguments = parser.parse_args()
    site = arguments.site.resolve()
    size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
    print(f"{size / 1e6:.1f} MB, load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        window(Path(profile)) as firefox,
    ):
        for file in sorted(site.glob("*.html")):
            times = [opened(firefox, file.as_uri()) for _ in range(arguments.times)]
            problems = firefox.value(PROBLEMS)
            print(f"{file.stem:12} {statistics.median(times):6.0f} ms  {problems}", flush=True)


def opened(firefox: Firefox, address: str) -> float:
    """Open a page, and return the milliseconds until it was drawn."""
    firefox.open(address)
    return float(firefox.value(NOTED))


if __name__ == "__main__":
    main()
