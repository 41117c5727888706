"""Exact attention in blocks: never more than one block of scores in memory (Rabe 2021, Dao 2022).

The softmax is kept up while the keys go by (a running maximum and sum), the backward pass makes
each block of scores anew, and blocks that the mask hides for their positions are never touched.
Indices: a block is a range of array indices; what it may see follows from its positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    full_precision,
    soft_cap,
)
from heedful.nn.attention.masks import FAR, Mask
from heedful.nn.positions import Positions

name = "chunked"

QUERY_BLOCK = 128
KEY_BLOCK = 512

_SKIPPED = 64
"""Keys that are skipped together: a window of 128 sees 382 keys of a block of queries, in whole
blocks of 512 keys 880 on average."""


def unsupported(request: AttentionRequest) -> str | None:
    """Serves everything."""
    return None


def run(request: AttentionRequest) -> Tensor:
    """Compute attention block by block, forward and backward."""
    # One number fixes the dropout of all blocks, so that the backward pass can draw them again.
    seed = int(torch.randint(2**62, ())) if request.dropout else 0
    output: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
        request, seed, request.q, request.k, request.v, *request.learned
    )
    return output


@dataclass(frozen=True)
class _Block:
    """A range of queries and a range of keys that may see each other."""

    number: int
    queries: slice
    keys: slice

    def within(self, positions: Positions) -> Positions:
        """The block's positions: a new value each time, so that its masks are freed after use."""
        rows = positions.between_queries(self.queries.start, self.queries.stop)
        return rows.between_keys(self.keys.start, self.keys.stop)


class _Chunked(torch.autograd.Function):
    """Attention whose backward pass recomputes the scores of each block."""

    @staticmethod
    def forward(
        ctx: Any, request: AttentionRequest, seed: int, q: Tensor, k: Tensor, v: Tensor, *_: Tensor
    ) -> Tensor:
        ctx.request, ctx.seed = request, seed
        output = q.new_zeros(*q.shape[:3], v.shape[-1], dtype=request.precision)
        log_sums = q.new_zeros(*q.shape[:3], 1, dtype=request.precision)
        with full_precision(q):
            for blocks in _rows_of_blocks(request):
                rows = blocks[0].queries
                output[:, :, rows], log_sums[:, :, rows] = _attend_blocks(request, blocks, seed)
        output = output.to(v.dtype)
        ctx.save_for_backward(q, k, v, output, log_sums)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        request: AttentionRequest = ctx.request
        q, k, v, output, log_sums = ctx.saved_tensors
        precision = request.precision
        to_q, to_k, to_v = (torch.zeros_like(t, dtype=precision) for t in (q, k, v))
        to_learned = [torch.zeros_like(t) for t in request.learned]
        # What the softmax takes away from every score's gradient of a row.
        common = (gradient.to(precision) * output.to(precision)).sum(-1, keepdim=True)
        with full_precision(q):
            for block in (block for blocks in _rows_of_blocks(request) for block in blocks):
                rows, keys, positions = block.queries, block.keys, block.within(request.positions)
                q_block = q[:, :, rows].detach().requires_grad_()
                k_block = k[:, :, keys].detach().requires_grad_()
                with torch.enable_grad():
                    scores = _scores(request, q_block, k_block, positions)
                weights = torch.exp(scores.detach() - log_sums[:, :, rows])
                weights.masked_fill_(~positions.visible(request.mask), 0.0)
                keep_mask = _kept(request, block, weights, ctx.seed)
                arriving = gradient[:, :, rows].to(precision)
                to_v[:, :, keys] += _of_key_heads(weights * keep_mask, arriving, request.num_groups)
                to_weights = _with_key_heads(arriving, v[:, :, keys].mT.to(precision)) * keep_mask
                to_scores = weights * (to_weights - common[:, :, rows])
                result = torch.autograd.grad(
                    scores, (q_block, k_block, *request.learned), to_scores, allow_unused=True
                )
                to_q[:, :, rows] += result[0]
                to_k[:, :, keys] += result[1]
                for total, part in zip(to_learned, result[2:], strict=True):
                    if part is not None:
                        total += part
        return None, None, to_q.to(q.dtype), to_k.to(k.dtype), to_v.to(v.dtype), *to_learned


def _attend_blocks(
    request: AttentionRequest, blocks: list[_Block], seed: int
) -> tuple[Tensor, Tensor]:
    """Output [B, H, rows, Ev] of some queries over their blocks, and the log of their sums."""
    precision = request.precision
    q = request.q[:, :, blocks[0].queries]
    highest = q.new_full((*q.shape[:3], 1), torch.finfo(precision).min, dtype=precision)
    total = torch.zeros_like(highest)
    output = highest.new_zeros(*q.shape[:3], request.v.shape[-1])
    for block in blocks:
        positions = block.within(request.positions)
        scores = _scores(request, q, request.k[:, :, block.keys], positions)
        scores.masked_fill_(~positions.visible(request.mask), -torch.inf)
        higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
        shrink = torch.exp(highest - higher)
        weights = torch.exp(scores - higher)
        total = total * shrink + weights.sum(-1, keepdim=True)
        weights *= _kept(request, block, weights, seed)
        v = request.v[:, :, block.keys].to(precision)
        output = output * shrink + _with_key_heads(weights, v)
        highest = higher
    # A blind row has a total of 0 and an output of 0.
    seen = total.clamp(min=torch.finfo(precision).tiny)
    return output / seen, highest + seen.log()


def _scores(request: AttentionRequest, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
    """Scores of one block before the mask, [B, H, rows, keys]."""
    scaled = q.to(request.precision) * request.scale
    scores = soft_cap(_with_key_heads(scaled, k.to(request.precision).mT), request.softcap)
    for bias in request.biases:
        scores = scores + bias(scaled, positions)
    return scores


def _with_key_heads(rows: Tensor, matrix: Tensor) -> Tensor:
    """Product of [B, H, n, x] with its group's [B, K, x, y], [B, H, n, y]; nothing is repeated."""
    heads, kv_heads = rows.shape[1], matrix.shape[1]
    grouped = rows.unflatten(1, (kv_heads, heads // kv_heads)).flatten(2, 3)
    product: Tensor = grouped @ matrix
    return product.view(*rows.shape[:3], matrix.shape[-1])


def _of_key_heads(weights: Tensor, rows: Tensor, num_groups: int) -> Tensor:
    """[B, H, n, keys] transposed times [B, H, n, x], summed over groups: [B, K, keys, x]."""
    kv_heads = weights.shape[1] // num_groups
    weights = weights.unflatten(1, (kv_heads, num_groups)).flatten(2, 3)
    rows = rows.unflatten(1, (kv_heads, num_groups)).flatten(2, 3)
    product: Tensor = weights.mT @ rows
    return product


def _kept(request: AttentionRequest, block: _Block, like: Tensor, seed: int) -> Tensor | float:
    """0 where dropout drops a weight of the block, else what keeps the mean; 1 without dropout."""
    if not request.dropout:
        return 1.0
    generator = torch.Generator(like.device).manual_seed(seed + block.number)
    keep = 1.0 - request.dropout
    return torch.empty_like(like).bernoulli_(keep, generator=generator).div_(keep)


def _rows_of_blocks(request: AttentionRequest) -> list[list[_Block]]:
    """For each block of queries, the blocks of keys that it may see; made once per `Positions`."""
    positions, mask, sizes = request.positions, request.mask, (QUERY_BLOCK, KEY_BLOCK)
    return positions.derive(("blocks", mask, sizes), lambda: _plan(positions, mask, *sizes))


def _plan(positions: Positions, mask: Mask, query_block: int, key_block: int) -> list[list[_Block]]:
    query_ranges = _ranges(positions.query, query_block)
    key_ranges = _ranges(positions.key, min(_SKIPPED, key_block))
    plan = []
    for i, (queries, first, last) in enumerate(query_ranges):
        if first > last:  # padding alone
            continue
        seen = mask.bounds(first, last)
        blocks: list[_Block] = []
        for j, (keys, first_key, last_key) in enumerate(key_ranges):
            if not any(max(first_key, lo) <= min(last_key, hi) for lo, hi in seen):
                continue
            previous = blocks[-1].keys if blocks else slice(-1, -1)
            if previous.stop == keys.start and keys.stop - previous.start <= key_block:
                blocks[-1] = replace(blocks[-1], keys=slice(previous.start, keys.stop))
            else:
                blocks.append(_Block(i * len(key_ranges) + j, queries, keys))
        if blocks:
            plan.append(blocks)
    return plan


def _ranges(positions: Tensor, size: int) -> list[tuple[slice, int, int]]:
    """Blocks of indices with the lowest and highest position in each; FAR, −1 if none."""
    length = positions.shape[1]
    parts = positions.split(size, dim=1) if length else ()
    if not parts:
        return []
    lowest = [part.masked_fill(part < 0, FAR).amin() for part in parts]
    highest = [part.amax() for part in parts]
    ends = torch.stack([*lowest, *highest]).tolist()
    return [
        (slice(start, min(start + size, length)), ends[i], ends[len(parts) + i])
        for i, start in enumerate(range(0, length, size))
    ]
