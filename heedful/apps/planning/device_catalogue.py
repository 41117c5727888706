"""Devices by name: a catalogue from data sheets, and the processor of this machine."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from importlib import resources
from typing import Any

from heedful.apps.planning.cluster import CPU, Device, Precision
from heedful.config import read_toml_text
from heedful.errors import ConfigError, suggest

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
        from heedful.apps.planning.this_machine import measure_processor

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
    """Return a name without spaces and hyphens: RTX4090 is rtx-4090."""
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
        efficiency: share of the rate that matmuls reach, at every precision; its own if unset.
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
