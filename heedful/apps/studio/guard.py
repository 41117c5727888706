"""Checks of origin and size before a request reaches the studio.

The studio reads and runs models on request, so it answers only its own pages. Three kinds of
requests could pretend to come from these: those of a site whose name points at this machine (seen
by `Host`), scripts of another site that post here (seen by `Origin` or `Sec-Fetch-Site`), and a
frame around a page (forbidden by headers). Other users of this machine can reach the port, too, so
each start has a key, in the printed address and then in a cookie.
"""

from __future__ import annotations

import hmac
import html
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from heedful.apps.sockets import is_own_host
from heedful.apps.web import SAFETY_HEADERS, headers_of, is_too_long, send_answer
from heedful.errors import UserError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 1 << 20
"""Most bytes of a request; texts and settings need a small part of them."""

_HEADERS = (
    *SAFETY_HEADERS,
    (b"content-security-policy", b"default-src 'self'; object-src 'none'; base-uri 'none'; "
     b"form-action 'self'; frame-ancestors 'none'"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)  # fmt: skip


class _TooLarge(Exception):
    """The body of a request is larger than the limit."""


class Guard:
    """Refuses requests of other sites and bodies that are too large.

    Args:
        app: application that answers all other requests.
        host: address that the server listens on. Its name is allowed as `Host`; a server reachable
            from other machines also answers for its numeric addresses.
        limit: maximum size of a body in bytes. A longer content length is refused unread; a body
            without a length is refused once it exceeds the limit.
        limits: limits of single paths.
        token: key of this start, a part of the printed address; None to answer every program of
            this machine.
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
        headers = headers_of(scope)
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
        try:
            if is_too_long(headers, limit):
                raise _TooLarge
            await self.app(scope, limited, send_with_headers)
        except _TooLarge:
            assert not started
            await _refuse(send_with_headers, 413, _too_large(limit))

    def _cookie_name(self, headers: Mapping[bytes, str]) -> str:
        """Return the cookie's name, with the port since browsers share cookies between ports."""
        port = urlsplit(f"//{headers[b'host']}").port or 80
        return f"heedful-{port}"

    async def _let_in(self, scope: Scope, headers: Mapping[bytes, str], send: Send) -> None:
        """Set the key as a cookie, and redirect to the address without it."""
        settings = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        del settings["token"]
        query = urlencode(settings, doseq=True)
        path = "/" + scope["path"].lstrip("/")  # two slashes would name another host
        cookie = f"{self._cookie_name(headers)}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        answer = [
            (b"location", quote(path).encode() + (f"?{query}".encode() if query else b"")),
            (b"set-cookie", cookie.encode()),
            (b"cache-control", b"no-store"),
        ]
        await send_answer(send, 303, headers=answer)

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
                "The studio answers its own pages only; this request comes from another site",
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
"""Most characters of each part of an error, since messages may repeat long input."""


def plain_error(error: UserError) -> dict[str, str | None]:
    """Return an error as JSON data, with long parts cut."""
    parts = {"what": error.what, "where": error.where, "remedy": error.remedy}
    return {name: text and _cut(text) for name, text in parts.items()}


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_WORDS else f"{text[:LONGEST_WORDS]}…"


_NO_TOKEN = UserError(
    "This studio can be opened only by the person who started it",
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
        send: channel of the request.
        status: HTTP status.
        error: error to show.
        as_page: true to answer a browser with a page, false to answer a script with JSON.
    """
    if as_page:
        words = {name: html.escape(text or "") for name, text in plain_error(error).items()}
        body = _PAGE.format(**words).encode()
    else:
        body = json.dumps(plain_error(error)).encode()
    headers = [
        (b"content-type", b"text/html; charset=utf-8" if as_page else b"application/json"),
        (b"connection", b"close"),
    ]
    await send_answer(send, status, body, headers)
