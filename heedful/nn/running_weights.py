"""Linear maps as a processor runs them fastest, for models that are not trained any more.

oneDNN multiplies by weights laid out for the processor's registers; a plain tensor is laid out anew
in every call, which for few rows takes longer than the product. Here that is done once. In 8 bits
a weight row w is kept as round(127 · w / max|w|), and so is each input row, anew in every call (Wu
2016; Bhandare 2019); products of integers are exact, so a row's result depends on no other row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn import product
from heedful.nn.feedforward import FeedForward, relu
from heedful.nn.projection import FusedLinear

_LARGEST = 127
_SMALLEST = 1e-30
"""Keeps a row of zeros from being divided by 0."""

_FEW = 1 << 19
"""Products of fewer rows × K × N are quicker without a call to oneDNN."""

_FEW_ROWS = 16
"""Of these there is a plan for each number."""

_mkldnn: Any = torch.ops.mkldnn


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` with the weight laid out for oneDNN, in its own precision.

    Args:
        weight: [N, K], float32 or bfloat16.
        bias: [N] or None.
        then: what is computed of the result, `none` or `relu`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, then: str = "none") -> None:
        super().__init__()
        weight = weight.detach()
        self.packed = _mkldnn._reorder_linear_weight(weight.contiguous())
        self.plain = weight if weight.numel() < _FEW else None
        self.bias = None if bias is None else bias.detach()
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] to [..., N]."""
        if self.plain is not None and x.numel() * self.plain.shape[0] < _FEW:
            y = F.linear(x, self.plain, self.bias)
            return y.relu_() if self.then == "relu" else y
        rows = x.reshape(-1, x.shape[-1])
        spare = -len(rows) % _granularity(len(rows))
        if spare:
            rows = F.pad(rows, (0, 0, 0, spare))
        y = _mkldnn._linear_pointwise(rows, self.packed, self.bias, self.then, [], "")
        found: Tensor = y[: len(y) - spare].view(*x.shape[:-1], -1)
        return found


class Int8Linear(nn.Module):
    """The same with both sides rounded to 8 bits, symmetrically.

    Args:
        weight: [N, K].
        bias: [N] or None.
        then: what is computed of the result, `none` or `relu`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, then: str = "none") -> None:
        super().__init__()
        rounded, self.scale = round_weight(weight.detach().float())
        self.turned = torch.empty(rounded.shape[::-1], dtype=torch.int8).copy_(
            rounded.t()
        )  # [K, N]
        self.bias = torch.zeros(len(weight)) if bias is None else bias.detach().float()
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] to [..., N] in the type of x."""
        rows = x.reshape(-1, x.shape[-1]).float()
        largest = _largest(rows)
        rounded = (rows * (_LARGEST / largest)).round_().to(torch.int8)
        # A product without a plan made for its shape: making one takes as long as several products,
        # and the number of rows changes whenever a sentence is finished.
        product = torch._int_mm(rounded, self.turned).float().mul_(largest)
        torch.addcmul(self.bias, product, self.scale, out=product)
        if self.then == "relu":
            product.relu_()
        shaped: Tensor = product.view(*x.shape[:-1], -1)
        return shaped.to(x.dtype)


def round_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight in 8 bits.

    Args:
        weight: [N, K] float32.

    Returns:
        [N, K] int8; and [N] float32, what products of it and a rounded input row are multiplied
        with, besides the largest number of that row.
    """
    largest = _largest(weight)
    rounded = (weight * (_LARGEST / largest)).round_().to(torch.int8)
    return rounded, largest[:, 0] / _LARGEST**2


class Fused(nn.Module):
    """Several maps of one input, in place of a `FusedLinear`.

    Args:
        out_widths: of the maps, in the order of the fused output.
        layer: all of them as one.
    """

    def __init__(self, out_widths: list[int], layer: nn.Module) -> None:
        super().__init__()
        self.out_widths = out_widths
        self.layer = layer

    def forward(self, x: Tensor, rows: None = None) -> tuple[Tensor, ...]:
        """[..., K] to one [..., out_width] per map, in order; padding stays where it is."""
        return torch.split(self.layer(x), self.out_widths, dim=-1)


Linear = Callable[..., nn.Module]
"""Makes a layer of weight, bias and what is computed of the result."""


def replace_linear(module: nn.Module, linear: Linear) -> None:
    """Put such layers in place of all linear layers inside a module.

    Args:
        module: changed in place.
        linear: `PackedLinear` or `Int8Linear`.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.Linear | FusedLinear) and child.weight.numel() == 0:
            continue  # of a layer whose heads were all removed
        if type(child) in (nn.Linear, product.Linear):
            setattr(module, name, linear(child.weight, child.bias))
        elif type(child) is FusedLinear:
            fused = linear(child.weight, child.bias)
            setattr(module, name, Fused(list(child.out_widths.values()), fused))
        else:
            if type(child) is FeedForward and child.activation is relu and child.gate is None:
                setattr(child, "up", linear(child.up.weight, child.up.bias, "relu"))  # noqa: B010
                child.activation = nn.Identity()
            replace_linear(child, linear)


@functools.lru_cache(maxsize=2)
def packs(dtype: torch.dtype = torch.float32) -> bool:
    """Whether this PyTorch has products of packed weights of this type here.

    Of bfloat16 it has none where the processor has no instructions that they could be made of.
    """
    if not torch.backends.mkldnn.is_available() or not hasattr(_mkldnn, "_reorder_linear_weight"):
        return False
    try:
        PackedLinear(torch.ones(16, 16, dtype=dtype), None)
    except RuntimeError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def multiplies_int8() -> bool:
    """Whether products of 8-bit integers are exact here; old processors saturate at 16 bits."""
    if not hasattr(torch, "_int_mm"):
        return False
    largest = torch.full((1, 256), 1.0)
    found = Int8Linear(largest, None)(largest)
    return abs(float(found) - 256.0) < 1e-2


def _granularity(rows: int) -> int:
    """What numbers of rows are rounded up to a multiple of: an eighth of a power of two below.

    oneDNN makes a plan for every number of rows and keeps some. Making one takes 0.7 ms to 5 ms,
    and the number changes whenever a sentence is finished.
    """
    return max(1, (1 << rows.bit_length()) // 16) if rows > _FEW_ROWS else 1


def _largest(rows: Tensor) -> Tensor:
    """The largest magnitude of each row, [n, 1]."""
    return rows.abs().amax(1, keepdim=True).clamp_(min=_SMALLEST)
