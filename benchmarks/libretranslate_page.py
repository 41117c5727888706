"""LibreTranslate's own page before a server of ours, in a browser: which of its calls work.

    pip download --no-deps libretranslate==1.9.6
    python benchmarks/libretranslate_page.py WHEEL --browser /usr/bin/chromium-headless-shell

A small server gives out the page from the wheel, which is not installed, and passes all else on to
`heedful serve en-de`. The page loads its settings and languages, translates text, HTML and text of
a language to be detected, refuses to swap languages without a model, and translates a file. Prints
what the page showed after each, and every call with its status; ends with an error where the page
raised one.
"""

from __future__ import annotations

import argparse
import json
import mimetypes
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jinja2
from playwright.sync_api import Page, sync_playwright

FROM, TO = "select[aria-labelledby=sourceLangLabel]", "select[aria-labelledby=targetLangLabel]"
FIELDS = ("sourceLang", "targetLang", "translatedText", "detectedLangText", "error")


class Handler(BaseHTTPRequestHandler):
    """Gives out the page, and passes on what it calls."""

    protocol_version = "HTTP/1.1"
    address = ""
    wheel: zipfile.ZipFile
    calls: list[tuple[str, str, int]]

    def do_GET(self) -> None:
        """Answer with a file of the wheel, or pass the call on."""
        path = self.path.partition("?")[0]
        if path == "/":
            self._answer(200, self._template("index.html"), "text/html; charset=utf-8")
        elif path == "/js/app.js":
            self._answer(200, self._template("app.js.template"), "text/javascript; charset=utf-8")
        elif path.startswith("/static/"):
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
            self._answer(200, self.wheel.read(f"libretranslate{path}"), kind)
        else:
            self._pass_on(None)

    def do_POST(self) -> None:
        """Pass the call on."""
        self._pass_on(self.rfile.read(int(self.headers.get("content-length", 0))))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _template(self, name: str) -> bytes:
        text = self.wheel.read(f"libretranslate/templates/{name}").decode()
        values: dict[str, Any] = {
            "_": _words,
            "_h": _words,
            "_e": lambda text, **values: json.dumps(_words(text, **values)),
            "url_for": lambda name, filename="": f"/static/{filename}" if filename else "/",
            "current_locale": "en",
            **dict.fromkeys(("url_prefix", "api_secret", "bogus_api_secret"), ""),
        }
        return jinja2.Environment(autoescape=False).from_string(text).render(values).encode()

    def _pass_on(self, body: bytes | None) -> None:
        request = urllib.request.Request(self.address + self.path, body, method=self.command)
        if "content-type" in self.headers:
            request.add_header("content-type", self.headers["content-type"])
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        self.calls.append((self.command, self.path.partition("?")[0], answer.status))
        self._answer(answer.status, answer.read(), answer.headers["content-type"])

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _words(text: str, **values: str) -> str:
    return text % values if values else text


def use(page: Page) -> dict[str, Any]:
    """Do what a person does; return what the page showed each time."""
    seen: dict[str, Any] = {}

    def note(name: str) -> None:
        page.wait_for_timeout(1000)  # the page waits for half a second after a key
        page.wait_for_function("() => !window._vueApp.loadingTranslation")
        seen[name] = {f: page.evaluate(f"() => window._vueApp.{f}") for f in FIELDS}

    page.wait_for_function("() => window._vueApp && window._vueApp.langs.length")
    seen["languages"] = page.evaluate("() => window._vueApp.langs.map(l => [l.code, l.targets])")
    for name, source, text in (
        ("text", "en", "A man is riding a bike."),
        ("html", "en", "A <b>dog</b> runs."),
        ("detected", "auto", "Two children play in the snow."),
    ):
        page.select_option(FROM, source)
        page.select_option(TO, "de")
        page.fill("textarea >> nth=0", text)
        note(name)
    page.select_option(FROM, "en")
    page.click("a.btn-switch-language")
    note("swapped")
    page.click("button:has-text('Translate Files')")
    file = {"name": "in.txt", "mimeType": "text/plain", "buffer": b"A dog runs.\n"}
    page.set_input_files("input[type=file]", file)
    page.click("button.btn:has-text('Translate'):not(.btn-switch-type)")
    page.wait_for_function("() => window._vueApp.translatedFileUrl || window._vueApp.error")
    place = page.evaluate("() => window._vueApp.translatedFileUrl")
    seen["file"] = urllib.request.urlopen(place).read().decode() if place else None
    return seen


def browse(program: str | None) -> tuple[dict[str, Any], list[str]]:
    """Open the page in a browser; return what it showed, and its errors."""
    errors: list[str] = []
    front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=front.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        page = browser.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.goto(f"http://127.0.0.1:{front.server_address[1]}")
        seen = use(page)
        browser.close()
    return seen, errors


def main() -> None:
    """Serve the page before a server, use it, and print what happened."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", help="of libretranslate")
    parser.add_argument("--browser", help="Chromium's program; Playwright's own if unset")
    arguments = parser.parse_args()
    words = [sys.executable, "-m", "heedful", "serve", "en-de", "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            Handler.address = json.loads(server.stdout.readline())["address"].rstrip("/")
            Handler.wheel, Handler.calls = zipfile.ZipFile(arguments.wheel), []
            seen, errors = browse(arguments.browser)
        finally:
            server.terminate()
    print(json.dumps({"seen": seen, "calls": Handler.calls, "errors": errors}, indent=2))
    if errors:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
