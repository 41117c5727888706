"""Take pictures of every page of the studio at three widths, and those of README and guide.

    python tools/studio_pictures.py [--out build/pictures] [--dark] [--previews] [--browser PATH]

With `--previews` it takes only the pictures that an exported course gives to those who show a link,
one for each page: as the page opens in a frame, in few colours.

The studio shows the models at hand. A table says where the first drawing of each page begins and
ends at 1440 × 900. Needs the `studio` and `dev` extras and a Chromium, on the path or given.
"""

from __future__ import annotations

import argparse
import io
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from heedful.apps.sockets import address_of, listen
from heedful.apps.studio.app import build_app
from heedful.apps.studio.export.site import PREVIEWS, preview_of
from heedful.apps.studio.pages import PAGES
from heedful.apps.studio.workspace import Workspace, compared_runs
from heedful.pretrained.catalogue import models_at_hand

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
SHOWN = {
    "studio": "tour?stop=7",
    "builder": "builder?parts=99",
    "without": "without",
}
"""The pictures of the README and of the guide, and the address of each."""
SIZES = {"desk": (1440, 900), "tablet": (820, 1180), "phone": (390, 844)}
LARGEST = 200_000
WINDOW = (1350, 708)
"""The window of a preview in pixels: 1.91 to 1, as sites that show links cut pictures."""
SHRUNK = 2 / 3
COLOURS = 32
AT = {"steps": "&stage=5", "builder": "&parts=99"}
"""Settings of pages that open on their first steps."""
ALONE = """() => {
  for (const each of document.querySelectorAll(".side, .about, .saves, .tour-head .walk")) {
    each.hidden = true;
  }
}"""
"""Leaves the picture of a page, without what changes it."""
DRAWN = ".drawing svg, .drawing canvas, .matrix, .beside, .links, .cards, .sums"


def main() -> None:
    """Serve the studio on the models at hand, and open each page at each width."""
    arguments = _parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with serving() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.browser, args=["--no-sandbox", "--disable-gpu"]
        )
        if arguments.previews:
            take_previews(browser, home)
            return
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
            save_picture(page, picture, 4 * COLOURS)
            size = picture.stat().st_size
            assert size < LARGEST, f"{picture} has {size:,} bytes, more than {LARGEST:,}"
        browser.close()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "pictures")
    parser.add_argument("--dark", action="store_true", help="in dark colours")
    parser.add_argument("--previews", action="store_true", help="only the previews of links")
    parser.add_argument("--browser", default=shutil.which("chromium"), help="path of Chromium")
    return parser.parse_args()


def take_previews(browser: Any, home: str) -> None:
    """Take the picture of each page for an exported course."""
    page = browser.new_page(
        viewport=dict(zip(("width", "height"), WINDOW, strict=True)),
        device_scale_factor=SHRUNK,
        reduced_motion="reduce",
    )
    PREVIEWS.mkdir(exist_ok=True)
    for name in ("", *(each.name for each in PAGES)):
        open_page(page, f"{home}{name}?embed=1{AT.get(name, '')}")
        page.evaluate(ALONE)
        page.wait_for_timeout(500)  # drawings fit the width that is theirs now
        save_picture(page, PREVIEWS / preview_of(name), COLOURS)
    print(f"{sum(file.stat().st_size for file in PREVIEWS.iterdir()):,} bytes in {PREVIEWS}")


def save_picture(page: Any, path: Path, colours: int) -> None:
    """Write what a page shows, in a third of the bytes by a palette: drawings have few colours."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)


@contextmanager
def serving() -> Iterator[str]:
    """Serve the models at hand; the address, with a slash at the end."""
    listening = listen("127.0.0.1", 0)
    workspace = Workspace([*(each.path for each in models_at_hand().values()), *compared_runs()])
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
