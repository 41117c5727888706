"""Bytes that ring collectives send from each device (Patarasuk and Yuan 2009).

In a ring of n devices, a tensor is n chunks. A reduce-scatter sends n − 1 of them, each to the next
neighbour, which adds its own; an all-gather passes the finished chunks on in n − 1 turns; an
all-reduce is both. No algorithm sends less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from heedful.apps.planning.cluster import Cluster
from heedful.apps.planning.layouts import Group

LATENCY = 5e-6
"""Seconds until a neighbour has the first byte; assumed, of NCCL over NVLink or InfiniBand."""


def gather_bytes(size: int, nbytes: float) -> float:
    """Return the bytes that each of `size` devices sends to gather, or scatter, a tensor.

    Args:
        size: devices in the ring.
        nbytes: of the whole tensor.
    """
    return (size - 1) / size * nbytes


def all_reduce_bytes(size: int, nbytes: float) -> float:
    """Return the bytes that each of `size` devices sends to sum tensors.

    Args:
        size: devices in the ring.
        nbytes: of one tensor.
    """
    return 2 * gather_bytes(size, nbytes)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Communication of one kind in an update.

    Args:
        kind: for people.
        sent: bytes that each device sends.
        seconds: that it takes.
        shown: seconds of it during which nothing is computed.
    """

    kind: str
    sent: float
    seconds: float
    shown: float


def traffic(
    kind: str,
    sent: float,
    group: Group,
    cluster: Cluster,
    *,
    calls: int,
    behind: float = 0.0,
) -> Traffic:
    """Return the time of a communication, and how much of it computing does not hide.

    Args:
        kind: for people.
        sent: bytes that each device sends.
        group: that communicates.
        cluster: whose links it uses.
        calls: collectives it comes in; the first, or the last, has nothing to hide behind.
        behind: seconds of computing that it may hide behind; 0 where the result is waited for.
    """
    if group.size == 1:
        return Traffic(kind=kind, sent=0.0, seconds=0.0, shown=0.0)
    # Short messages take a tree there and back (Sanders 2009), which a ring of hundreds could not.
    turns = 2 * math.ceil(math.log2(group.size))
    seconds = sent / group.bandwidth(cluster) + calls * turns * LATENCY
    shown = seconds
    if cluster.device.overlaps and behind:
        shown = max(seconds / calls, seconds - behind)
    return Traffic(kind=kind, sent=sent, seconds=seconds, shown=shown)
