"""A real studio: how soon its first page is there, and many people at once on all pages."""

from __future__ import annotations

import concurrent.futures
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from heedful.apps.studio.app import STATIC
from heedful.apps.studio.pages import PAGES

PEOPLE = 10
SOON = 1.0
"""Seconds to the first page, and all that it needs, after the server is up."""

AT_ONCE = 0.03
"""Seconds; an answer in two parts waits 0.04 s if the second is held back for an acknowledgement
of the first."""

TEXT = {"model": "learned", "text": "the cat sat"}
ASKED: dict[str, dict[str, Any]] = {
    "tour/walk": TEXT,
    "translate/text": TEXT,
    "attention/show": TEXT,
    "steps/attend": {"q": [[1, 0]], "k": [[1, 0], [0, 1]], "v": [[1, 2], [3, 4]]},
    "scale/compare": {"width": 64},
    "masks/draw": {"mask": "window(3)"},
    "positions/show": {},
    "schedule/curve": {},
    "paths/steps": {},
    "block/flow": TEXT,
    "decoding/step": TEXT,
    "everywhere/music": {},
    "builder/build": {},
    "without/recorded": {},
    "results/tables": {},
    "runs/curves": {"runs": ["run", "other"], "figures": ["loss", "bleu"]},
}
"""A call of each page."""


def imported(script: str) -> set[str]:
    """A script of the front-end and all that it needs."""
    found, waiting = set(), [STATIC / script]
    while waiting:
        file = waiting.pop().resolve()
        if file not in found:
            found.add(file)
            text = file.read_text(encoding="utf-8")
            waiting += [
                file.parent / name for name in re.findall(r'(?:from|import) "(\.[^"]+)"', text)
            ]
    return {file.relative_to(STATIC.resolve()).as_posix() for file in found}


@pytest.fixture
def started(given: Any) -> Iterator[tuple[str, str]]:
    """The address of a studio that came up just now, and the key that opens it."""
    words = [sys.executable, "-m", "heedful", "studio", given.learned, "--port", "0"]
    server = subprocess.Popen([*map(str, words), "--no-browser"], stderr=subprocess.PIPE, text=True)
    with server:
        assert server.stderr is not None
        found = (re.search(r"(http://\S+/)(\?token=\S+)", line) for line in server.stderr)
        address = next(each for each in found if each)
        yield address[1], address[2]
        server.terminate()


def test_the_first_page_is_there_within_a_second(started: tuple[str, str]) -> None:
    """With all that it needs."""
    needed = {"shell.js", "style.css", "theme.js", *imported("shell.js")}
    needed |= imported("pages/translate.js")
    home, key = started
    asked = [key, "api/studio", *(f"static/{name}" for name in sorted(needed))]
    with httpx2.Client(base_url=home, timeout=30, follow_redirects=True) as browser:
        begin = time.perf_counter()
        answers = [browser.get(each) for each in asked]
        seconds = time.perf_counter() - begin
        assert [each.status_code for each in answers] == [200] * len(answers)
        assert seconds < SOON
        waits = [browser.get("static/theme.js").elapsed.total_seconds() for _ in range(20)]
    assert statistics.median(waits) < AT_ONCE


def test_every_page_is_asked() -> None:
    """A page that is added must be among those that many people ask at once."""
    asked = {call.partition("/")[0] for call in ASKED}
    assert asked == {page.name for page in PAGES} - {"image"}  # it needs a model of images
    known = {f"{page.name}/{name}" for page in PAGES for name in page.calls}
    assert ASKED.keys() <= known


def test_ten_people_ask_all_pages_at_once(studio: str) -> None:
    """Each begins with another call; all get what one alone gets."""
    calls = list(ASKED)
    with httpx2.Client(base_url=studio, timeout=60) as one:
        alone = {call: one.post(f"api/{call}", json=ASKED[call]) for call in calls}
    for call, answer in alone.items():
        assert answer.status_code == 200, (call, answer.text)

    def person(number: int) -> list[tuple[str, httpx2.Response]]:
        with httpx2.Client(base_url=studio, timeout=60) as own:
            mine = calls[number:] + calls[:number]
            return [(call, own.post(f"api/{call}", json=ASKED[call])) for call in mine]

    with concurrent.futures.ThreadPoolExecutor(PEOPLE) as people:
        found = [each for answers in people.map(person, range(PEOPLE)) for each in answers]
    assert len(found) == PEOPLE * len(calls)
    for call, answer in found:
        assert answer.status_code == 200, (call, answer.text)
        same(answer.json(), alone[call].json(), call)


def same(found: Any, expected: Any, where: str) -> None:
    """Equal, but for how long something took."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name in expected.keys() - {"seconds"}:
            same(found[name], expected[name], f"{where}.{name}")
    else:
        assert (
            found == pytest.approx(expected) if isinstance(expected, float) else (found == expected)
        ), where


def test_the_sizes_in_the_documentation_are_true() -> None:
    """The largest first page and all files, as the table of the design page says, within 10 %."""
    page = Path(__file__).parents[3] / "docs" / "design" / "studio.md"
    text = page.read_text(encoding="utf-8")
    size = {
        file.relative_to(STATIC).as_posix(): file.stat().st_size
        for file in STATIC.rglob("*")
        if file.suffix in (".js", ".css", ".html", ".svg")
    }
    always = {"index.html", "style.css", "theme.js", *imported("shell.js")}
    each = [sum(size[f] for f in always | imported(f"pages/{page.name}.js")) for page in PAGES]
    said = {
        name: [int(number.replace(",", "")) for number in re.findall(r"[\d,]{5,}", line)]
        for line in text.splitlines()
        if line.startswith("| ")
        for name in [line.split("|")[1].strip()]
    }
    assert said["all files"] == pytest.approx([sum(size.values())], rel=0.1)
    assert said["one page in all, with what it uses"] == pytest.approx(
        [min(each), max(each)], rel=0.1
    )
