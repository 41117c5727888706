"""Take the README's picture of the studio.

    python tools/studio_picture.py RUN "A sentence to translate" [OUT.png]

Needs the `studio` and `dev` extras and a Chromium, on the path or named in HEEDFUL_BROWSER.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path
from urllib.parse import urlencode

import uvicorn
from playwright.sync_api import sync_playwright

from heedful.studio.app import address_of, build_app, listen
from heedful.studio.workspace import Workspace

OUT = Path(__file__).parents[1] / "docs" / "pictures" / "studio.png"
SIZE = {"width": 1240, "height": 860}
LARGEST = 200_000


def main(run: str, text: str, out: Path = OUT) -> None:
    """Serve the studio, open the translation and look at its first word."""
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(build_app(Workspace([Path(run)])), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        take(f"{address_of(listening)}translate?{urlencode({'text': text})}", out)
    finally:
        server.should_exit = True
        thread.join()
    size = out.stat().st_size
    print(f"{out}: {size:,} bytes")
    assert size < LARGEST, f"more than {LARGEST:,} bytes"


def take(address: str, out: Path) -> None:
    """Photograph the page at an address."""
    browser = os.environ.get("HEEDFUL_BROWSER") or shutil.which("chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-gpu"]
        )
        page = started.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
        page.goto(address)
        page.wait_for_selector("#translation button", timeout=120_000)
        page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")
        page.locator("#translation button").nth(1).hover()
        out.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(out))
        started.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(Path, sys.argv[3:]))
