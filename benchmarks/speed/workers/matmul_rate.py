"""How fast this processor multiplies matrices: the ceiling that shares are stated of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import serve
import torch
from torch.nn.functional import linear

SHAPES = ((4096, 512, 2048), (2048, 2048, 2048))
"""Rows, inner and outer width: products as large as those of a base model, and larger ones."""


def main() -> None:
    """Answer with GFLOP/s by precision, the best shape's median each."""
    serve.serve({"measure": measure})


def measure(device: str = "cpu", shrink: int = 1) -> dict[str, Any]:
    """The rates of this moment; with fewer rows they are found sooner, and mean less."""
    rates: dict[str, float] = {}
    for shape in SHAPES if device == "cpu" else ((16384, 4096, 4096),):
        rows, inner, outer = shape[0] // shrink, shape[1], shape[2]
        x = torch.randn(rows, inner, device=device)
        weight = torch.randn(outer, inner, device=device)
        for name, dtype in (("fp32", x.dtype), ("onednn", x.dtype), ("bf16", torch.bfloat16)):
            if name == "onednn" and device != "cpu":
                continue
            with torch.no_grad(), _route(name):
                a, b = x.to(dtype), weight.to(dtype)
                rate = 2e-9 * rows * inner * outer / _median_seconds(a, b)
            rates[name] = max(rates.get(name, 0.0), rate)
    return {"gflops": {name: round(rate, 1) for name, rate in rates.items()}}


@contextmanager
def _route(name: str) -> Iterator[None]:
    """Float32 products take oneDNN's route in this context if that is the name."""
    if name != "onednn":
        yield
        return
    matmul: Any = torch.backends.mkldnn.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _median_seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    times = []
    for _ in range(6):
        if a.is_cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        linear(a, b)
        if a.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return sorted(times[1:])[2]  # the first one warms up


if __name__ == "__main__":
    main()
