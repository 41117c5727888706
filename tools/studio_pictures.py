"""Take pictures of every page of the studio at three widths, and those of README and guide.

    python tools/studio_pictures.py [--out build/pictures] [--dark] [--browser PATH]

The studio shows the models at hand. A table says where the first drawing of each page begins and
ends at 1440 × 900. Needs the `studio` and `dev` extras and a Chromium, on the path or given.
"""

from __future__ import annotations

import argparse
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from playwright.sync_api import sync_playwright

from heedful.apps.sockets import address_of, listen
from heedful.apps.studio.app import build_app
from heedful.apps.studio.pages import PAGES
from heedful.apps.studio.workspace import Workspace
from heedful.pretrained.catalogue import models_at_hand

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
SHOWN = {
    "studio": "tour?stop=7",
    "builder": "builder",
    "without": "without",
}
"""The pictures of the README and of the guide, and the address of each."""
SIZES = {"desk": (1440, 900), "tablet": (820, 1180), "phone": (390, 844)}
LARGEST = 200_000
DRAWN = ".drawing svg, .drawing canvas, .matrix, .beside, .links, .cards, .sums"


def main() -> None:
    """Serve the studio on the models at hand, and open each page at each width."""
    arguments = _parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with serving() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.browser, args=["--no-sandbox", "--disable-gpu"]
        )
        for name, (width, height) in SIZES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if arguments.dark else "light",
                reduced_motion="reduce",
            )
            for path in ("", *(each.name for each in PAGES)):
                open_page(page, home + path)
                page.screenshot(path=str(arguments.out / f"{path or 'start'}-{name}.png"))
                if name == "desk":
                    print(describe(page, path or "start"))
            page.close()
        page = browser.new_page(viewport={"width": 1240, "height": 860}, reduced_motion="reduce")
        for name, path in SHOWN.items():
            open_page(page, home + path)
            picture = PICTURES / f"{name}.png"
            page.screenshot(path=str(picture))
            size = picture.stat().st_size
            assert size < LARGEST, f"{picture} has {size:,} bytes, more than {LARGEST:,}"
        browser.close()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "pictures")
    parser.add_argument("--dark", action="store_true", help="in dark colours")
    parser.add_argument("--browser", default=shutil.which("chromium"), help="path of Chromium")
    return parser.parse_args()


@contextmanager
def serving() -> Iterator[str]:
    """Serve the models at hand; the address, with a slash at the end."""
    listening = listen("127.0.0.1", 0)
    workspace = Workspace([each.path for each in models_at_hand().values()])
    server = uvicorn.Server(uvicorn.Config(build_app(workspace), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield address_of(listening)
    finally:
        server.should_exit = True
        thread.join()


def open_page(page: Any, address: str) -> None:
    """Open a page and wait until nothing is being drawn."""
    page.goto(address)
    page.wait_for_function(
        "() => !document.querySelector('[aria-busy=true]') && document.querySelector('h1')",
        timeout=120_000,
    )
    page.wait_for_timeout(300)  # what is drawn after the last answer


def describe(page: Any, name: str) -> str:
    """Say where the first drawing of the page stands."""
    box = page.evaluate(
        """(drawn) => {
          const first = document.querySelector(`main :is(${drawn})`);
          return first && [first.getBoundingClientRect().top, first.getBoundingClientRect().bottom];
        }""",
        DRAWN,
    )
    return f"{name:12} " + ("no drawing" if box is None else f"from {box[0]:.0f} to {box[1]:.0f}")


if __name__ == "__main__":
    main()
