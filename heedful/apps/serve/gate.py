"""Checks of host, size and speed before a request reaches its endpoint, metrics and access log.

On a loopback address, requests with the `Host` of another site are refused (DNS rebinding). Bodies
that exceed the limit or arrive too slowly are refused without being read to the end. Every answer
is counted, and logged as a line of JSON without texts. Headers in which a proxy names its client
are trusted only if they come from a configured proxy.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from heedful.apps.serve.exchange import RefusedRequest
from heedful.apps.serve.metrics import Metrics
from heedful.apps.serve.server_settings import GateSettings
from heedful.apps.sockets import is_loopback, is_own_host
from heedful.apps.web import HUNG_UP, SAFETY_HEADERS, CheckedExchange
from heedful.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST_PACE = 50_000
"""Number of bytes of a body that give its client another second to send the rest."""


@dataclass(frozen=True, eq=False)
class AccessLog:
    """An access log: a line of JSON for each request, without texts.

    Args:
        stream: stream of the log.
    """

    stream: TextIO

    @classmethod
    def open(cls, place: str) -> AccessLog:
        """Open a log.

        Args:
            place: path of a file to append to; - for standard error.

        Raises:
            ConfigError: when the file cannot be written.
        """
        try:
            return cls(sys.stderr if place == "-" else open(place, "a", encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"The log of requests cannot be written: {error.strerror}",
                where=f"--access-log {place}",
                remedy="Name a file in a folder that this user may write to",
            ) from None

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write a line; errors such as a full disk are ignored, since answers matter more."""
        with suppress(OSError):
            self.stream.write(json.dumps(entry, ensure_ascii=True) + "\n")
            self.stream.flush()

    def close(self) -> None:
        """Close the log."""
        self.stream.close()


class ForwardedHeaders:
    """An ASGI layer that removes the headers `X-Forwarded-*` unless a proxy sent them.

    Args:
        app: wrapped application.
        proxies: addresses and networks of proxies; * for any.
    """

    def __init__(self, app: ASGIApp, proxies: Collection[str]) -> None:
        self.app = app
        self.of_proxies = ProxyHeadersMiddleware(app, list(proxies))  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        client = (scope.get("client") or ("",))[0]
        if scope["type"] == "http" and client not in self.of_proxies.trusted_hosts:
            own = [pair for pair in scope["headers"] if not pair[0].startswith(b"x-forwarded-")]
            await self.app({**scope, "headers": own}, receive, send)
        else:
            await self.of_proxies(scope, receive, send)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Gate:
    """The outermost ASGI layer of the application.

    Args:
        app: application that answers accepted requests.
        settings: limits of size and time, and allowed origins.
        metrics: counters of answers.
        known: paths with separate counters; all other paths share one counter.
        for_files: paths of requests with files, which may be larger.
        log: log of requests; None without one.
        error_body: function that writes an error for a path.
    """

    app: ASGIApp
    settings: GateSettings
    metrics: Metrics
    known: Collection[str]
    for_files: Collection[str]
    log: AccessLog | None
    error_body: Callable[[str, RefusedRequest], Mapping[str, Any]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})
        await _Passage(self, scope, receive, send).run()

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count and log an answer."""
        path = scope["path"] if scope["path"] in self.known else "other"
        state = scope["state"]
        self.metrics.requests.labels(path, str(status)).inc()
        self.metrics.latency.labels(path).observe(seconds)
        reason = state.get("refusal")
        if reason is not None:
            self.metrics.refusals.labels(reason).inc()
        if self.log is None:
            return
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": (scope.get("client") or ("",))[0],
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "milliseconds": round(1000 * seconds, 1),
        }
        for name in ("owner", "texts", "refusal"):
            if state.get(name) is not None:
                entry[name] = state[name]
        self.log.write(entry)


class _Passage(CheckedExchange):
    """One request and its answer."""

    def __init__(self, gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        is_file = scope["path"] in gate.for_files
        limit = gate.settings.file if is_file else gate.settings.body
        super().__init__(scope, receive, send, limit)
        self.gate = gate
        self.cors = self._cors()
        self.added = (*SAFETY_HEADERS, *self.cors)
        self.started = time.monotonic()
        self.is_read = False

    async def run(self) -> None:
        try:
            own, host = self.gate.settings.host, self.headers.get(b"host", "")
            if is_loopback(own) and not is_own_host(host, own):
                raise RefusedRequest(403, "This server does not answer for this host", "host")
            self.check_length()
            if self._is_preflight():
                await self.answer(204)
            else:
                await self.gate.app(self.scope, self.receive, self.send)
        except RefusedRequest as refusal:
            await self._refuse(refusal)
        except Exception:
            # A bug: Starlette sends the answer outside of this layer.
            self.status = self.status or 500
            raise
        finally:
            seconds = time.monotonic() - self.started
            self.gate.count(self.scope, self.status or HUNG_UP, seconds)

    def too_large(self) -> RefusedRequest:
        return RefusedRequest(413, f"The body is larger than {self.limit:,} bytes", "size")

    async def receive(self) -> Message:
        """Return the next part of the body, within the limits of time and size."""
        if self.is_read:  # the next message is a disconnect
            return await super().receive()
        seconds = self.gate.settings.seconds + self.read / LEAST_PACE
        left = self.started + seconds - time.monotonic()
        try:
            async with asyncio.timeout(left):
                message = await super().receive()
        except TimeoutError:
            raise RefusedRequest(
                408, "The body of the request did not arrive in time", "slow"
            ) from None
        self.is_read = not message.get("more_body", False)
        return message

    def _cors(self) -> list[tuple[bytes, bytes]]:
        """Return the CORS headers for a script of another site, if its origin is allowed."""
        origin = self.headers.get(b"origin")
        origins = self.gate.settings.origins
        if origin is None or not ("*" in origins or origin in origins):
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-headers", b"authorization, content-type, x-api-key"),
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-max-age", b"600"),
            (b"vary", b"origin"),
        ]

    def _is_preflight(self) -> bool:
        asks = b"access-control-request-method" in self.headers
        return self.scope["method"] == "OPTIONS" and asks and bool(self.cors)

    async def _refuse(self, refusal: RefusedRequest) -> None:
        """Answer without reading the rest of the request, and close the connection.

        An answer that has begun is not replaced.
        """
        if self.status is not None:
            return
        self.scope["state"]["refusal"] = refusal.reason
        body = json.dumps(self.gate.error_body(self.scope["path"], refusal)).encode()
        headers = ((b"content-type", b"application/json"), (b"connection", b"close"))
        await self.answer(refusal.status, body, headers)
