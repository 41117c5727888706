"""Linear layers for inference with weights packed once: for kernels in C, for oneDNN, or in 8 bits.

oneDNN packs a plain tensor in every call, which for few rows takes longer than the matmul. In 8
bits a weight row w is stored as round(127 · w / max|w|), and each input row is rounded the same way
in every call (Wu 2016; Bhandare 2019). PyTorch's dynamic quantisation has one scale for a batch, so
a translation would depend on its neighbours. Sums of integers are exact, so here it does not.
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
from heedful.nn.embeddings import TokenEmbedding
from heedful.nn.linear_layers import FusedLinear

_LARGEST = 127
_SMALLEST = 1e-30
"""Smallest divisor, for rows of zeros."""

_SMALL_MATMUL = 1 << 19
"""Multiplications (rows × K × N) below which a matmul is faster without a call to oneDNN."""

_FEW_ROWS = 16
"""Most rows for which every number of rows has its own oneDNN plan."""

_MEASURED_ROWS = 256
"""Rows of a decoding step in a measurement: some dozen sentences with a few hypotheses each."""

_mkldnn: Any = torch.ops.mkldnn


class NativeLinear(nn.Module):
    """`x @ weight.T + bias` by kernels in C; a row's result depends on that row alone, bit for bit.

    Args:
        weight: weight [N, K].
        bias: bias [N] or None.
        then: activation of the result, `none` or `relu`, in the same pass.
        int8: flag of rounding weight and input to 8 bits, as in `Int8Linear`.
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

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., K] to [..., N] in the dtype of x."""
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
    """A linear layer by oneDNN, with the weight packed in its own dtype, float32 or bfloat16."""

    def __init__(self, weight: Tensor, bias: Tensor | None, then: str = "none") -> None:
        super().__init__()
        weight = weight.detach()
        self.packed = _mkldnn._reorder_linear_weight(weight.contiguous())
        # Only weights this small can be below the limit, in a matmul with a single row.
        self.plain = weight if weight.numel() < _SMALL_MATMUL else None
        self.bias = None if bias is None else bias.detach()
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., K] to [..., N]."""
        if self.plain is not None and x.numel() * self.plain.shape[0] < _SMALL_MATMUL:
            y = F.linear(x, self.plain, self.bias)
            return y.relu_() if self.then == "relu" else y
        rows = x.reshape(-1, x.shape[-1])
        # oneDNN makes a plan for every number of rows, in 0.7 to 5 ms, and the number changes
        # whenever a sentence is finished. So it is rounded up to eighths of the power of two below.
        step = (1 << len(rows).bit_length()) // 16 if len(rows) > _FEW_ROWS else 1
        spare = -len(rows) % step
        if spare:
            rows = F.pad(rows, (0, 0, 0, spare))
        y = _mkldnn._linear_pointwise(rows, self.packed, self.bias, self.then, [], "")
        unpadded: Tensor = y[: len(y) - spare].view(*x.shape[:-1], -1)
        return unpadded


class Int8Linear(nn.Module):
    """A linear layer by PyTorch, with weight and input rounded to 8 bits symmetrically."""

    def __init__(self, weight: Tensor, bias: Tensor | None, then: str = "none") -> None:
        super().__init__()
        rounded, self.scale = round_weight(weight.detach().float())
        # [K, N] in memory: `_int_mm` reads a weight with one row or column in the wrong order if
        # its strides are ambiguous, as those of a transposed view are (torch 2.13).
        self.transposed = torch.empty(rounded.shape[::-1], dtype=torch.int8).copy_(rounded.t())
        self.bias = torch.zeros(len(weight)) if bias is None else bias.detach().float()
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., K] to [..., N] in the dtype of x."""
        rows = x.reshape(-1, x.shape[-1]).float()
        largest = _largest(rows)
        rounded = (rows * (_LARGEST / largest)).round_().to(torch.int8)
        # `_int_mm` makes no plan. A plan takes as long as several matmuls, and the number of rows
        # changes whenever a sentence is finished.
        product = torch._int_mm(rounded, self.transposed).float().mul_(largest)
        torch.addcmul(self.bias, product, self.scale, out=product)
        if self.then == "relu":
            product.relu_()
        shaped: Tensor = product.view(*x.shape[:-1], -1)
        return shaped.to(x.dtype)


def round_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight [N, K] float32 to 8 bits, each row by its largest magnitude.

    Returns:
        Rounded weight [N, K] int8; scale of each output [N] float32, to be multiplied by the
        largest magnitude of the input row.
    """
    largest = _largest(weight)
    rounded = (weight * (_LARGEST / largest)).round_().to(torch.int8)
    return rounded, largest[:, 0] / _LARGEST**2


class PackedMaps(nn.Module):
    """The maps of a `FusedLinear`, packed as one layer.

    Args:
        out_widths: output widths by map, in the order of the fused output.
        layer: packed layer of all maps.
    """

    def __init__(self, out_widths: dict[str, int], layer: nn.Module) -> None:
        super().__init__()
        self.out_widths = out_widths
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map x [..., K] to one [..., out_width] per map, in order."""
        return torch.split(self.layer(x), list(self.out_widths.values()), dim=-1)

    def some(self, x: Tensor, *names: str) -> tuple[Tensor, ...]:
        """Return some of the maps of x [..., K]; the packed layer computes all of them."""
        every = dict(zip(self.out_widths, self(x), strict=True))
        return tuple(every[name] for name in names)


class PackedProjection(TokenEmbedding):
    """A table whose rows score tokens, packed as a linear layer.

    Args:
        table: output projection of the definition, whose weight is shared.
        bias: output bias [V] or None.
        linear: constructor of packed layers.
    """

    def __init__(self, table: TokenEmbedding, bias: Tensor | None, linear: MakeLayer) -> None:
        # `TokenEmbedding.__init__` is skipped, as it would allocate a second table.
        nn.Module.__init__(self)
        self.weight = table.weight
        self.packed = linear(table.weight, bias)
        self._linear = linear

    def logits(self, states: Tensor, bias: Tensor | None) -> Tensor:
        """Map states [..., D] to logits [..., V]."""
        scores: Tensor = self.packed(states)
        return scores

    def logits_over(self, ids: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """See `TokenEmbedding.logits_over`: the chosen rows are packed once for many calls."""
        return self._linear(self.weight[ids], None if bias is None else bias[ids])


MakeLayer = Callable[..., nn.Module]
"""A constructor of packed layers from weight, bias and activation."""


def pack_linear(module: nn.Module, linear: MakeLayer) -> None:
    """Replace all linear layers inside a module of an engine's copy, in place, by packed ones."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear | FusedLinear) and child.weight.numel() == 0:
            continue  # attention whose heads were all pruned
        # Exact types: a subclass (LoRA, tensor parallelism) computes more than its weight says.
        if type(child) is nn.Linear:
            setattr(module, name, linear(child.weight, child.bias))
        elif type(child) is FusedLinear:
            packed = linear(child.weight, child.bias)
            setattr(module, name, PackedMaps(child.out_widths, packed))
        else:
            if getattr(child, "kind", None) == "relu":  # a feed-forward network without a gate
                network: Any = child
                network.up = linear(network.up.weight, network.up.bias, "relu")
                # The layer applies the ReLU to its sums; the module must not repeat it.
                network.activation = nn.Identity()
            pack_linear(child, linear)


@functools.lru_cache(maxsize=2)
def packs(dtype: torch.dtype = torch.float32) -> bool:
    """Return whether PyTorch multiplies by packed weights of this dtype on this processor.

    Without bfloat16 instructions there are no packed bfloat16 weights.
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
    """Return whether PyTorch's 8-bit matmul is exact; old processors saturate 16-bit sums."""
    if not hasattr(torch, "_int_mm"):
        return False
    # Ones round to 127, one side is shifted to unsigned bytes, and 2 · 255 · 127 exceeds 16 bits.
    largest = torch.full((1, 256), 1.0)
    product = Int8Linear(largest, None)(largest)
    return abs(float(product) - 256.0) < 1e-2


def _largest(rows: Tensor) -> Tensor:
    """Return the largest magnitude of each row [n, 1]."""
    return rows.abs().amax(1, keepdim=True).clamp_(min=_SMALLEST)


def _quantize(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    rounded, scale = round_weight(torch.from_numpy(weight))
    return rounded.numpy(), scale.numpy()


def workspace(size: int) -> Tensor:
    """Return uninitialized memory of `size` bytes for a kernel's intermediate results."""
    return torch.empty(size, dtype=torch.uint8)


def int8_linear() -> MakeLayer | None:
    """Return the constructor of 8-bit layers on this processor; None if no matmul is exact."""
    if has_int8_kernels():
        return Int8NativeLinear
    return Int8Linear if torch_multiplies_int8() else None


def measure_int8(width: int) -> float | None:
    """Measure the rate of an 8-bit layer of width D in GFLOP/s, with the rounding of its input.

    Returns:
        The best of eight runs; None without an exact 8-bit matmul.
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
