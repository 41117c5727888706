"""Checks of origin and size before a request reaches the studio.

The studio reads and runs models on request, so it answers only its own pages. Three kinds of
requests could pretend to come from a page: requests of a site whose name points at this machine
(detected by `Host`), posts by scripts of another site (detected by `Origin` or `Sec-Fetch-Site`),
and clicks in a frame around a page (forbidden by headers). Other users of this machine can reach
the port as well, so each start has a key, in the printed address and then in a cookie.
"""

from __future__ import annotations

import hmac
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from heedful.apps.sockets import is_own_host
from heedful.apps.web import SAFETY_HEADERS, BodyTooLarge, CheckedExchange
from heedful.errors import UserError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BODY = 1 << 20
"""Maximum size of a request in bytes; texts and settings need much less."""

_HEADERS = (
    *SAFETY_HEADERS,
    (b"content-security-policy", b"default-src 'self'; object-src 'none'; base-uri 'none'; "
     # A saved PNG is drawn from the picture's own text.
     b"img-src 'self' data:; form-action 'self'; frame-ancestors 'none'"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """Refuses requests of other sites and bodies that are too large.

    Args:
        app: application that answers all other requests.
        host: address that the server listens on. Its name is allowed as `Host`; a server reachable
            from other machines also answers for its numeric addresses.
        limits: maximum size of a body in bytes, for paths that take more than `MAX_BODY`. A longer
            content length is refused unread, a body without a length once it exceeds the limit.
        token: key of this start, which is part of the printed address; None to answer every program
            on this machine.
    """

    app: ASGIApp
    host: str = "127.0.0.1"
    limits: Mapping[str, int] = field(default_factory=dict)
    token: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.limits.get(scope["path"], MAX_BODY)
        exchange = CheckedExchange(scope, receive, send, limit, _HEADERS)
        headers = exchange.headers
        as_page = "text/html" in headers.get(b"accept", "")
        refused = self._foreign(headers, scope["path"])
        if refused is not None:
            await _refuse(exchange, 403, refused, as_page=as_page)
            return
        if self.token is not None and not scope["path"].startswith("/static/"):
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if given and _same(given, self.token):
                await self._let_in(exchange)
                return
            if not _same(_cookie(headers, self._cookie_name(headers)), self.token):
                await _refuse(exchange, 401, _NO_TOKEN, as_page=as_page)
                return
        try:
            exchange.check_length()
            await self.app(scope, exchange.receive, exchange.send)
        except BodyTooLarge:
            assert exchange.status is None
            error = UserError(
                f"The request is larger than {limit:,} bytes",
                where="the request's body",
                remedy="Send less at a time; files are for the command line",
            )
            await _refuse(exchange, 413, error)

    def _cookie_name(self, headers: Mapping[bytes, str]) -> str:
        """Return the name of the cookie, with the port, as browsers share cookies between ports."""
        port = urlsplit(f"//{headers[b'host']}").port or 80
        return f"heedful-{port}"

    async def _let_in(self, exchange: CheckedExchange) -> None:
        """Set the key as a cookie, and redirect to the address without the key."""
        scope, name = exchange.scope, self._cookie_name(exchange.headers)
        settings = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        del settings["token"]
        query = urlencode(settings, doseq=True)
        path = "/" + scope["path"].lstrip("/")  # two slashes would name another host
        cookie = f"{name}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        answer = [
            (b"location", quote(path).encode() + (f"?{query}".encode() if query else b"")),
            (b"set-cookie", cookie.encode()),
            (b"cache-control", b"no-store"),
        ]
        await exchange.answer(303, headers=answer)

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


LONGEST_WORDS = 600
"""Maximum number of characters of each part of an error, since messages may repeat long input."""


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


async def _refuse(
    exchange: CheckedExchange, status: int, error: UserError, *, as_page: bool = False
) -> None:
    """Answer without reading the rest of the request, and close the connection.

    Args:
        exchange: request to refuse.
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
    await exchange.answer(status, body, headers)
