"""A device and a model of round numbers."""

from __future__ import annotations

from typing import Any

from heedful.apps.planning.cluster import Device
from heedful.apps.planning.model_costs import Activations, BlockCosts, ModelCosts
from heedful.nn.work import Work


def device(**changes: Any) -> Device:
    """A device of 100 TFLOP/s that reaches half of them."""
    values: dict[str, Any] = {
        "name": "test",
        "title": "test device",
        "memory": 80 << 30,
        "rates": {"bf16": 100e12, "fp32": 10e12},
        "products": {"bf16": 0.5, "fp32": 0.5},
        "products_from": {"bf16": "nowhere", "fp32": "nowhere"},
        "bandwidth": 1e12,
        "link": 100e9,
        "network": 10e9,
        "source": "nowhere",
    }
    return Device(**values | changes)


def block(**changes: Any) -> BlockCosts:
    """A block of a model of width 1,000 in bfloat16."""
    values: dict[str, Any] = {
        "layers": 1,
        "parameters": 12_010_000,
        "divisible": 12_000_000,
        "kept": Activations(inside=24_000, outside=12_000),
        "products": Activations(inside=16_000, outside=8_000),
        "inputs": Activations(outside=4_000),
        "exchanges": 2,
        "exchanged": 4_000,
        "keys_values": 4_000,
    }
    return BlockCosts(**values | changes)


def costs(**changes: Any) -> ModelCosts:
    """A decoder of ten such blocks, texts of 1,024 tokens."""
    one, length = block(), 1024
    total = BlockCosts(layers=0).plus(one, 10)
    values: dict[str, Any] = {
        "width": 1000,
        "vocabulary": 32_000,
        "predicted": 1.0,
        "parameters": total.parameters + 32_000_000,
        "length": length,
        "forward": Work(
            weights=2 * total.divisible * length,
            attention=40 * 1000 * length * length,
            output=64_000_000 * length,
        ),
        "number_bytes": 2,
        "blocks": total,
        "largest": one,
        "embedded": 0.0,
        "passing": 24_000.0,
        "divisors": {"heads": 16},
        "undivided": (),
        "refuses_context": "",
    }
    return ModelCosts(**values | changes)
