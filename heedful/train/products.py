"""Whose matrix products training uses on a processor, PyTorch's or Heedful's: timed there."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from heedful.device import Precision, best_seconds, measured_width
from heedful.nn.native.library import multiplies, narrowest
from heedful.nn.product import linear

_KINDS = {"fp32": "float32", "bf16": "bfloat16"}
_EVEN = 0.8
"""Own kernels' share of PyTorch's rate at which an update takes as long with either. A layer timed
alone, again and again, is where PyTorch does best: its plan is made, and nothing around it counts.
With 0.87 times its rate so measured an update of `base` in bfloat16 was 1.12 times as fast."""

_TURNS = 4
_ROWS = 1024


@dataclass(frozen=True)
class ProductRates:
    """Measured rates of a linear layer forward and backward, in GFLOP/s.

    Args:
        torch: by PyTorch.
        own: by kernels of Heedful's own.
    """

    torch: float
    own: float


def measure_products(precision: Precision, width: int) -> ProductRates | None:
    """Time both, in turns, in about 0.2 seconds; None where there is no choice.

    Args:
        precision: of the products.
        width: D of the model.
    """
    if precision.device != "cpu" or precision.name not in _KINDS:
        return None
    kind = _KINDS[precision.name]
    width = max(narrowest(kind), measured_width(width))
    if not multiplies(kind, width):
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, width, generator=generator).requires_grad_()
    weight = torch.randn(width, width, generator=generator).requires_grad_()
    change = torch.randn(_ROWS, width, generator=generator).to(getattr(torch, kind))

    def multiply(own: bool) -> None:
        with replace(precision, own=own).autocast():
            y = linear(x, weight, None)
        torch.autograd.grad(y, (x, weight), change)

    ways = {own: functools.partial(multiply, own) for own in (True, False)}
    best = best_seconds(ways, turns=_TURNS)
    work = 6e-9 * _ROWS * width * width
    return ProductRates(torch=work / best[False], own=work / best[True])


def choose_products(precision: Precision, width: int) -> Precision:
    """The precision with the products that make an update faster, and both rates in its reason.

    Args:
        precision: chosen already.
        width: D of the model.
    """
    rates = measure_products(precision, width)
    if rates is None:
        return precision
    own = rates.own >= _EVEN * rates.torch
    taken = "own kernels" if own else "PyTorch"
    found = f"training's products: PyTorch {rates.torch:.0f}, own kernels {rates.own:.0f}"
    return replace(precision, own=own, reason=f"{precision.reason}; {found}, by {taken}")
