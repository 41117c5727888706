"""The catalogue of devices, and what people write for them."""

from __future__ import annotations

import os

import pytest
import torch

from heedful.apps.planning.cluster import adapted, device_names, read_devices
from heedful.errors import ConfigError


@pytest.mark.parametrize("name", [name for name in device_names() if name != "cpu"])
def test_devices_are_complete(name: str) -> None:
    device, number = read_devices(f"8x{name}", width=512)
    assert number == 8
    assert device.rates.keys() == device.products.keys() == device.products_from.keys()
    assert "fp32" in device.rates
    assert device.precision in device.rates
    for precision in device.rates:
        assert 0 < device.products[precision] < 1
        assert device.reached(precision) < device.rate(precision)
    assert any(year in device.source for year in map(str, range(2016, 2027)))
    assert device.memory > 10 << 30
    assert device.network < device.link * 2 < device.bandwidth


@pytest.mark.parametrize("words", ["8xH100", "8 x h100", "8×H100", " 8*H100 "])
def test_ways_to_write_a_number_of_devices(words: str) -> None:
    device, number = read_devices(words, width=512)
    assert (device.name, number) == ("h100", 8)


@pytest.mark.parametrize("words", ["3xRTX4090", "3xrtx_4090", "3xrtx-4090"])
def test_a_name_with_or_without_its_hyphen(words: str) -> None:
    device, number = read_devices(words, width=512)
    assert (device.name, number) == ("rtx-4090", 3)


def test_a_name_alone_is_one_device() -> None:
    assert read_devices("a100", width=512)[1] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("8xH10", "Did you mean 'h100'"),
        ("8xbanana", "Known: .*a100"),
        ("0xH100", "is no number of devices"),
        ("-1xH100", "is no number of devices"),
        ("8", "is no number of devices"),
        ("", "is no number of devices"),
        ("8xH100, 4xA100", "is no number of devices"),
    ],
)
def test_what_is_no_device(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_devices(words, width=512)


def test_a_precision_that_a_device_has_not() -> None:
    device, _ = read_devices("v100", width=512)
    assert device.precision == "fp32"
    with pytest.raises(ConfigError, match=r"no products in bf16.*Take fp32 or fp16"):
        device.rate("bf16")


def test_links_and_shares_are_replaced() -> None:
    device, _ = read_devices("a100", width=512)
    other = adapted(device, link=32.0, network=100.0, efficiency=0.4)
    assert (other.link, other.network) == (32e9, 12.5e9)
    assert set(other.products.values()) == {0.4}
    assert adapted(device) == device
    assert not adapted(device, overlaps=False).overlaps
    for bad in ({"link": 0.0}, {"network": -1.0}, {"efficiency": 1.5}, {"efficiency": 0.0}):
        with pytest.raises(ConfigError):
            adapted(device, **bad)


def test_processes_share_this_machine() -> None:
    one, _ = read_devices("cpu", width=128)
    two, number = read_devices("2xcpu", width=128)
    assert number == 2
    assert not two.overlaps
    threads = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0))
    assert two.rate("fp32") / one.rate("fp32") == pytest.approx(
        min(threads, cores / 2) / min(threads, cores)
    )
    assert two.memory == pytest.approx(one.memory / 2, rel=0.2)
