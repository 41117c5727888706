"""Closing of a listening socket without resetting connections.

The system accepts connections into a queue before the program accepts them. If a listening socket
closes while connections are in the queue, they are reset, although clients may have sent requests.
"""

from __future__ import annotations

import ctypes
import selectors
import socket
import struct
import sys
import time

QUIET_SECONDS = 0.2
"""Seconds without a waiting connection after which the queue counts as empty: one or two round
trips, in which pending handshakes are completed."""

MOST_SECONDS = 5.0
"""Maximum wait for an empty queue in seconds, in case no worker accepts connections any more."""

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which Python's socket module does not name
# Byte 13 of a TCP header has the flags. Packets with SYN are dropped, all others pass.
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load the byte
    (0x45, 0, 1, 0x02),  # is SYN set?
    (0x06, 0, 0, 0),  # yes: keep 0 bytes
    (0x06, 0, 0, 0xFFFFFFFF),  # no: keep all
)


def empty_queue(listening: socket.socket) -> None:
    """Let no further connection into the queue, and wait until the queued connections are accepted.

    A client that connects meanwhile tries again after a second, and is then refused.

    Args:
        listening: listening socket, from which worker processes accept connections.
    """
    _drop_attempts(listening)
    end = time.monotonic() + MOST_SECONDS
    with selectors.DefaultSelector() as waiting:
        waiting.register(listening, selectors.EVENT_READ)
        while time.monotonic() < end and waiting.select(QUIET_SECONDS):
            time.sleep(0.01)  # until a worker accepts the connection


def _drop_attempts(listening: socket.socket) -> None:
    """Drop packets that open a connection; on other systems than Linux a short gap remains."""
    if sys.platform != "linux":
        return
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HL", len(_DROP_SYN), ctypes.addressof(buffer))
    listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
