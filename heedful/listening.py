"""Sockets of this machine's servers, and which addresses and host names are theirs."""

from __future__ import annotations

import errno
import ipaddress
import socket
from urllib.parse import urlsplit

from heedful.errors import UserError


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


def address_of(listening: socket.socket, host: str | None = None) -> str:
    """Return the address to open in a browser.

    Args:
        listening: from `listen`.
        host: an address of this machine; that of the socket if None.
    """
    own, port = listening.getsockname()[:2]
    host = host or {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(own, own)
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def outside_address() -> str | None:
    """Return the address under which other machines reach this one; None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of the documentation's block: nothing is sent
        except OSError:
            return None
        host: str = probe.getsockname()[0]
    return None if host.startswith("127.") else host


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_host(header: str, host: str) -> bool:
    """Return whether the `Host` of a request is this server, not a name that points here.

    Args:
        header: the value of the header.
        host: the address that the server listens on. Its name counts, and so do localhost and
            numeric addresses: those of this machine, or any where others can reach it.
    """
    try:
        name = urlsplit(f"//{header}").hostname
    except ValueError:
        return False
    if name is None:
        return False
    if name in ("localhost", host):
        return True
    try:  # a rebound name is a name: a numeric address is where the browser really went
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(host)
