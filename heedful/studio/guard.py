"""Who may talk to the studio, and how much they may send.

The studio reads models and runs them for whoever asks, so it answers only pages that it served
itself. Three things could pretend to be such a page: a site whose name was made to point at this
machine (its `Host` gives it away), another site's script that posts here (its `Origin` or
`Sec-Fetch-Site` does), and a frame around ours (headers forbid it).
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
    """A body went past the limit while it was read."""


class Guard:
    """Refuses strangers and floods before anything else looks at a request.

    Args:
        app: what answers the others.
        host: the address the server listens on. Its name is allowed; one that other machines
            reach may be called by any of its numeric addresses.
        limit: most bytes of a body. One that says it is longer is refused unread, one that does
            not say is cut off where it passes the limit.
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
        answered = False
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                raise _TooLarge
            return message

        async def told(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        refused = self._stranger(headers, scope["path"])
        if refused is not None:
            await _refuse(told, 403, refused)
            return
        length = headers.get(b"content-length", "0")
        try:
            if not length.isdecimal() or int(length) > limit:
                raise _TooLarge
            await self.app(scope, limited, told)
        except _TooLarge:
            assert not answered
            await _refuse(told, 413, _too_large(limit))

    def _stranger(self, headers: dict[bytes, str], path: str) -> UserError | None:
        """Why a request is not from a page of ours; None when it may be."""
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
    """Whether only this machine can reach an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _refuse(send: Send, status: int, error: UserError) -> None:
    """Answer without reading what else was sent, and hang up."""
    body = json.dumps({"what": error.what, "where": error.where, "remedy": error.remedy}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
