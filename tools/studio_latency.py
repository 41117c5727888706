"""Measure how soon each page of the studio answers: from an interaction to the picture.

    python tools/studio_latency.py [--json FILE] [--times 5] [--pages tour attention …]

Every page is opened in Chromium with the models at hand. Every control in it is used several
times: sliders, choices, switches, texts, and what can be clicked in a drawing. A line tells the
median and the slowest time until nothing is being computed and the frame is painted, and whether a
wait of more than half a second said that it computes. The work is the processor time of server and
page, which other programs of the machine do not change. Needs the `studio` and `dev` extras and a
Chromium.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
from studio_pictures import open_page, serving

from heedful.apps.studio.pages import PAGES

GOAL = 150
"""Milliseconds that the median of an interaction may take."""
PATIENCE = 500
"""Milliseconds after which a page must say that it computes."""

CLICKED = {
    "a word": ".word-row .piece, .pieces .piece, .way-piece",
    "a step": ".tri-step",
    "a head": ".thumb",
    "a part": ".flow-part",
    "a stop": ".map button",
    "a candidate": ".candidates button, .way-next button",
    "Next": ".walk button, .row > button",
}
"""What is clicked in drawings: of each kind two different ones by turns."""
LONG = ("Greedy", "Train", "Measure", "Play", "Save", "SVG", "PNG", "HTML", "Start again", "Copy")
"""Names of buttons whose work is meant to take a while, or leaves the page."""

LIST = """() => [...document.querySelectorAll("main :is(input, select, textarea)")]
  .filter((each) => each.checkVisibility() && !each.disabled && !each.readOnly
    && !["file", "number", "radio"].includes(each.type) && each.name !== "theme"
    && !each.closest(".questions"))
  .map((each, i) => {
    each.dataset.tried = i;
    const label = each.labels?.[0]?.textContent ?? each.getAttribute("aria-label") ?? each.id;
    return [i, each.tagName === "SELECT" ? "select" : each.type, label.trim().slice(0, 40)];
  })"""

DO = """async ([selector, kind, turn, skip]) => {
  const all = [...document.querySelectorAll(selector)].filter((each) => each.checkVisibility()
    && !each.disabled && !skip.some((name) => each.textContent.startsWith(name)));
  const element = kind === "click" ? all[turn % Math.min(all.length, 2)] : all[0];
  if (!element) return null;
  const busy = () => document.querySelector("[aria-busy=true]");
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const start = performance.now();
  if (kind === "click") {
    element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  } else if (kind === "select") {
    if (element.options.length < 2) return null;
    element.selectedIndex = (element.selectedIndex + 1) % element.options.length;
    element.dispatchEvent(new Event("change", { bubbles: true }));
  } else if (kind === "checkbox") {
    element.click();
  } else if (kind === "range") {
    const [low, high, step] = ["min", "max", "step"].map((name) => Number(element[name]));
    const next = Number(element.value) + step;
    element.value = next > high ? low : next;
    element.dispatchEvent(new Event("input", { bubbles: true }));
  } else {
    const added = turn % 2 ? -1 : 0;
    element.value = added ? element.value.slice(0, -1) : element.value + ".";
    element.dispatchEvent(new Event("input", { bubbles: true }));
  }
  let told = false;
  do {
    await frame();
    told ||= Boolean(document.querySelector(".slow"));
  } while (busy() && performance.now() - start < 20000);
  await frame();
  return [performance.now() - start, told];
}"""


def main() -> int:
    """Measure all pages; the exit status is 1 where a page is too slow."""
    arguments = _parse()
    names = arguments.pages or [page.name for page in PAGES]
    rows: list[dict[str, Any]] = []
    with serving() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.browser, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
        for name in names:
            open_page(page, home + name)
            for row in measure(page, name, arguments.times):
                rows.append(row)
                print(line(row), flush=True)
        browser.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    slow = [row for row in rows if row["median_ms"] > GOAL]
    silent = [row for row in rows if row["silent"]]
    print(
        f"{len(rows)} interactions of {len(names)} pages: median "
        f"{statistics.median(row['median_ms'] for row in rows):.0f} ms, {len(slow)} over {GOAL} "
        f"ms, {len(silent)} over {PATIENCE} ms without saying so"
    )
    return int(bool(slow or silent))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--times", type=int, default=5, help="of each interaction")
    parser.add_argument("--pages", nargs="*", help="all if not given")
    parser.add_argument("--browser", default=shutil.which("chromium"), help="path of Chromium")
    return parser.parse_args()


def measure(page: Any, name: str, times: int) -> Iterator[dict[str, Any]]:
    """Use each control of a page; the model is changed last, as other controls follow it."""
    controls = page.evaluate(LIST)
    controls.sort(key=lambda each: each[2] == "Model")
    for kind, selector in CLICKED.items():
        yield from _row(page, name, f"click {kind}", [selector, "click"], times)
    for index, kind, label in controls:
        yield from _row(page, name, label, [f"[data-tried='{index}']", kind], times)


def _row(
    page: Any, name: str, label: str, action: list[str], times: int
) -> Iterator[dict[str, Any]]:
    found = []
    work = []
    for turn in range(times):
        before = _work(page)
        result = page.evaluate(DO, [*action, turn, LONG])
        if result is None or page.locator("main").count() == 0:
            break
        found.append(result)
        work.append(_work(page) - before)
    if found:
        spent = [each[0] for each in found]
        silent = any(ms > PATIENCE and not told for ms, told in found)
        yield {
            "page": name,
            "interaction": label,
            "times": len(found),
            "median_ms": round(statistics.median(spent), 1),
            "slowest_ms": round(max(spent), 1),
            "work_ms": round(statistics.median(work), 1),
            "silent": silent,
        }


def _work(page: Any) -> float:
    """Return milliseconds of processor time so far, of the server in this process and the page."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    metrics = session.send("Performance.getMetrics")["metrics"]
    session.detach()
    own = next(each["value"] for each in metrics if each["name"] == "TaskDuration")
    return 1000 * (time.process_time() + float(own))


def line(row: dict[str, Any]) -> str:
    """A line of the table."""
    marks = " over" if row["median_ms"] > GOAL else ""
    marks += " silent" if row["silent"] else ""
    return (
        f"{row['page']:12} {row['interaction']:42} {row['median_ms']:8.0f} ms, slowest "
        f"{row['slowest_ms']:6.0f} ms, work {row['work_ms']:5.0f} ms{marks}"
    )


if __name__ == "__main__":
    sys.exit(main())
