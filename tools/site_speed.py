"""Measure how soon each page of an exported course shows its first picture, from disk.

    python tools/site_speed.py SITE [--times 3] [--browser chromium]

SITE is what `heedful studio --export SITE` wrote. A line tells the median time of a page from the
begin of its loading until its first picture is drawn; first comes the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from playwright.sync_api import sync_playwright

from tests.apps.studio.chromium import Chromium
from tests.apps.studio.firefox import PROBLEMS, Firefox, window
from tests.conftest import BROWSER_FLAGS, browser_path

NOTED = "Math.round(performance.getEntriesByName('drawn')[0]?.startTime ?? performance.now())"
"""Milliseconds until the page was drawn: its own mark, see `live` in `static/api.js`."""


def main() -> None:
    """Open every page of the site, and print times and the size of the whole."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path, help="folder of the exported course")
    parser.add_argument("--times", type=int, default=3, help="of each page")
    parser.add_argument("--browser", choices=WINDOWS, default="firefox")
    arguments = parser.parse_args()
    site = arguments.site.resolve()
    size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
    print(f"{size / 1e6:.1f} MB, load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    medians = []
    with WINDOWS[arguments.browser]() as browser:
        for file in sorted(site.glob("*.html")):
            times = [opened(browser, file.as_uri()) for _ in range(arguments.times)]
            medians.append(statistics.median(times))
            problems = browser.value(PROBLEMS)
            print(f"{file.stem:12} {medians[-1]:6.0f} ms  {problems}", flush=True)
    print(f"{'median':12} {statistics.median(medians):6.0f} ms, load {os.getloadavg()[0]:.1f}")


@contextmanager
def firefox_window() -> Iterator[Firefox]:
    """Firefox with a new profile."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        window(Path(profile)) as firefox,
    ):
        yield firefox


@contextmanager
def chromium_window() -> Iterator[Chromium]:
    """Chromium, as the tests start it."""
    with sync_playwright() as playwright:
        path = browser_path()
        browser = playwright.chromium.launch(executable_path=path, args=BROWSER_FLAGS)
        yield Chromium(browser)
        browser.close()


WINDOWS = {"firefox": firefox_window, "chromium": chromium_window}


def opened(browser: Firefox | Chromium, address: str) -> float:
    """Open a page, and return the milliseconds until it was drawn."""
    browser.open(address)
    return float(browser.value(NOTED))


if __name__ == "__main__":
    main()
