"""PyTorch's own fused attention, `torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from heedful.device import full_precision
from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    clear_blind_rows,
    is_causal,
    shows_all,
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
    # A flag instead of a mask lets CUDA's flash kernels serve: a mask of its own is materialised
    # and takes the kernel of sm80, 18 of 52 ms of an update of GPT-2 (H100). Processors keep the
    # mask, with which runs of before resume to the bit.
    causal = request.device == "cuda" and len(request.biases) == 0 and is_causal(request)
    with full_precision(request.q), _planless(request.device):
        output = nn.functional.scaled_dot_product_attention(
            request.q,
            request.k,
            request.v,
            attn_mask=None if causal else _mask(request),
            dropout_p=request.dropout,
            is_causal=causal,
            scale=request.scale,
            **grouped,
        )
        return clear_blind_rows(output, request)


def _planless(device: str) -> AbstractContextManager[None]:
    """A context without cuDNN's kernel, which takes a tenth of a second or more for a plan of each
    new shape: of sentences every batch has its own, and of decoding every step."""
    if device != "cuda":
        return nullcontext()
    planless: AbstractContextManager[None] = sdpa_kernel(_PLANLESS)
    return planless


def _mask(request: AttentionRequest) -> Tensor | None:
    """None, or bool (True is visible), or float to be added; no row is hidden whole."""
    positions, mask = request.positions, request.mask
    bias = total_bias(request)
    if shows_all(request.positions, request.mask, request.readable):
        return bias
    visible = positions.derive(("sdpa", mask), lambda: _sighted(positions.visible(mask)))
    return visible if bias is None else bias.masked_fill(~visible, -torch.inf)


def _sighted(visible: Tensor) -> Tensor:
    """Let blind rows see everything: PyTorch's kernels differ on them. They are cleared later."""
    return visible | ~visible.any(-1, keepdim=True)
