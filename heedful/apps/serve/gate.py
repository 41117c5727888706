"""Checks of host, size and speed before a request reaches its endpoint, metrics and access log.

On a loopback address, requests with the `Host` of another site are refused (DNS rebinding). Bodies
over the limit are refused without being read to the end, and so are bodies that come too slowly.
Every answer is counted, and logged as a line of JSON without texts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from heedful.apps.serve.exchange import RefusedRequest
from heedful.apps.serve.limits import GateSettings
from heedful.apps.serve.metrics import Metrics
from heedful.apps.sockets import is_loopback, is_own_host
from heedful.apps.web import HUNG_UP, SAFETY_HEADERS, headers_of, is_too_long, send_answer
from heedful.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST_PACE = 50_000
"""Bytes of a body that give its client one second more to send the rest."""


class AccessLog:
    """An access log: a line of JSON for each request, without texts.

    Args:
        stream: stream of the log.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

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
            self._stream.write(json.dumps(entry, ensure_ascii=True) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Close the log."""
        self._stream.close()


class Gate:
    """The outermost ASGI layer of the application.

    Args:
        app: application that answers accepted requests.
        settings: limits of size and time, and allowed origins.
        metrics: counters of answers.
        known: paths with counters of their own; all other paths share one.
        for_files: paths of requests with files, which may be larger.
        log: log of requests; None without one.
        error_body: function that writes an error for a path.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: GateSettings,
        metrics: Metrics,
        known: Collection[str],
        for_files: Collection[str],
        log: AccessLog | None,
        error_body: Callable[[str, RefusedRequest], Mapping[str, Any]],
    ) -> None:
        self.app = app
        self.settings = settings
        self.metrics = metrics
        self.known = frozenset(known)
        self.for_files = frozenset(for_files)
        self.log = log
        self.error_body = error_body

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


class _Passage:
    """One request and its answer."""

    def __init__(self, gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        self.gate = gate
        self.scope = scope
        self.receive = receive
        self.send = send
        self.headers = headers_of(scope)
        self.status = HUNG_UP
        self.started = time.monotonic()
        self.read = 0
        is_file = scope["path"] in gate.for_files
        self.most = gate.settings.file if is_file else gate.settings.body
        self.is_read = False

    async def run(self) -> None:
        try:
            refusal = self._refusal()
            if refusal is not None:
                await self._refuse(refusal)
            elif self._is_preflight():
                await send_answer(self._send, 204)
            else:
                await self.gate.app(self.scope, self._receive, self._send)
        except RefusedRequest as refusal:
            if self.status == HUNG_UP:  # nothing was sent
                await self._refuse(refusal)
        except Exception:
            if self.status == HUNG_UP:  # a bug, which Starlette answers outside of this layer
                self.status = 500
            raise
        finally:
            seconds = time.monotonic() - self.started
            self.gate.count(self.scope, self.status, seconds)

    def _refusal(self) -> RefusedRequest | None:
        settings = self.gate.settings
        host = self.headers.get(b"host", "")
        if is_loopback(settings.host) and not is_own_host(host, settings.host):
            return RefusedRequest(403, "This server does not answer for this host", "host")
        if is_too_long(self.headers, self.most):
            return self._too_large()
        return None

    def _too_large(self) -> RefusedRequest:
        return RefusedRequest(413, f"The body is larger than {self.most:,} bytes", "size")

    async def _receive(self) -> Message:
        """Return the next part of the body, within the limits of time and size."""
        if self.is_read:  # the next message is a disconnect
            return await self.receive()
        seconds = self.gate.settings.seconds + self.read / LEAST_PACE
        left = self.started + seconds - time.monotonic()
        try:
            async with asyncio.timeout(left):
                message = await self.receive()
        except TimeoutError:
            raise RefusedRequest(
                408, "The body of the request did not arrive in time", "slow"
            ) from None
        self.read += len(message.get("body", b""))
        if self.read > self.most:
            raise self._too_large()
        self.is_read = not message.get("more_body", False)
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            extra = [*SAFETY_HEADERS, *self._cors()]
            message["headers"] = [*message.get("headers", ()), *extra]
        await self.send(message)

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
        return self.scope["method"] == "OPTIONS" and asks and bool(self._cors())

    async def _refuse(self, refusal: RefusedRequest) -> None:
        """Answer without reading the rest of the request, and close the connection."""
        self.scope["state"]["refusal"] = refusal.reason
        body = json.dumps(self.gate.error_body(self.scope["path"], refusal)).encode()
        headers = ((b"content-type", b"application/json"), (b"connection", b"close"))
        await send_answer(self._send, refusal.status, body, headers)
