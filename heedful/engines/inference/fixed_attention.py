"""Attention of a decoding step on fixed memory: one fused kernel, grouped heads, one mask a step.

The definition takes eight kernels for the attention of a few queries, which a GPU starts one after
the other. PyTorch's fused attention takes one. Query heads that share a key head stand side by side
among its queries, so no key is repeated, whatever the version of PyTorch or the kernel it picks.

Shapes: B sentences, W continuations of each, S keys, H heads, K key/value heads, G heads that share
one of these, E their width.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from heedful.engines.inference.engine_parts import EnginePart, become
from heedful.models.block import Block
from heedful.models.stack import Stack
from heedful.nn.attention.attend import KERNELS, KernelSet
from heedful.nn.attention.kernels.request import AttentionRequest
from heedful.nn.attention.mask_algebra import Mask
from heedful.nn.attention.multi_head import CrossAttention, SelfAttention
from heedful.nn.positions import Positions

_TAKE_MASKS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Flash attention takes no mask; cuDNN makes a plan for every shape, a tenth of a second each."""


class FixedPositions(Positions):
    """Positions of a step on fixed memory, by which attention knows that it is one."""


class FixedKernel:
    """Steps on fixed memory by PyTorch's fused kernel."""

    name = "fixed"

    def advantage(self, request: AttentionRequest) -> str | None:
        """It is asked first, and serves nothing but these steps."""
        return "a step on fixed memory, by one kernel and one mask for all layers"

    def unsupported(self, request: AttentionRequest) -> str | None:
        """It serves plain attention of steps on fixed memory."""
        if type(request.positions) is not FixedPositions:
            return "it is for steps on fixed memory"
        if request.biases or request.softcap is not None or request.relative_values is not None:
            return "it knows no biases, soft caps and relative values"
        return None

    def run(self, request: AttentionRequest) -> Tensor:
        """Compute [B, H, W, E]."""
        q, positions, mask = request.q, request.positions, request.mask
        rows, heads, tokens, width = q.shape
        groups = request.num_groups
        added, sighted = positions.derive(
            ("fixed", mask, groups, q.dtype), lambda: _masks(positions, mask, groups, q.dtype)
        )
        with _takes_masks(q):
            mixed = scaled_dot_product_attention(
                q.reshape(rows, heads // groups, groups * tokens, width),
                request.k,
                request.v,
                attn_mask=added,
                scale=request.scale,
            )
        return mixed.reshape(rows, heads, tokens, -1) * sighted


_KERNELS = KernelSet({FixedKernel.name: FixedKernel(), **KERNELS})


class FixedSelfAttention(EnginePart, SelfAttention):
    """Attention over the tokens so far."""

    kernels = _KERNELS


class FixedCrossAttention(EnginePart, CrossAttention):
    """Attention over a memory."""

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
    """Make what all layers of a step add to their scores, and what clears queries that see nothing.

    PyTorch would make numbers of a mask of booleans in every layer. These are finite, so that a
    query that sees nothing gives a mean, to be cleared, and not NaN.

    Returns:
        [B, 1, G · W, S], and [B, 1, W, 1] which is 1 for queries that see something, else 0.
    """
    visible = positions.visible(mask)
    added = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    added.masked_fill_(~visible, torch.finfo(dtype).min / 2)
    if groups > 1:
        added = added.repeat(1, 1, groups, 1)
    return added, visible.any(-1, keepdim=True).to(dtype)


def _takes_masks(q: Tensor) -> AbstractContextManager[None]:
    if q.device.type != "cuda":
        return nullcontext()
    chosen: AbstractContextManager[None] = sdpa_kernel(_TAKE_MASKS)
    return chosen
