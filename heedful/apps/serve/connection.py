"""HTTP connections that limit the time of request heads and lose no request at a stop.

uvicorn sets no limit on the time of a request's head, so a client that sends it byte by byte keeps
a connection for ever (slow loris). When uvicorn stops, it closes idle connections at once, although
the next request may already be on its way. It also writes the head of an answer before the body: if
the server is killed in between, half of an answer is left, and a proxy that has already passed on
the head cannot repeat the request.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Maximum seconds from the start of a connection or of a further request to the end of its head."""

LINGER_SECONDS = 2.0
"""Seconds for which a stopping server still accepts requests on open connections."""

YIELD_SECONDS = 0.0003
"""Seconds for which a worker that has accepted a connection leaves the next one to other workers.

Of 64 simultaneous connections to two workers that accept one at a time, one worker got 57 or more
in every second trial; with this pause neither got more than 40.
"""


class SharingLoop(asyncio.SelectorEventLoop):
    """An event loop that accepts one connection per iteration, since workers share the socket.

    asyncio itself would accept all waiting connections, up to its backlog.
    """

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, *, sock: socket.socket, backlog: int, **options: Any
    ) -> asyncio.Server:
        """Serve on a socket; the system queues up to `backlog` connections."""
        server = await super().create_server(protocol_factory, sock=sock, backlog=1, **options)
        sock.listen(backlog)
        return server


class GatheredWrites:
    """A transport that sends all bytes written in one iteration of the event loop together.

    Args:
        transport: transport that sends the bytes.
        loop: event loop of the transport.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write bytes at the end of this iteration of the loop."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def close(self) -> None:
        """Write the waiting bytes, and close the transport."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(H11Protocol):
    """A connection of a client."""

    _head_timer: asyncio.TimerHandle | None = None
    _is_stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request's head."""
        if self.config.workers > 1:
            time.sleep(YIELD_SECONDS)
        super().connection_made(GatheredWrites(transport, self.loop))  # type: ignore[arg-type]
        self._begin_head()

    def data_received(self, data: bytes) -> None:
        """Receive bytes; the first bytes of a request start its timer."""
        if self._head_timer is None and not self._is_busy():
            self._begin_head()
        super().data_received(data)

    def handle_events(self) -> None:
        """Handle complete events; a complete head stops the timer."""
        super().handle_events()
        if self._is_busy():
            self._end_head()
            if self._is_stopping:
                self._announce_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer when the client is gone."""
        self._end_head()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Answer the current request and requests that arrive shortly, then close."""
        self._is_stopping = True
        if self._is_busy():
            self._announce_end()
        else:
            self._close_soon()

    def on_response_complete(self) -> None:
        """Wait for the next request; a stopping server waits for a short time only."""
        super().on_response_complete()
        if self._is_stopping:
            self._close_soon()

    def _announce_end(self) -> None:
        """Close the connection after this answer, and announce it in the headers."""
        close = (b"connection", b"close")
        if close not in self.cycle.default_headers:
            self.cycle.default_headers = [*self.cycle.default_headers, close]

    def _close_soon(self) -> None:
        self.loop.call_later(LINGER_SECONDS, self._close_if_idle)

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _begin_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._close_if_idle)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_if_idle(self) -> None:
        if not self._is_busy() and not self.transport.is_closing():
            self.transport.close()
