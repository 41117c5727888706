"""The processor of this machine as a device: its rates are measured when a plan is made."""

from __future__ import annotations

import functools

from heedful.apps.planning.cluster import CPU, Device, Precision
from heedful.device import (
    best_seconds,
    measure_matmul,
    measured_width,
    resolve_precision,
    usable_cores,
)
from heedful.memory import available_bytes

_COPIED = 32 << 20
"""Elements that are copied to time the memory: 128 MB, more than any cache holds."""

_PRODUCTS = 0.9
"""Share of a single matmul's rate that the matmuls of a training step reach."""

_TURNS = 3

_SOCKETS = 2e9
"""Bytes/s that gloo passes between two processes: a constant, not measured on this machine."""

_NETWORK = 1.25e9
"""Bytes/s of 10 Gbit/s Ethernet."""


def measure_processor(processes: int, width: int) -> Device:
    """Time matmuls and copies for about a second; processes share the cores evenly.

    Args:
        processes: number of processes that train here side by side.
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
        # The fastest counts, since other work only slows it down: 84 and 201 GFLOP/s were measured.
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
    """Return the bytes/s that are read and written while a tensor is copied."""
    import torch

    source = torch.ones(_COPIED)
    target = torch.empty_like(source)
    best = best_seconds({"copy": lambda: target.copy_(source)}, turns=5)
    return 2 * source.nbytes / best["copy"]
