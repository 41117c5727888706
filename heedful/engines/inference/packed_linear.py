"""Linear layers with weights packed once, for inference: by kernels in C, oneDNN, or in 8 bits.

oneDNN packs a plain tensor in every call, which for few rows takes longer than the product. In 8
bits a weight row w is stored as round(127 · w / max|w|), and each input row is rounded the same way
in every call (Wu 2016; Bhandare 2019). Integer products are exact, so a row's result depends on no
other row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.device import best_seconds, measured_width
from heedful.engines.inference.lowering import Floats, PackedWeight
from heedful.kernels.library import has_int8_kernels, kernels
from heedful.kernels.structs import Linear as LinearStruct
from heedful.nn.embeddings import TokenEmbedding
from heedful.nn.linear_layers import FusedLinear

_LARGEST = 127
_SMALLEST = 1e-30
"""Keeps a row of zeros from being divided by 0."""

_SMALL_PRODUCT = 1 << 19
"""Products of fewer rows × K × N are quicker without a call to oneDNN."""

_FEW_ROWS = 16
"""Up to so many, each number of rows has its own oneDNN plan."""

_MEASURED_ROWS = 256
"""Of a batch of some dozen sentences, each continued in a few ways."""

_mkldnn: Any = torch.ops.mkldnn


class NativeLinear(nn.Module):
    """`x @ weight.T + bias` by kernels in C; a row's result depends on that row alone, bit for bit.

    Args:
        weight: [N, K].
        bias: [N] or None.
        then: activation of the result, `none` or `relu`.
        int8: round both sides to 8 bits, as `Int8Linear` does.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, then: str = "none", *, int8: bool = False
    ) -> None:
        super().__init__()
        self.packed = PackedWeight(
            weight.detach().float().contiguous().numpy(),
            None if bias is None else bias.detach().float().contiguous().numpy(),
            int8=int8,
            quantize=_quantize,
        )
        self.rectify = then == "relu"

    @property
    def struct(self) -> LinearStruct:
        """The layer as kernels take it."""
        return self.packed.struct

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] to [..., N] in the type of x."""
        rows, layer = x.float().contiguous(), self.packed.struct
        y = rows.new_empty((*x.shape[:-1], layer.out_width))
        if y.numel():
            count, library = y.numel() // layer.out_width, kernels()
            space = workspace(library.heedful_linear_workspace(layer, count))
            library.heedful_linear(
                layer,
                rows.data_ptr(),
                count,
                y.data_ptr(),
                self.rectify,
                space.data_ptr(),
            )
        return y.to(x.dtype)


Int8NativeLinear = functools.partial(NativeLinear, int8=True)


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` with the weight packed for oneDNN, in its own dtype.

    Args:
        weight: [N, K], float32 or bfloat16.
        bias: [N] or None.
        then: activation of the result, `none` or `relu`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, then: str = "none") -> None:
        super().__init__()
        weight = weight.detach()
        self.packed = _mkldnn._reorder_linear_weight(weight.contiguous())
        self.plain = weight if weight.numel() < _SMALL_PRODUCT else None
        self.bias = None if bias is None else bias.detach()
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] to [..., N]."""
        if self.plain is not None and x.numel() * self.plain.shape[0] < _SMALL_PRODUCT:
            y = F.linear(x, self.plain, self.bias)
            return y.relu_() if self.then == "relu" else y
        rows = x.reshape(-1, x.shape[-1])
        spare = -len(rows) % _granularity(len(rows))
        if spare:
            rows = F.pad(rows, (0, 0, 0, spare))
        y = _mkldnn._linear_pointwise(rows, self.packed, self.bias, self.then, [], "")
        unpadded: Tensor = y[: len(y) - spare].view(*x.shape[:-1], -1)
        return unpadded


class Int8Linear(nn.Module):
    """`x @ weight.T + bias` by PyTorch, both sides rounded to 8 bits symmetrically.

    Args:
        weight: [N, K].
        bias: [N] or None.
        then: activation of the result, `none` or `relu`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, then: str = "none") -> None:
        super().__init__()
        rounded, self.scale = round_weight(weight.detach().float())
        self.transposed = torch.empty(rounded.shape[::-1], dtype=torch.int8).copy_(
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
        product = torch._int_mm(rounded, self.transposed).float().mul_(largest)
        torch.addcmul(self.bias, product, self.scale, out=product)
        if self.then == "relu":
            product.relu_()
        shaped: Tensor = product.view(*x.shape[:-1], -1)
        return shaped.to(x.dtype)


def round_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a weight to 8 bits, each row by its largest magnitude.

    Args:
        weight: [N, K] float32.

    Returns:
        [N, K] int8; and the scale of each row's products, [N] float32 (the other factor is the
        largest magnitude of the input row).
    """
    largest = _largest(weight)
    rounded = (weight * (_LARGEST / largest)).round_().to(torch.int8)
    return rounded, largest[:, 0] / _LARGEST**2


class PackedMaps(nn.Module):
    """The maps of a `FusedLinear`, packed as one layer.

    Args:
        out_widths: of the maps by name, in the order of the fused output.
        layer: all of them as one.
    """

    def __init__(self, out_widths: dict[str, int], layer: nn.Module) -> None:
        super().__init__()
        self.out_widths = out_widths
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[..., K] to one [..., out_width] per map, in order."""
        return torch.split(self.layer(x), list(self.out_widths.values()), dim=-1)

    def some(self, x: Tensor, *names: str) -> tuple[Tensor, ...]:
        """Some of the maps of x [..., K]; a layer that is packed as one multiplies by all."""
        every = dict(zip(self.out_widths, self(x), strict=True))
        return tuple(every[name] for name in names)


class PackedProjection(TokenEmbedding):
    """A table whose rows score tokens, packed as a linear layer.

    Args:
        table: the output projection of the definition, whose weight is shared.
        bias: [V] or None.
        linear: packs weights.
    """

    def __init__(self, table: TokenEmbedding, bias: Tensor | None, linear: MakeLayer) -> None:
        nn.Module.__init__(self)
        self.weight = table.weight
        self.packed = linear(table.weight, bias)
        self._linear = linear

    def logits(self, states: Tensor, bias: Tensor | None) -> Tensor:
        """States [..., D] to scores of every token [..., V]."""
        scores: Tensor = self.packed(states)
        return scores

    def logits_over(self, ids: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """See `TokenEmbedding.logits_over`: the chosen rows are packed once, for many calls."""
        return self._linear(self.weight[ids], None if bias is None else bias[ids])


MakeLayer = Callable[..., nn.Module]
"""Makes a packed layer of weight, bias and activation."""


def pack_linear(module: nn.Module, linear: MakeLayer) -> None:
    """Replace all linear layers inside a module, in place, by packed ones.

    Args:
        module: an engine's own copy of a model or of a part.
        linear: packs weights, such as `PackedLinear` or `NativeLinear`.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.Linear | FusedLinear) and child.weight.numel() == 0:
            continue  # of a layer whose heads were all pruned
        if type(child) is nn.Linear:
            setattr(module, name, linear(child.weight, child.bias))
        elif type(child) is FusedLinear:
            packed = linear(child.weight, child.bias)
            setattr(module, name, PackedMaps(child.out_widths, packed))
        else:
            if getattr(child, "kind", None) == "relu":  # of a feed-forward network without a gate
                network: Any = child
                network.up = linear(network.up.weight, network.up.bias, "relu")
                network.activation = nn.Identity()
            pack_linear(child, linear)


@functools.lru_cache(maxsize=2)
def packs(dtype: torch.dtype = torch.float32) -> bool:
    """Return whether PyTorch multiplies by packed weights of this dtype here.

    It has no bfloat16 products where the processor lacks the instructions.
    """
    if not torch.backends.mkldnn.is_available() or not hasattr(_mkldnn, "_reorder_linear_weight"):
        return False
    try:
        PackedLinear(torch.ones(16, 16, dtype=dtype), None)
    except RuntimeError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def torch_multiplies_int8() -> bool:
    """Return whether PyTorch's 8-bit products are exact; old processors saturate at 16 bits."""
    if not hasattr(torch, "_int_mm"):
        return False
    largest = torch.full((1, 256), 1.0)
    product = Int8Linear(largest, None)(largest)
    return abs(float(product) - 256.0) < 1e-2


def _granularity(rows: int) -> int:
    """The step that numbers of rows are rounded up to: an eighth of the power of two below.

    oneDNN makes a plan for every number of rows and keeps some. Making one takes 0.7 ms to 5 ms,
    and the number changes whenever a sentence is finished.
    """
    return max(1, (1 << rows.bit_length()) // 16) if rows > _FEW_ROWS else 1


def _largest(rows: Tensor) -> Tensor:
    """The largest magnitude of each row, [n, 1]."""
    return rows.abs().amax(1, keepdim=True).clamp_(min=_SMALLEST)


def _quantize(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    rounded, scale = round_weight(torch.from_numpy(weight))
    return rounded.numpy(), scale.numpy()


def workspace(size: int) -> Tensor:
    """Uninitialized memory of so many bytes for a kernel's intermediate results."""
    return torch.empty(size, dtype=torch.uint8)


def int8_linear() -> MakeLayer | None:
    """The layer that multiplies in 8 bits here; None where none is exact."""
    if has_int8_kernels():
        return Int8NativeLinear
    return Int8Linear if torch_multiplies_int8() else None


def measure_int8(width: int) -> float | None:
    """Time a linear layer of `width` in 8 bits, rounding included: its rate in GFLOP/s.

    Args:
        width: D.

    Returns:
        The best of eight turns; None where there are no such products.
    """
    linear = int8_linear()
    if linear is None:
        return None
    width = measured_width(width)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_MEASURED_ROWS, width, generator=generator)
    layer = linear(torch.randn(width, width, generator=generator), None)
    with torch.inference_mode():
        best = best_seconds({"int8": functools.partial(layer, x)}, turns=8)
    return 2e-9 * _MEASURED_ROWS * width * width / best["int8"]
