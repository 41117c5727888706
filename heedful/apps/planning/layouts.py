"""Layouts: how many devices hold copies, shards, parts of matrices and parts of texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from heedful.apps.planning.cluster import Cluster


class Group(NamedTuple):
    """Devices that exchange something, of which some are in one host.

    Args:
        size: devices in the group.
        in_host: members of the same group in one host.
    """

    size: int
    in_host: int

    def bandwidth(self, cluster: Cluster) -> float:
        """Return the bytes/s in one direction of a ring through the group."""
        return cluster.bandwidth(self.size, self.in_host)


class Layout(NamedTuple):
    """Numbers of devices in each dimension; their product is all devices.

    Neighbours differ in `tensor` first, then in `context`, `shard` and `data`: what is exchanged
    most often stays in a host.

    Args:
        data: copies of the model, each with texts of its own.
        shard: devices with texts of their own that hold one copy together (FSDP).
        tensor: devices that compute one matrix together.
        context: devices that hold one text together.
    """

    data: int = 1
    shard: int = 1
    tensor: int = 1
    context: int = 1

    @property
    def devices(self) -> int:
        """All of them."""
        return self.data * self.shard * self.tensor * self.context

    @property
    def batches(self) -> int:
        """Parts of a batch that different texts are in."""
        return self.data * self.shard

    def tensor_group(self, per_host: int) -> Group:
        """Return the devices that sum activations."""
        return _group(self.tensor, 1, per_host)

    def context_group(self, per_host: int) -> Group:
        """Return the devices that pass keys and values round."""
        return _group(self.context, self.tensor, per_host)

    def shard_group(self, per_host: int) -> Group:
        """Return the devices that gather weights and scatter gradients."""
        return _group(self.shard, self.tensor * self.context, per_host)

    def copies_group(self, per_host: int) -> Group:
        """Return the devices that hold the same weights, which sum their gradients.

        They are the copies of the model and the devices of one text; the latter are nearer.
        """
        near = _group(self.context, self.tensor, per_host)
        far = _group(self.data, self.tensor * self.context * self.shard, per_host)
        return Group(near.size * far.size, near.in_host * far.in_host)

    def describe(self) -> str:
        """The dimensions that are used: `data 4 × tensor 2`; `one device` for none."""
        used = [f"{name} {count}" for name, count in self._asdict().items() if count > 1]
        return " × ".join(used) or "one device"


def layouts(devices: int) -> Iterator[Layout]:
    """Yield every layout of a number of devices, those with few kinds of division first."""
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
