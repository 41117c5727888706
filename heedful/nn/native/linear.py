"""Linear layers as kernels in C compute them, in float32 or in 8 bits."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor, nn

from heedful.nn.native.library import address, kernels
from heedful.nn.native.structures import Linear
from heedful.nn.running_weights import round_weight


class NativeLinear(nn.Module):
    """`x @ weight.T + bias`; every row's result depends on that row alone, to the last bit.

    Args:
        weight: [N, K].
        bias: [N] or None.
        then: what is computed of the result, `none` or `relu`.
        int8: round both sides to 8 bits, as `Int8Linear` does.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, then: str = "none", *, int8: bool = False
    ) -> None:
        super().__init__()
        weight = weight.detach().float().contiguous()
        out_width, in_width = weight.shape
        library = kernels()
        size = library.heedful_packed(in_width, out_width, int8)
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self.scale: Tensor | None = None
        self.correction: Tensor | None = None
        if int8:
            rounded, self.scale = round_weight(weight)
            self.correction = rounded.sum(1, dtype=torch.int32) * 128
            self.panels = torch.empty(size, dtype=torch.int8)
            library.heedful_pack_int8(
                rounded.data_ptr(), in_width, out_width, self.panels.data_ptr()
            )
        else:
            self.panels = torch.empty(size)
            library.heedful_pack_float(
                weight.data_ptr(), in_width, out_width, self.panels.data_ptr()
            )
        self.rectify = then == "relu"
        self.out_width = out_width
        self.described = Linear(
            self.panels.data_ptr(),
            address(self.bias),
            address(self.scale),
            address(self.correction),
            in_width,
            out_width,
        )
        self._layer = ctypes.byref(self.described)

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] to [..., N] in the type of x."""
        rows = x.float().contiguous()
        y = rows.new_empty((*x.shape[:-1], self.out_width))
        if y.numel():
            count, library, layer = y.numel() // self.out_width, kernels(), self._layer
            space = workspace(library.heedful_linear_room(layer, count))
            library.heedful_linear(
                layer,
                rows.data_ptr(),
                count,
                y.data_ptr(),
                self.rectify,
                space.data_ptr(),
            )
        return y.to(x.dtype)


def workspace(size: int) -> Tensor:
    """Memory of so many bytes for what passes."""
    return torch.empty(size, dtype=torch.uint8)


Int8NativeLinear = functools.partial(NativeLinear, int8=True)
