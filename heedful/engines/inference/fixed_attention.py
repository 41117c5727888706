"""Attention of a decoding step on fixed memory: one fused kernel, and one mask for all layers.

The definition runs eight kernels for the attention of a few queries, and PyTorch's fused attention
one. Query heads that share a key head become more queries of one head, so no key is repeated,
whatever the version of PyTorch or the kernel that it picks.

Shapes: B sentences, W continuations of each, S keys, H heads, K key/value heads, G heads that share
one of these, E their width.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from heedful.engines.class_exchange import EnginePart, become
from heedful.models.block import Block
from heedful.models.stack import Stack
from heedful.nn.attention.attend import KernelSet
from heedful.nn.attention.kernels.request import AttentionRequest, Kernel
from heedful.nn.attention.kernels.table import KERNELS
from heedful.nn.attention.masks import Mask
from heedful.nn.attention.multi_head import CrossAttention, SelfAttention
from heedful.nn.positions import Positions

_TAKE_MASKS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels that take a mask. FlashAttention takes none, and cuDNN makes a plan of 0.1 to 6 seconds
for every new shape."""


class FixedPositions(Positions):
    """Positions of a step on fixed memory; their class tells attention which kernel serves."""


class FixedKernel:
    """Steps on fixed memory by PyTorch's fused kernel."""

    name = "fixed"

    def advantage(self, request: AttentionRequest) -> str | None:
        """Return the reason for preferring this kernel to all others."""
        return "a step on fixed memory, by one kernel and one mask for all layers"

    def unsupported(self, request: AttentionRequest) -> str | None:
        """Say why a request is no plain attention of a step on fixed memory; None if it is."""
        # `type`, since positions of prompts and of other engines go to the definition's kernels.
        if type(request.positions) is not FixedPositions:
            return "it is for steps on fixed memory"
        if request.biases or request.softcap is not None or request.relative_values is not None:
            return "it knows no biases, soft caps and relative values"
        return None

    def run(self, request: AttentionRequest) -> Tensor:
        """Compute attention [B, H, W, E]."""
        q, positions, mask = request.q, request.positions, request.mask
        rows, heads, tokens, width = q.shape
        groups = request.num_groups
        # `derive` computes the mask in the first layer and keeps it for all others.
        added, sees_any = positions.derive(
            ("fixed", mask, groups, q.dtype), lambda: _masks(positions, mask, groups, q.dtype)
        )
        with sdpa_kernel(_TAKE_MASKS) if q.is_cuda else nullcontext():
            mixed = scaled_dot_product_attention(
                q.reshape(rows, heads // groups, groups * tokens, width),
                request.k,
                request.v,
                attn_mask=added,
                scale=request.scale,
            )
        # A blind query has the mean of all values so far, which this clears as in the definition.
        return mixed.reshape(rows, heads, tokens, -1) * sees_any


_BY_NAME: dict[str, Kernel] = {FixedKernel.name: FixedKernel(), **KERNELS}
_KERNELS = KernelSet(lambda: _BY_NAME)


class FixedSelfAttention(EnginePart, SelfAttention):
    """Self-attention over the tokens so far, on fixed memory."""

    kernels = _KERNELS


class FixedCrossAttention(EnginePart, CrossAttention):
    """Cross-attention on fixed memory."""

    kernels = _KERNELS


def fix_attention(stack: Stack) -> None:
    """Replace the attentions of an engine's stack by those for fixed memory."""
    kinds = {"self_attention": FixedSelfAttention, "cross_attention": FixedCrossAttention}
    for block in cast("Iterable[Block]", stack.blocks):
        for name, kind in kinds.items():
            part = block._modules.get(name)
            if part is not None:
                block._modules[name] = become(part, kind)


def _masks(
    positions: Positions, mask: Mask, groups: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Make the additive mask of all layers of a step, and a factor that clears blind queries.

    PyTorch would convert a boolean mask in every layer.

    Returns:
        Mask [B, 1, G · W, S]; factor [B, 1, W, 1], 1 for a query that sees a key, else 0.
    """
    visible = positions.visible(mask)
    added = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    # A finite value: with −inf a query that sees nothing would give NaN, which no factor clears.
    # Half the minimum leaves room for the score that is added.
    added.masked_fill_(~visible, torch.finfo(dtype).min / 2)
    if groups > 1:  # the G heads of a group are G · W queries of one key head
        added = added.repeat(1, 1, groups, 1)
    return added, visible.any(-1, keepdim=True).to(dtype)
