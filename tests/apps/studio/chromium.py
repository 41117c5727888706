"""A window of Chromium with the calls of the one of Firefox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .firefox import DRAWING, READY


class Chromium:
    """A window of Chromium.

    Args:
        browser: Playwright's browser.
    """

    def __init__(self, browser: Any) -> None:
        self.context = browser.new_context()
        self.page = self.context.new_page()
        self.session = self.context.new_cdp_session(self.page)
        self.session.send("Page.enable")
        self.heard: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.heard.append(str(error)))

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.heard.append(message.text)

    def open(self, address: str) -> None:
        """Open an address and wait until nothing is being drawn."""
        self.page.goto(address)
        self.page.wait_for_function(f"() => {READY.strip()}", timeout=1000 * DRAWING)

    def value(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        # By the protocol: Playwright's own call would evaluate text in the page, which it forbids.
        found = self.session.send(
            "Runtime.evaluate",
            {"expression": expression, "awaitPromise": True, "returnByValue": True},
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def said(self) -> list[str]:
        """Warnings and errors in the console since the last `forget`."""
        return self.heard

    def forget(self) -> None:
        """Forget what was said so far."""
        self.heard.clear()

    @contextmanager
    def first(self, script: str) -> Iterator[None]:
        """Run a script before those of each page that is opened within the context."""
        added = self.session.send("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        yield
        self.session.send("Page.removeScriptToEvaluateOnNewDocument", added)

    def close(self) -> None:
        """Close the window."""
        self.context.close()
