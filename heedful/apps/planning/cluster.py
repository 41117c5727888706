"""Clusters of identical hosts with identical devices, and their rates.

Rates come from data sheets; the rates of this machine's processor are measured when a plan is made.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

from heedful.config import read_toml_text
from heedful.device import (
    best_seconds,
    measure_matmul,
    measured_width,
    resolve_precision,
    usable_cores,
)
from heedful.errors import ConfigError, suggest
from heedful.memory import available_bytes

Precision = Literal["fp32", "bf16", "fp16"]

CPU = "cpu"
"""The name of the processor of this machine, which is measured."""

NUMBER_BYTES: dict[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an element in matmuls; weights are trained in float32 at every precision."""

LINK_SHARE = 0.8
"""Share of a link's rate that large collectives reach; it is assumed, not measured."""

_COPIED = 32 << 20
"""Number of elements that are copied to time the memory: 128 MB, more than any cache holds."""

_PRODUCTS = 0.9
"""Share of the rate of a single matmul that the matmuls of a training step reach."""

_TURNS = 3

_SOCKETS = 2e9
"""Bytes/s of gloo between two processes; a constant, not measured on this machine."""

_NETWORK = 1.25e9
"""Bytes/s of 10 Gbit/s Ethernet."""


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
        products_from: source of each share.
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
    """Identical hosts with identical devices.

    Args:
        device: kind of all devices.
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

        A ring across hosts uses the network shares of all its members in a host.

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


_FILE = resources.files("heedful.apps.planning") / "devices.toml"

_COUNT = re.compile(
    r"(?:(?P<number>[1-9]\d{0,6})\s*[x×*]\s*)?(?P<name>[a-z][\w.-]*)", re.IGNORECASE
)


def device_names() -> list[str]:
    """Return the names that `--devices` takes."""
    return [*_catalogue(), CPU]


def read_devices(words: str, *, width: int) -> tuple[Device, int]:
    """Return a device and the number of such devices in a host.

    Args:
        words: text such as `8xH100`, or a name alone for one device.
        width: width of the model, at which the processor's matmuls are timed.

    Raises:
        ConfigError: when the text has another form, or the device is unknown.
    """
    match = _COUNT.fullmatch(words.strip())
    if match is None:
        raise ConfigError(
            f"{words!r} is no number of devices",
            where="--devices",
            remedy=f"Write NUMBERxNAME, such as 8xH100; names are {', '.join(device_names())}",
        )
    number, name = int(match["number"] or 1), match["name"].lower()
    if name == CPU:
        return measure_processor(number, width), number
    devices = {_plain(known): device for known, device in _catalogue().items()}
    if _plain(name) not in devices:
        raise ConfigError(
            f"No device is called {match['name']!r}",
            where="--devices",
            remedy=suggest(name, device_names()),
        )
    return devices[_plain(name)], number


def _plain(name: str) -> str:
    """Return a name without spaces and hyphens, so that RTX4090 matches rtx-4090."""
    return name.replace("-", "").replace("_", "")


def adapted(
    device: Device,
    *,
    link: float | None = None,
    network: float | None = None,
    efficiency: float | None = None,
    overlaps: bool = True,
) -> Device:
    """Return a device with other links, or another share of its rate.

    Args:
        device: device of the catalogue.
        link: GB/s to neighbours in the host, in one direction; the catalogue's if unset.
        network: Gbit/s of its share of the host's network; the catalogue's if unset.
        efficiency: share of the rate that matmuls reach at every precision; that of the device if
            unset.
        overlaps: false to forbid communication during computation.

    Raises:
        ConfigError: when a rate is not positive, or the share is above 1.
    """
    rates = {"--interconnect": link, "--network": network, "--efficiency": efficiency}
    for flag, value in rates.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{value:g} is not above 0", where=flag, remedy="Give a rate")
    if efficiency is not None and efficiency > 1:
        raise ConfigError(
            f"{efficiency:g} is above 1",
            where="--efficiency",
            remedy="Give the share of the device's rate that matmuls reach, such as 0.5",
        )
    changes: dict[str, Any] = {"overlaps": device.overlaps and overlaps}
    if link is not None:
        changes["link"] = link * 1e9
    if network is not None:
        changes["network"] = network * 1e9 / 8
    if efficiency is not None:
        changes["products"] = dict.fromkeys(device.products, efficiency)
        changes["products_from"] = dict.fromkeys(device.products, "as given")
    return replace(device, **changes)


@functools.cache
def _catalogue() -> dict[str, Device]:
    tables = read_toml_text(_FILE.read_text(encoding="utf-8"), where="the devices")
    shares = tables["products"]
    return {name: _device(name, table, shares) for name, table in tables["devices"].items()}


def _device(name: str, table: dict[str, Any], shares: dict[str, Any]) -> Device:
    products: dict[Precision, str] = table["products"]
    return Device(
        name=name,
        title=table["title"],
        memory=int(table["memory_gib"]) << 30,
        rates={precision: rate * 1e12 for precision, rate in table["rates"].items()},
        products={key: shares[share]["share"] for key, share in products.items()},
        products_from={key: shares[share]["source"] for key, share in products.items()},
        bandwidth=table["bandwidth"] * 1e9,
        link=table["link"] * 1e9,
        network=table["network"] * 1e9 / 8,
        source=table["source"],
    )


def measure_processor(processes: int, width: int) -> Device:
    """Time matmuls and copies for about a second; processes share the cores evenly.

    Args:
        processes: number of training processes on this machine.
        width: width of the model.
    """
    import torch

    threads = torch.get_num_threads()
    cores = usable_cores()
    own = min(float(threads), cores / processes)
    rates = {name: rate * own / threads for name, rate in _product_rates(width).items()}
    title = f"process on {own:g} of {cores} cores of this machine"
    return Device(
        name=CPU,
        title=title,
        memory=available_bytes() // processes,
        rates=rates,
        bandwidth=_copy_rate() / processes,
        link=_SOCKETS,
        network=_NETWORK,
        products=dict.fromkeys(rates, _PRODUCTS),
        products_from=dict.fromkeys(rates, "assumed of products between other work"),
        source="measured now",
        overlaps=False,
    )


@functools.cache
def _product_rates(width: int) -> dict[Precision, float]:
    """Return the FLOP/s of a linear layer, forward and backward, by precision."""
    import torch

    from heedful.train.compute_plan import measure_products

    device = torch.device("cpu")
    rates: dict[Precision, float] = {}
    names: tuple[Precision, ...] = ("fp32", "bf16")
    for name in names:
        precision = resolve_precision(name, device, width=width)
        # The best rate counts, since other work only slows it down: 84 and 201 GFLOP/s were
        # measured.
        turns = [measure_products(precision, width) for _ in range(_TURNS)]
        best = [max(each.own, each.torch) for each in turns if each is not None]
        if best:
            rates[name] = max(best) * 1e9
    if not rates:  # without Heedful's kernels only PyTorch is measured
        measured = measure_matmul(measured_width(width))
        rates["fp32"] = (measured.onednn or measured.fp32) * 1e9
        if measured.bf16 is not None:
            rates["bf16"] = measured.bf16 * 1e9
    return rates


@functools.cache
def _copy_rate() -> float:
    """Return the bytes/s read and written in total while a tensor is copied."""
    import torch

    source = torch.ones(_COPIED)
    target = torch.empty_like(source)
    best = best_seconds({"copy": lambda: target.copy_(source)}, turns=5)
    return 2 * source.nbytes / best["copy"]
