"""A window of Firefox, driven by the WebDriver BiDi protocol."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

STARTING = 60
"""Seconds in which Firefox must be up."""
DRAWING = 40
"""Seconds in which a page must be drawn."""
READY = """
  document.querySelector('h1') !== null && document.querySelector('[aria-busy=true]') === null
"""
PROBLEMS = "[...document.querySelectorAll('.problem')].map((each) => each.textContent).join()"


class Firefox:
    """A window of Firefox, driven by the WebDriver BiDi protocol.

    Args:
        connection: to the browser.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        self.command("session.new", capabilities={})
        self.command("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])
        self.window = self.command("browsingContext.getTree")["contexts"][0]["context"]

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and return its result; events that come before it are kept."""
        number = next(self.numbers)
        self.connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.connection.recv(timeout=DRAWING))
            if message.get("type") == "event":
                self.events.append(message)
            elif message["id"] == number:
                assert message["type"] == "success", message
                return dict(message["result"])

    def open(self, address: str) -> None:
        """Open an address and wait until nothing is being drawn."""
        # At times Firefox says "complete" while the document before it still stands in the window.
        self.value("document.before = true")
        self.command("browsingContext.navigate", context=self.window, url=address, wait="complete")
        deadline = time.monotonic() + DRAWING
        while not self.value(f"document.before === undefined && {READY.strip()}"):
            assert time.monotonic() < deadline, f"{address} is not drawn"
            time.sleep(0.1)

    def value(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.command(
            "script.evaluate",
            expression=expression,
            target={"context": self.window},
            awaitPromise=True,
        )
        assert found["type"] == "success", found["exceptionDetails"]["text"]
        return found["result"].get("value")

    def said(self) -> list[str]:
        """Warnings and errors in the console since the last `forget`."""
        found = [each["params"] for each in self.events if each["method"] == "log.entryAdded"]
        return [each["text"] for each in found if each["level"] in ("warn", "error")]

    def forget(self) -> None:
        """Forget what was said and asked so far."""
        self.events.clear()

    @contextmanager
    def first(self, script: str) -> Iterator[None]:
        """Run a script before those of each page that is opened within the context."""
        function = f"() => {{ {script} }}"
        added = self.command("script.addPreloadScript", functionDeclaration=function)
        yield
        self.command("script.removePreloadScript", script=added["script"])


def path_of_firefox() -> str | None:
    """The path of Firefox; None where there is none."""
    return shutil.which("firefox-esr") or shutil.which("firefox")


@contextmanager
def window(profile: Path) -> Iterator[Firefox]:
    """Firefox without a window on the screen, with a profile of its own."""
    path = path_of_firefox()
    assert path is not None
    # Nothing is looked up at Mozilla's while a test runs.
    quiet = ("app.normandy.enabled", "browser.search.update", "datareporting.healthreport.service")
    lines = [f'user_pref("{name}", false);\n' for name in quiet]
    (profile / "user.js").write_text("".join(lines), encoding="utf-8")
    words = [path, "--headless", "--remote-debugging-port", "0", "--profile", str(profile)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = (
                re.search(r"WebDriver BiDi listening on (ws://\S+)", each)
                for each in process.stderr
            )
            address = next(match[1] for match in found if match)
            with connect(f"{address}/session", max_size=None, open_timeout=STARTING) as connection:
                yield Firefox(connection)
        finally:  # also after an error: the end of the block waits for the process
            process.kill()
