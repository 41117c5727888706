"""Equal hosts of equal devices, and the rates of their parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from heedful.errors import ConfigError

Precision = Literal["fp32", "bf16", "fp16"]

CPU = "cpu"
"""The name of the processor of this machine, which is measured."""

NUMBER_BYTES: dict[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an element in matmuls; weights are trained in float32 at every precision."""

LINK_SHARE = 0.8
"""Share of a link's rate that large collectives reach: an assumption, not measured."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator, or one process on a processor.

    Args:
        name: name in the catalogue.
        title: name in tables and messages.
        memory: bytes of its memory.
        rates: FLOP/s of dense matmuls, by precision.
        bandwidth: bytes/s of its memory.
        link: bytes/s to its neighbours in the host, in one direction.
        network: bytes/s of its share of the host's network, in one direction.
        products: share of the rate that the matmuls of a training step reach, by precision.
        products_from: origin of each share.
        source: data sheet and year.
        overlaps: true if it computes while it communicates.
    """

    name: str
    title: str
    memory: int
    rates: dict[Precision, float]
    bandwidth: float
    link: float
    network: float
    products: dict[Precision, float]
    products_from: dict[Precision, str]
    source: str
    overlaps: bool = True

    @property
    def precision(self) -> Precision:
        """The default precision of training."""
        return "bf16" if "bf16" in self.rates else "fp32"

    def reached(self, precision: Precision) -> float:
        """Return the FLOP/s that the matmuls of a training step reach.

        Raises:
            ConfigError: when the device does not compute at this precision.
        """
        return self.rate(precision) * self.products[precision]

    def rate(self, precision: Precision) -> float:
        """Return the FLOP/s of dense matmuls at a precision, from the data sheet.

        Raises:
            ConfigError: when the device does not compute at this precision.
        """
        if precision not in self.rates:
            raise ConfigError(
                f"{self.title} has no products in {precision}",
                where="--precision",
                remedy=f"Take {' or '.join(self.rates)}",
            )
        return self.rates[precision]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal hosts of equal devices.

    Args:
        device: device, the same everywhere.
        per_host: number of devices in a host.
        hosts: number of hosts.
    """

    device: Device
    per_host: int
    hosts: int = 1

    @property
    def devices(self) -> int:
        """The number of all devices."""
        return self.per_host * self.hosts

    def bandwidth(self, size: int, in_host: int) -> float:
        """Return the bytes/s in one direction of a ring through a group of devices.

        A ring that leaves the host does so by the networks of all its members there.

        Args:
            size: number of devices in the group.
            in_host: members of the group in the same host.
        """
        link = self.device.link if in_host > 1 else float("inf")
        network = in_host * self.device.network if size > in_host else float("inf")
        return LINK_SHARE * min(link, network)

    def describe(self) -> str:
        """A description of the hosts and their devices."""
        hosts = "" if self.hosts == 1 else f"{self.hosts} hosts of "
        return f"{hosts}{self.per_host} × {self.device.title}"
