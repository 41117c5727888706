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
"""Seconds until a neighbour has the first byte: an assumption for NVLink and InfiniBand."""


def gather_bytes(size: int, nbytes: float) -> float:
    """Return the bytes that each of `size` devices sends to gather, or scatter, a tensor.

    Args:
        size: number of devices in the ring.
        nbytes: bytes of the whole tensor.
    """
    return (size - 1) / size * nbytes


def all_reduce_bytes(size: int, nbytes: float) -> float:
    """Return the bytes that each of `size` devices sends to sum tensors.

    Args:
        size: number of devices in the ring.
        nbytes: bytes of one tensor.
    """
    return 2 * gather_bytes(size, nbytes)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Communication of one kind in an update.

    Args:
        kind: name in tables.
        sent: bytes that each device sends.
        seconds: duration in seconds.
        shown: seconds of it that are not hidden behind computation.
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
    """Return the time of a communication, and the part not hidden behind computation.

    Args:
        kind: name in tables.
        sent: bytes that each device sends.
        group: communicating devices.
        cluster: cluster whose links are used.
        calls: number of collectives; the first, or the last, has no computation to overlap with.
        behind: seconds of computation to overlap with; 0 where the result is needed at once.
    """
    if group.size == 1:
        return Traffic(kind=kind, sent=0.0, seconds=0.0, shown=0.0)
    # Short messages go through a tree (Sanders 2009): its latency is logarithmic, a ring's linear.
    turns = 2 * math.ceil(math.log2(group.size))
    seconds = sent / group.bandwidth(cluster) + calls * turns * LATENCY
    shown = seconds
    if cluster.device.overlaps and behind:
        shown = max(seconds / calls, seconds - behind)
    return Traffic(kind=kind, sent=sent, seconds=seconds, shown=shown)
