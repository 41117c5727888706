"""Checks of origin and size before a request reaches the studio.

The studio reads and runs models on request, so it answers only pages that it served itself. Three
things could pretend to be such a page: a site whose name points at this machine (its `Host` gives
it away), a script of another site that posts here (its `Origin` or `Sec-Fetch-Site` does), and a
frame around ours (headers forbid it). Other people of this machine can reach the port too, so each
start has a key, which is in the address that is printed and then in a cookie.
"""

from __future__ import annotations

import hmac
import html
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from heedful.errors import UserError
from heedful.listening import is_own_host

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 1 << 20
"""Bytes of a request; texts and settings need a small part of them."""

_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; object-src 'none'; base-uri 'none'; "
     b"form-action 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)  # fmt: skip


class _TooLarge(Exception):
    """The body of a request is larger than the limit."""


class Guard:
    """Refuses requests of other sites and bodies that are too large.

    Args:
        app: the application that answers all other requests.
        host: the address the server listens on. Its name is allowed; a server that other machines
            reach may be called by any of its numeric addresses.
        limit: most bytes of a body. A longer content length is refused unread; a body without one
            is cut off at the limit.
        limits: other limits, by path.
        token: the key of this start, which the address that was printed carries; without one, every
            program of this machine is answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        limit: int = MAX_BODY,
        limits: Mapping[str, int] | None = None,
        token: str | None = None,
    ) -> None:
        self.app = app
        self.token = token
        self.host = host
        self.limit = limit
        self.limits = limits or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        limit = self.limits.get(scope["path"], self.limit)
        started = False
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                raise _TooLarge
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        as_page = b"text/html" in headers.get(b"accept", "").encode("latin-1")
        refused = self._foreign(headers, scope["path"])
        if refused is not None:
            await _refuse(send_with_headers, 403, refused, as_page=as_page)
            return
        if self.token is not None and not scope["path"].startswith("/static/"):
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if given and _same(given, self.token):
                await self._let_in(scope, headers, send_with_headers)
                return
            if not _same(_cookie(headers, self._cookie_name(headers)), self.token):
                await _refuse(send_with_headers, 401, _NO_TOKEN, as_page=as_page)
                return
        length = headers.get(b"content-length", "0")
        try:
            if not length.isdecimal() or int(length) > limit:
                raise _TooLarge
            await self.app(scope, limited, send_with_headers)
        except _TooLarge:
            assert not started
            await _refuse(send_with_headers, 413, _too_large(limit))

    def _cookie_name(self, headers: Mapping[bytes, str]) -> str:
        """Return the name of the cookie: browsers share cookies between the ports of a host."""
        port = urlsplit(f"//{headers[b'host']}").port or 80
        return f"heedful-{port}"

    async def _let_in(self, scope: Scope, headers: Mapping[bytes, str], send: Send) -> None:
        """Keep the key in a cookie, and go on at the address without it."""
        settings = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        del settings["token"]
        query = urlencode(settings, doseq=True)
        path = "/" + scope["path"].lstrip("/")  # two slashes would name another host
        cookie = f"{self._cookie_name(headers)}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        answer = [
            (b"location", quote(path).encode() + (f"?{query}".encode() if query else b"")),
            (b"set-cookie", cookie.encode()),
            (b"content-length", b"0"),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 303, "headers": answer})
        await send({"type": "http.response.body", "body": b""})

    def _foreign(self, headers: dict[bytes, str], path: str) -> UserError | None:
        host = headers.get(b"host", "")
        if not is_own_host(host, self.host):
            return UserError(
                f"The studio does not answer for the host {host[:80]!r}",
                where="Host",
                remedy="Open the address that heedful studio printed",
            )
        origin = headers.get(b"origin")
        other_origin = origin is not None and urlsplit(origin).netloc != host
        site = headers.get(b"sec-fetch-site", "none")
        if other_origin or (path.startswith("/api/") and site not in ("same-origin", "none")):
            return UserError(
                "The studio answers its own pages only, and this request is another site's",
                where=origin or "Sec-Fetch-Site",
                remedy="Open the studio in a window of its own",
            )
        return None


def _too_large(limit: int) -> UserError:
    return UserError(
        f"The request is larger than {limit:,} bytes",
        where="the request's body",
        remedy="Send less at a time; files are for the command line",
    )


LONGEST_WORDS = 600
"""Characters of each part of an error: a message may repeat what was sent, which may be long."""


def plain_error(error: UserError) -> dict[str, str | None]:
    """Return an error as JSON data, its parts cut where they are long."""
    parts = {"what": error.what, "where": error.where, "remedy": error.remedy}
    return {name: text and _cut(text) for name, text in parts.items()}


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_WORDS else f"{text[:LONGEST_WORDS]}…"


_NO_TOKEN = UserError(
    "This studio belongs to the person who started it",
    where="the key in the address is missing or of an earlier start",
    remedy="Open the address that heedful studio printed, with all that stands behind token=",
)


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _cookie(headers: Mapping[bytes, str], name: str) -> str:
    cookies = (each.strip().partition("=") for each in headers.get(b"cookie", "").split(";"))
    return next((value for key, _, value in cookies if key == name), "")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Heedful studio</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<script src="/static/theme.js"></script>
<link rel="stylesheet" href="/static/style.css"></head>
<body><main class="refusal"><h1>Heedful studio</h1>
<div class="problem"><p><strong>{what}.</strong></p><p>{where}</p><p>{remedy}.</p></div>
</main></body></html>
"""


async def _refuse(send: Send, status: int, error: UserError, *, as_page: bool = False) -> None:
    """Answer without reading the rest of the request, and close the connection.

    Args:
        send: of the request.
        status: of the answer.
        error: what is said.
        as_page: whether a browser asks for a page to show, and not a script for JSON.
    """
    if as_page:
        words = {name: html.escape(text or "") for name, text in plain_error(error).items()}
        body = _PAGE.format(**words).encode()
    else:
        body = json.dumps(plain_error(error)).encode()
    headers = [
        (b"content-type", b"text/html; charset=utf-8" if as_page else b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
