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
    common_keys,
    is_causal,
    shows_all,
    total_bias,
)

name = "sdpa"

# Without cuDNN's: the memory-efficient kernel is as fast for sentences (H100: 0.6 to 1.6 ms, cuDNN
# 0.8 to 2.3), and plans nothing.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def unsupported(request: AttentionRequest) -> str | None:
    """Refuse soft caps, relative values, and biases that would be rounded to 16 bits."""
    if request.relative_values is not None:
        return "it adds no relative values"
    if request.softcap is not None:
        return "it cannot cap scores"
    if request.biases and request.q.dtype != request.precision:
        return f"it would round biases to {str(request.q.dtype).removeprefix('torch.')}"
    return None


def run(request: AttentionRequest) -> Tensor:
    """Call PyTorch's kernel with mask and biases in one tensor."""
    # A constant and not the comparison itself, which is a symbol while a graph is traced.
    grouped = {"enable_gqa": True} if request.num_groups > 1 else {}
    # With a flag instead of a mask CUDA's flash kernels serve: an explicit mask is materialised and
    # takes the sm80 kernel, 18 of 52 ms of an update of GPT-2 (H100). Processors keep the mask, so
    # that earlier runs resume bit for bit.
    causal = request.device == "cuda" and len(request.biases) == 0 and is_causal(request)
    # Windows of texts have one length in all of a training, so cuDNN's kernel plans only once.
    # PyTorch prefers it where it serves: forward and back 0.36 ms beside 0.52 of FlashAttention 2
    # (12 × 12 heads, 1,024 tokens, H100).
    windows = causal and request.wants_gradient
    with full_precision(request.q), nullcontext() if windows else _without_cudnn(request.device):
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


def _without_cudnn(device: str) -> AbstractContextManager[None]:
    """Return a context without cuDNN's kernel, which plans each new shape for 0.1 to 6 seconds
    (H100): every batch of sentences and every step of decoding has a new shape."""
    if device != "cuda":
        return nullcontext()
    context: AbstractContextManager[None] = sdpa_kernel(_BACKENDS)
    return context


def _mask(request: AttentionRequest) -> Tensor | None:
    """Return None, a bool mask (true is visible) or a float bias; every row has a visible key."""
    positions, mask = request.positions, request.mask
    bias = total_bias(request)
    if shows_all(request.positions, request.mask, request.readable):
        return bias
    visible = positions.derive(("sdpa", mask), lambda: _open_blind_rows(_visible(request)))
    # −∞ is safe: every row that gets here has a visible key.
    return visible if bias is None else bias.masked_fill(~visible, -torch.inf)


def _visible(request: AttentionRequest) -> Tensor:
    # A row of keys for all queries is enough on a processor; CUDA's kernels want every pair.
    keys = common_keys(request.positions, request.mask) if request.device == "cpu" else None
    return request.positions.visible(request.mask) if keys is None else keys


def _open_blind_rows(visible: Tensor) -> Tensor:
    """Let rows without visible keys see everything: PyTorch's kernels differ on such rows.

    Their output is cleared afterwards."""
    return visible | ~visible.any(-1, keepdim=True)
