"""HTTP connections that neither wait for ever nor lose a request when the server stops.

uvicorn has no limit on the time that the head of a request may take, so that a client which sends
it byte by byte keeps a connection for ever (slow loris). And when it stops, it closes connections
without a word, although a next request may be on its way on them. It writes the head of an answer
before its body: killed between the two, it would leave half an answer, which a proxy that has
passed the head on cannot ask for again.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Most seconds between a connection's, or a request's, first byte and the end of its head."""

LINGER_SECONDS = 2.0
"""Seconds in which a stopping server still answers requests of open connections."""

YIELD_SECONDS = 0.0003
"""Seconds in which a worker that has taken a connection leaves the next one to another worker.

Of 64 connections that came at once to two workers, which take one at a time, one worker had 57 or
more in every second try; with this pause none had more than 40.
"""


class SharingLoop(asyncio.SelectorEventLoop):
    """An event loop of a worker that shares its listening socket: it takes one connection a turn.

    asyncio takes as many as its backlog, up to all that wait.
    """

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, *, sock: socket.socket, backlog: int, **options: Any
    ) -> asyncio.Server:
        """Serve on a socket; the system holds `backlog` connections until they are taken."""
        server = await super().create_server(protocol_factory, sock=sock, backlog=1, **options)
        sock.listen(backlog)
        return server


class GatheredWrites:
    """A transport; what is written in one turn of the event loop leaves together.

    Args:
        transport: that writes.
        loop: it runs in.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write bytes at the end of this turn."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def close(self) -> None:
        """Write what waits, and close."""
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
        """Begin the time of the first request's head."""
        if self.config.workers > 1:
            time.sleep(YIELD_SECONDS)
        super().connection_made(GatheredWrites(transport, self.loop))  # type: ignore[arg-type]
        self._begin_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of a next request begin its time."""
        if self._head_timer is None and not self._is_busy():
            self._begin_head()
        super().data_received(data)

    def handle_events(self) -> None:
        """Take what is complete; a complete head ends its time."""
        super().handle_events()
        if self._is_busy():
            self._end_head()
            if self._is_stopping:
                self._announce_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all that waits for the client."""
        self._end_head()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Answer what is being computed, and what comes shortly, then close."""
        self._is_stopping = True
        if self._is_busy():
            self._announce_end()
        else:
            self._close_soon()

    def on_response_complete(self) -> None:
        """Go on with the next request; a server that stops waits for it for a while only."""
        super().on_response_complete()
        if self._is_stopping:
            self._close_soon()

    def _announce_end(self) -> None:
        """Tell the client with the answer that the connection ends, and end it then."""
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
