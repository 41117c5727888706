"""Serving the studio on this machine."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.studio.workspace import Workspace


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens.

    Args:
        host: a name or address of this machine.
        port: 0 takes a free one.

    Raises:
        UserError: when the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: only then does asyncio send small answers at once (TCP_NODELAY), where
    # otherwise each waits 40 ms for the acknowledgement of the one before.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            "Another program listens on this port" if taken else f"Cannot listen: {reason}",
            where=f"{host}:{port}",
            remedy="Choose another one: --port 0 takes any that is free",
        ) from None
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the address to open in a browser."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def serve(
    workspace: Workspace,
    host: str,
    listening: socket.socket,
    ready: Callable[[], None] | None = None,
) -> None:
    """Serve until a signal says to stop.

    Args:
        workspace: the models and runs that pages may look at.
        host: the address it was told to listen on.
        listening: from `listen`.
        ready: called as soon as requests are answered.
    """
    import uvicorn

    from heedful.studio.app import build_app

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if ready is not None:
                ready()

    config = uvicorn.Config(
        build_app(workspace, host),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
    )
    Server(config).run(sockets=[listening])
