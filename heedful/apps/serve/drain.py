"""The end of a listening socket without a reset connection.

The system accepts connections into a queue before the program does. If a listening socket closes
while some are in that queue, they are reset, although their clients may have sent requests.
"""

from __future__ import annotations

import ctypes
import selectors
import socket
import struct
import sys
import time

QUIET_SECONDS = 0.2
"""Seconds without a waiting connection after which the queue counts as empty: a round trip or two,
in which handshakes that have begun are completed."""

MOST_SECONDS = 5.0
"""Most seconds until then, should the workers accept nothing any more."""

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which Python's socket module does not name
# Byte 13 of a TCP header has the flags. A packet with SYN is dropped, all others pass.
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load the byte
    (0x45, 0, 1, 0x02),  # is SYN set?
    (0x06, 0, 0, 0),  # yes: keep 0 bytes
    (0x06, 0, 0, 0xFFFFFFFF),  # no: keep all
)


def empty_queue(listening: socket.socket) -> None:
    """Let no further connection into the queue, and wait until the others are accepted.

    A client that connects in this time tries again after a second, and is refused then.

    Args:
        listening: listening socket, from which worker processes accept connections.
    """
    _drop_attempts(listening)
    end = time.monotonic() + MOST_SECONDS
    with selectors.DefaultSelector() as waiting:
        waiting.register(listening, selectors.EVENT_READ)
        while time.monotonic() < end and waiting.select(QUIET_SECONDS):
            time.sleep(0.01)  # a worker accepts it


def _drop_attempts(listening: socket.socket) -> None:
    """Drop packets that begin a connection; elsewhere than on Linux a short gap remains."""
    if sys.platform != "linux":
        return
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HL", len(_DROP_SYN), ctypes.addressof(buffer))
    listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
