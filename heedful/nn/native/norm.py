"""Norms of rows as kernels in C compute them between and after the blocks of a model that runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.nn.native.library import address, kernels
from heedful.nn.native.structures import Norm
from heedful.nn.norms import RMSNorm, norm_parts


def described_norm(norm: nn.Module) -> Norm:
    """A norm as kernels know it; its tensors must outlive what is done with that."""
    weight, bias, epsilon = norm_parts(norm)
    assert weight is not None
    assert (bias is None) == isinstance(norm, RMSNorm)
    return Norm(address(weight), address(bias), epsilon)


def norm_rows(x: Tensor, norm: nn.Module) -> Tensor:
    """What a norm makes of x [..., D]; the module itself does it where kernels do not serve."""
    weight, bias, _ = norm_parts(norm)
    whole = (bias is None) == isinstance(norm, RMSNorm)
    if weight is None or not whole or not _serves(x, weight):
        found: Tensor = norm(x)
        return found
    x = x.contiguous()
    y, width = torch.empty_like(x), x.shape[-1]
    described = described_norm(norm)
    kernels().heedful_normalise(described, x.data_ptr(), x.numel() // width, width, y.data_ptr())
    return y


def _serves(*tensors: Tensor) -> bool:
    if kernels() is None:
        return False
    return all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
