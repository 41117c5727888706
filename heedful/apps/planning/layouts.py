"""Layouts of data, shard, tensor and context parallelism over devices, and their messages.

Bytes are those of ring collectives (Patarasuk and Yuan 2009). In a ring of n devices, a tensor is
divided into n chunks. In a reduce-scatter each device sends n − 1 chunks to its neighbour, which
adds its own; in an all-gather the finished chunks are passed on in n − 1 steps; an all-reduce
consists of both. No algorithm sends fewer bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from heedful.apps.planning.cluster import Cluster

LATENCY = 5e-6
"""Seconds until a neighbour gets the first byte, assumed for NVLink and InfiniBand."""


class Group(NamedTuple):
    """A group of communicating devices.

    Args:
        size: number of devices in the group.
        in_host: members of the group in one host.
    """

    size: int
    in_host: int


class Layout(NamedTuple):
    """Number of devices in each dimension of parallelism.

    Neighbours differ in `tensor` first, then in `context`, `shard` and `data`, so that the most
    frequent messages stay in a host. The product of the four is the number of devices.

    Args:
        data: number of copies of the model, each of which processes other sequences.
        shard: number of devices that divide a copy, each of which processes other sequences (FSDP).
        tensor: number of devices that divide each matrix (tensor parallelism).
        context: number of devices that divide each sequence (context parallelism).
    """

    data: int = 1
    shard: int = 1
    tensor: int = 1
    context: int = 1

    @property
    def devices(self) -> int:
        """The number of all devices."""
        return self.data * self.shard * self.tensor * self.context

    @property
    def batches(self) -> int:
        """The number of devices or groups that process different sequences."""
        return self.data * self.shard

    def tensor_group(self, per_host: int) -> Group:
        """Return the devices that sum activations."""
        return _group(self.tensor, 1, per_host)

    def context_group(self, per_host: int) -> Group:
        """Return the devices that pass keys and values around a ring."""
        return _group(self.context, self.tensor, per_host)

    def shard_group(self, per_host: int) -> Group:
        """Return the devices that gather weights and scatter gradients."""
        return _group(self.shard, self.tensor * self.context, per_host)

    def copies_group(self, per_host: int) -> Group:
        """Return the devices that hold the same weights, which sum their gradients.

        These are the copies of the model and, nearer, the devices that divide a sequence.
        """
        near = _group(self.context, self.tensor, per_host)
        far = _group(self.data, self.tensor * self.context * self.shard, per_host)
        return Group(near.size * far.size, near.in_host * far.in_host)

    def describe(self) -> str:
        """The dimensions in use, such as `data 4 × tensor 2`, or `one device`."""
        used = [f"{name} {count}" for name, count in self._asdict().items() if count > 1]
        return " × ".join(used) or "one device"


def layouts(devices: int) -> Iterator[Layout]:
    """Yield every layout of a number of devices; few kinds of parallelism come first."""
    every = (
        Layout(data, shard, tensor, devices // (data * shard * tensor))
        for data in _divisors(devices)
        for shard in _divisors(devices // data)
        for tensor in _divisors(devices // (data * shard))
    )
    yield from sorted(every, key=lambda layout: (sum(n > 1 for n in layout), layout[::-1]))


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _group(size: int, stride: int, per_host: int) -> Group:
    """Return a group whose members are `stride` devices apart."""
    return Group(size, max(1, min(size, per_host // stride)))


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
        kind: name of the communication in tables.
        sent: bytes that each device sends.
        seconds: duration in seconds.
        shown: part of `seconds` that does not overlap with computation.
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
    """Return the time of a communication, and the part that does not overlap with computation.

    Args:
        kind: name in tables.
        sent: bytes that each device sends.
        group: communicating devices.
        cluster: cluster whose links are used.
        calls: number of collectives; the first or the last one cannot overlap with computation.
        behind: seconds of computation to overlap with; 0 if the result is needed at once.
    """
    if group.size == 1:
        return Traffic(kind=kind, sent=0.0, seconds=0.0, shown=0.0)
    # Short messages use a tree (Sanders 2009), whose latency is logarithmic; that of a ring is
    # linear.
    turns = 2 * math.ceil(math.log2(group.size))
    seconds = sent / cluster.bandwidth(*group) + calls * turns * LATENCY
    shown = seconds
    if cluster.device.overlaps and behind:
        shown = max(seconds / calls, seconds - behind)
    return Traffic(kind=kind, sent=sent, seconds=seconds, shown=shown)
