"""PyTorch's own fused attention, `torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    clear_blind_rows,
    full_precision,
    total_bias,
)

name = "sdpa"

_PLANLESS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def unsupported(request: AttentionRequest) -> str | None:
    """It cannot cap scores, and takes biases only in the type of the queries."""
    if request.relative_values is not None:
        return "it adds no relative values"
    if request.softcap is not None:
        return "it cannot cap scores"
    if request.biases and request.q.dtype != request.precision:
        return f"it would round biases to {str(request.q.dtype).removeprefix('torch.')}"
    return None


def run(request: AttentionRequest) -> Tensor:
    """Hand the request to PyTorch, mask and biases in one tensor."""
    # Not the comparison itself, which in a graph is a symbol.
    grouped = {"enable_gqa": True} if request.num_groups > 1 else {}
    with full_precision(request.q), _planless(request.q):
        output = nn.functional.scaled_dot_product_attention(
            request.q,
            request.k,
            request.v,
            attn_mask=_mask(request),
            dropout_p=request.dropout,
            scale=request.scale,
            **grouped,
        )
        return clear_blind_rows(output, request)


def _planless(q: Tensor) -> AbstractContextManager[None]:
    """A context without cuDNN's kernel, which takes a tenth of a second or more for a plan of each
    new shape: of sentences every batch has its own, and of decoding every step."""
    if q.device.type != "cuda":
        return nullcontext()
    planless: AbstractContextManager[None] = sdpa_kernel(_PLANLESS)
    return planless


def _mask(request: AttentionRequest) -> Tensor | None:
    """None, or bool (True is visible), or float to be added; no row is hidden whole."""
    positions, mask = request.positions, request.mask
    bias = total_bias(request)
    if positions.shows_all(mask):
        return bias
    visible = positions.derive(("sdpa", mask), lambda: _sighted(positions.visible(mask)))
    return visible if bias is None else bias.masked_fill(~visible, -torch.inf)


def _sighted(visible: Tensor) -> Tensor:
    """Let blind rows see everything: PyTorch's kernels differ on them. They are cleared later."""
    return visible | ~visible.any(-1, keepdim=True)
