"""Checks of origin and size before a request reaches the studio.

The studio reads and runs models on request, so it answers only pages that it served itself. Three
things could pretend to be such a page: a site whose name points at this machine (its `Host` gives
it away), a script of another site that posts here (its `Origin` or `Sec-Fetch-Site` does), and a
frame around ours (headers forbid it).
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from heedful.errors import UserError

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
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        limit: int = MAX_BODY,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.app = app
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

        refused = self._foreign(headers, scope["path"])
        if refused is not None:
            await _refuse(send_with_headers, 403, refused)
            return
        length = headers.get(b"content-length", "0")
        try:
            if not length.isdecimal() or int(length) > limit:
                raise _TooLarge
            await self.app(scope, limited, send_with_headers)
        except _TooLarge:
            assert not started
            await _refuse(send_with_headers, 413, _too_large(limit))

    def _foreign(self, headers: dict[bytes, str], path: str) -> UserError | None:
        host = headers.get(b"host", "")
        if not self._is_ours(host):
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

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if name is None:
            return False
        if name in ("localhost", self.host):
            return True
        try:  # a rebound name is a name: a numeric address is where the browser really went
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not is_loopback(self.host)


def _too_large(limit: int) -> UserError:
    return UserError(
        f"The request is larger than {limit:,} bytes",
        where="the request's body",
        remedy="Send less at a time; files are for the command line",
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def plain_error(error: UserError) -> dict[str, str | None]:
    """Return an error as JSON data."""
    return {"what": error.what, "where": error.where, "remedy": error.remedy}


async def _refuse(send: Send, status: int, error: UserError) -> None:
    """Answer without reading the rest of the request, and close the connection."""
    body = json.dumps(plain_error(error)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
