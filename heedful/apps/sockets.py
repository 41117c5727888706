"""Sockets of this machine's servers, and checks of addresses and host names."""

from __future__ import annotations

import errno
import importlib.util
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from heedful.errors import ConfigError, UserError


def check_packages(names: Iterable[str], program: str, verb: str) -> None:
    """Check that the packages of a server are installed, before any is imported.

    Args:
        names: names of the modules that are needed.
        program: name of the program in the message.
        verb: verb of the program, which is also the name of the extra that installs the packages.

    Raises:
        ConfigError: naming the missing packages.
    """
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise ConfigError(
            f"{program} needs {' and '.join(missing)}",
            where=f"heedful {verb}",
            remedy=f"Install it with: pip install 'heedful[{verb}]'",
        )


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Args:
        host: name or address of this machine.
        port: port number; 0 for any free one.

    Raises:
        UserError: when the port is in use, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named as TCP, since only then does asyncio send small answers at once
    # (TCP_NODELAY). Otherwise each answer waits 40 ms for the acknowledgement of the previous
    # answer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A restarted server need not wait until connections of the previous server time out.
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
    """Return the URL of a server for a browser.

    Args:
        listening: socket from `listen`.
        host: address of this machine; that of the socket if None.
    """
    own, port = listening.getsockname()[:2]
    # A browser cannot open the addresses that mean all interfaces.
    host = host or {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(own, own)
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def outside_address() -> str | None:
    """Return the address of this machine in its network; None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket only chooses a route; nothing is sent to this address,
            # which is reserved for documentation.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        host: str = probe.getsockname()[0]
    return None if host.startswith("127.") else host


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_host(header: str, host: str) -> bool:
    """Return True if the `Host` header of a request names this server (no DNS rebinding).

    Args:
        header: value of the header.
        host: address on which the server listens. It is accepted as a host, and so are localhost,
            numeric loopback addresses and, if other machines can reach the server, all numeric
            addresses.
    """
    try:
        name = urlsplit(f"//{header}").hostname
    except ValueError:
        return False
    if name is None:
        return False
    if name in ("localhost", host):
        return True
    try:  # DNS rebinding needs a name; a numeric address is what the browser has opened
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(host)
