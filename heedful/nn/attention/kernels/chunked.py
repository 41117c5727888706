"""Exact attention in blocks: never more than one block of scores in memory (Rabe 2021, Dao 2022).

The softmax is updated from block to block of keys (a running maximum and sum), and the backward
pass recomputes each block of scores. Keys that the mask hides from a block of queries are skipped
(Child 2019): whole blocks, and single keys where few keys of a range are seen, as these few are
gathered. A mask with a period is computed in passes, with queries and keys sorted by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.device import full_precision
from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    soft_cap,
)
from heedful.nn.attention.masks import Mask
from heedful.nn.positions import Positions

name = "chunked"

# The scores of a block take 256 kB of float32 for each sentence and head.
QUERY_BLOCK = 128
KEY_BLOCK = 512

_SKIPPED = 64
"""Number of keys that are skipped together: with a window of 128 a block of queries sees 382 keys,
but in whole blocks of 512 keys 880 on average."""

_GATHERED = 0.5
"""Largest share of seen keys in such ranges up to which it pays to gather them."""

_SMALLEST_CLASS = 16
"""Smallest number of queries with one remainder of the period that make a block of their own."""


def unsupported(request: AttentionRequest) -> str | None:
    """Return None: it serves every request."""
    return None


def run(request: AttentionRequest) -> Tensor:
    """Compute attention block by block, forward and backward."""
    # One seed fixes the dropout masks of all blocks, so that the backward pass can redraw them.
    seed = int(torch.randint(2**62, ())) if request.dropout else 0
    output: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
        request, seed, request.q, request.k, request.v, *request.learned
    )
    return output


_Indices = slice | Tensor
"""Array indices: a slice, or [n] int64."""


def computed_pairs(positions: Positions, mask: Mask) -> int:
    """Return the number of pairs of query and key, for one row, whose scores the kernel computes.

    Args:
        positions: positions of queries and keys.
        mask: rule for the keys that a query may see.
    """
    queries, keys = (torch.arange(each.shape[1]) for each in (positions.query, positions.key))
    blocks = [block for row in _plan(positions, mask, QUERY_BLOCK, KEY_BLOCK) for block in row]
    return sum(len(queries[block.queries]) * len(keys[block.keys]) for block in blocks)


@dataclass(frozen=True)
class _Block:
    """A block of queries and keys with some visible pairs."""

    number: int
    queries: _Indices
    keys: _Indices
    mask: Mask

    def within(self, positions: Positions) -> Positions:
        """Return the block's positions: a new value, so that derived masks are freed after use."""
        return positions.at_queries(self.queries).at_keys(self.keys)


class _Chunked(torch.autograd.Function):
    """Attention whose backward pass recomputes the scores of each block."""

    @staticmethod
    def forward(
        ctx: Any, request: AttentionRequest, seed: int, q: Tensor, k: Tensor, v: Tensor, *_: Tensor
    ) -> Tensor:
        ctx.request, ctx.seed = request.without_inputs(), seed
        output, logsumexp = attend_to_all(request, [(request, seed)])
        # O(L) for each head: with output and logsumexp the weights of a block can be recomputed
        # (Dao 2022, algorithm 4).
        ctx.save_for_backward(q, k, v, output, logsumexp)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, output, logsumexp = ctx.saved_tensors
        request: AttentionRequest = replace(ctx.request, q=q, k=k, v=v)
        sums = GradientSums.zeros(request)
        with full_precision(q):
            whole = SoftmaxGradient.of(gradient, output, logsumexp)
            add_gradients(request, ctx.seed, whole, sums)
        return None, None, sums.q.to(q.dtype), sums.k.to(k.dtype), sums.v.to(v.dtype), *sums.learned


@dataclass(frozen=True)
class SoftmaxGradient:
    """The row statistics of a softmax over all keys that the gradients of each block need.

    Args:
        output: [B, H, Lq, Ev], gradient of the output.
        logsumexp: [B, H, Lq, 1], logsumexp of the scores.
        common: [B, H, Lq, 1], Σ weight · gradient of the weight, which is subtracted from every
            gradient of a row.
    """

    output: Tensor
    logsumexp: Tensor
    common: Tensor

    @classmethod
    def of(cls, gradient: Tensor, output: Tensor, logsumexp: Tensor) -> SoftmaxGradient:
        """Make the statistics of an output [B, H, Lq, Ev], its gradient, and its logsumexp."""
        precision = logsumexp.dtype
        # Σ over keys of P · dP equals dO · O, so no row of weights is needed (Dao 2022, B.2).
        common = (gradient.to(precision) * output.to(precision)).sum(-1, keepdim=True)
        return cls(gradient, logsumexp, common)


@dataclass(frozen=True)
class GradientSums:
    """Sums of the gradients of an attention's inputs, to which blocks are added.

    Args:
        q: [B, H, Lq, E].
        k: [B, K, Lk, E].
        v: [B, K, Lk, Ev].
        learned: gradients of the request's trained tensors, in their order.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    learned: list[Tensor]

    @classmethod
    def zeros(cls, request: AttentionRequest) -> GradientSums:
        """Make sums of zero, as before the first block."""
        tensors = (request.q, request.k, request.v)
        # float32 at any precision: bfloat16 would lose small terms of a long sum.
        q, k, v = (torch.zeros_like(each, dtype=request.precision) for each in tensors)
        return cls(q, k, v, [torch.zeros_like(each) for each in request.learned])


def attend_to_all(
    request: AttentionRequest, parts: Iterable[tuple[AttentionRequest, int]]
) -> tuple[Tensor, Tensor]:
    """Attend to keys that come in parts: one softmax over all of them.

    Args:
        request: request with all queries.
        parts: requests of the same queries with some of the keys, each with the seed of its
            dropout masks; consumed one after the other.

    Returns:
        The output [B, H, Lq, Ev], and the logsumexp of the scores, [B, H, Lq, 1].
    """
    running = RunningSoftmax.start(request.q, request.v.shape[-1], request.precision)
    with full_precision(request.q):
        for part, seed in parts:
            attend_more(part, seed, running)
        output, logsumexp = running.finish()
    return output.to(request.v.dtype), logsumexp


def attend_more(request: AttentionRequest, seed: int, running: RunningSoftmax) -> None:
    """Update the softmax of all queries by the keys of a request, in place.

    Args:
        request: queries and more keys.
        seed: seed of the dropout masks of its blocks.
        running: softmax of the queries over earlier keys; see `RunningSoftmax.start`.
    """
    for blocks in _rows_of_blocks(request):
        rows = blocks[0].queries
        running.put(rows, _attend_blocks(request, blocks, seed, running.at(rows)))


def add_gradients(
    request: AttentionRequest, seed: int, whole: SoftmaxGradient, sums: GradientSums
) -> None:
    """Add the gradients of all queries and some of their keys to the sums, in place.

    Args:
        request: queries and these keys.
        seed: seed that `attend_more` had for these keys.
        whole: statistics of the queries' softmax over all of their keys.
        sums: sums of gradients to add to.
    """
    for block in (block for blocks in _rows_of_blocks(request) for block in blocks):
        rows, keys, positions = block.queries, block.keys, block.within(request.positions)
        q = request.q[:, :, rows].detach().requires_grad_()
        k = request.k[:, :, keys].detach().requires_grad_()
        # Autograd differentiates the scores of one block, with every bias and cap; the softmax over
        # all blocks is differentiated by hand below.
        with torch.enable_grad():
            scores = _scores(request, q, k, positions)
        # These weights are normalised already, as logsumexp is that of the whole row.
        weights = torch.exp(scores.detach() - whole.logsumexp[:, :, rows])
        weights.masked_fill_(~positions.visible(block.mask), 0.0)
        keep_mask = _dropout_mask(request, block, weights, seed)
        grad_output = whole.output[:, :, rows].to(request.precision)
        sums.v[:, :, keys] += _of_key_heads(weights * keep_mask, grad_output, request.num_groups)
        v = request.v[:, :, keys].to(request.precision)
        to_weights = _with_key_heads(grad_output, v.mT) * keep_mask
        if request.relative_values is not None:
            through = _through_values(
                request, weights * keep_mask, positions, grad_output, sums.learned
            )
            to_weights += through * keep_mask
        # The softmax's gradient: dS = P ∘ (dP − Σ P dP).
        to_scores = weights * (to_weights - whole.common[:, :, rows])
        result = torch.autograd.grad(scores, (q, k, *request.learned), to_scores, allow_unused=True)
        sums.q[:, :, rows] += result[0]
        sums.k[:, :, keys] += result[1]
        for total, part in zip(sums.learned, result[2:], strict=True):
            if part is not None:
                total += part


@dataclass(frozen=True)
class RunningSoftmax:
    """The online softmax of some queries over the keys so far (Milakov 2018).

    All sums are relative to the largest score, so blocks of keys can come in any order and no
    exponential overflows.

    Args:
        highest: [B, H, rows, 1], largest score.
        total: [B, H, rows, 1], sum of exp(score − highest).
        output: [B, H, rows, Ev], sum of exp(score − highest) · value.
    """

    highest: Tensor
    total: Tensor
    output: Tensor

    @classmethod
    def start(cls, q: Tensor, value_width: int, precision: torch.dtype) -> RunningSoftmax:
        """Make the softmax of queries q [B, H, rows, E] before the first key."""
        # Finite, as −∞ − (−∞) would be NaN for a block that a query does not see.
        lowest = torch.finfo(precision).min
        highest = q.new_full((*q.shape[:3], 1), lowest, dtype=precision)
        output = highest.new_zeros(*q.shape[:3], value_width)
        return cls(highest, torch.zeros_like(highest), output)

    def at(self, rows: _Indices) -> RunningSoftmax:
        """Return the part of some queries."""
        return RunningSoftmax(
            self.highest[:, :, rows], self.total[:, :, rows], self.output[:, :, rows]
        )

    def put(self, rows: _Indices, part: RunningSoftmax) -> None:
        """Store the part of some queries."""
        self.highest[:, :, rows] = part.highest
        self.total[:, :, rows] = part.total
        self.output[:, :, rows] = part.output

    def finish(self) -> tuple[Tensor, Tensor]:
        """Return the output [B, H, rows, Ev] and the logsumexp of the scores [B, H, rows, 1]."""
        # A query that sees no key has a total of 0 and an output of 0: the clamp avoids 0 / 0.
        seen = self.total.clamp(min=torch.finfo(self.total.dtype).tiny)
        return self.output / seen, self.highest + seen.log()


def _attend_blocks(
    request: AttentionRequest, blocks: list[_Block], seed: int, running: RunningSoftmax
) -> RunningSoftmax:
    """Update the softmax of some queries by more blocks of keys."""
    q = request.q[:, :, blocks[0].queries]
    highest, total, output = running.highest, running.total, running.output
    for block in blocks:
        positions = block.within(request.positions)
        scores = _scores(request, q, request.k[:, :, block.keys], positions)
        scores.masked_fill_(~positions.visible(block.mask), -torch.inf)
        higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
        shrink = torch.exp(highest - higher)
        weights = torch.exp(scores - higher)
        # Summed before dropout, which drops normalised weights: the denominator counts all of them.
        total = total * shrink + weights.sum(-1, keepdim=True)
        weights *= _dropout_mask(request, block, weights, seed)
        v = request.v[:, :, block.keys].to(request.precision)
        output = output * shrink + _with_key_heads(weights, v)
        if request.relative_values is not None:
            output = output + request.relative_values(weights, positions)
        highest = higher
    return RunningSoftmax(highest, total, output)


def _through_values(
    request: AttentionRequest,
    weights: Tensor,
    positions: Positions,
    gradient: Tensor,
    to_learned: list[Tensor],
) -> Tensor:
    """Return the relative values' gradient of a block's weights, and add that of the vectors."""
    values = request.relative_values
    assert values is not None
    learned = [each for each in values.parameters() if each.requires_grad]
    weights = weights.detach().requires_grad_()
    with torch.enable_grad():
        added = values(weights, positions)
    to_weights, *rest = torch.autograd.grad(added, (weights, *learned), gradient)
    for total, tensor in zip(to_learned, request.learned, strict=True):
        for own, part in zip(learned, rest, strict=True):
            if tensor is own:
                total += part
    return to_weights


def _scores(request: AttentionRequest, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
    """Return the scores of one block before the mask, [B, H, rows, keys]."""
    scaled = q.to(request.precision) * request.scale
    scores = soft_cap(_with_key_heads(scaled, k.to(request.precision).mT), request.softcap)
    for bias in request.biases:
        scores = scores + bias(scaled, k, positions)
    return scores


def _with_key_heads(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply [B, H, n, x] by its key head's [B, K, x, y] to [B, H, n, y]; no head is repeated."""
    heads, kv_heads = rows.shape[1], matrix.shape[1]
    grouped = rows.unflatten(1, (kv_heads, heads // kv_heads)).flatten(2, 3)
    product: Tensor = grouped @ matrix
    return product.view(*rows.shape[:3], matrix.shape[-1])


def _of_key_heads(weights: Tensor, rows: Tensor, num_groups: int) -> Tensor:
    """Return weights [B, H, n, keys] transposed times rows [B, H, n, x], summed over each group.

    The result is [B, K, keys, x]."""
    kv_heads = weights.shape[1] // num_groups
    weights = weights.unflatten(1, (kv_heads, num_groups)).flatten(2, 3)
    rows = rows.unflatten(1, (kv_heads, num_groups)).flatten(2, 3)
    product: Tensor = weights.mT @ rows
    return product


def _dropout_mask(
    request: AttentionRequest, block: _Block, like: Tensor, seed: int
) -> Tensor | float:
    """Return the dropout mask of a block, 0 or 1 / (1 − p); 1 without dropout."""
    if not request.dropout:
        return 1.0
    # Seeded by block: the backward pass redraws the mask in any order, and none is stored.
    generator = torch.Generator(like.device).manual_seed(seed + block.number)
    keep = 1.0 - request.dropout
    return torch.empty_like(like).bernoulli_(keep, generator=generator).div_(keep)


def _rows_of_blocks(request: AttentionRequest) -> list[list[_Block]]:
    """Return the blocks of keys for each block of queries; planned once for each `Positions`."""
    positions, mask, sizes = request.positions, request.mask, (QUERY_BLOCK, KEY_BLOCK)
    return positions.derive(("blocks", mask, sizes), lambda: _plan(positions, mask, *sizes))


def _plan(positions: Positions, mask: Mask, query_block: int, key_block: int) -> list[list[_Block]]:
    queries, keys = _distinct_rows(positions.query), _distinct_rows(positions.key)
    plan: list[list[_Block]] = []
    # Blocks are numbered through all passes, as each has its own dropout seed.
    number = 0
    for part, period in mask.passes():
        for rows, columns in _classes(queries, keys, period):
            at = keys[:, columns]
            for query_indices, lo, hi in _ranges(queries, rows, query_block):
                # Keys that some query of the block may see; single pairs are masked when the
                # block is computed.
                seen = (part.reaches(lo, hi, at) & (at >= 0)).any(0)
                blocks = [
                    _Block(number + i, query_indices, key_indices, part)
                    for i, key_indices in enumerate(_key_blocks(columns, seen, key_block))
                ]
                number += len(blocks)
                if blocks:
                    plan.append(blocks)
    return plan


def _distinct_rows(positions: Tensor) -> Tensor:
    """Return positions [B, L] on the host; [1, L] where all rows are alike, to plan for one."""
    # A plan is made of numbers and slices of Python's, so positions are read on the host, once.
    positions = positions.cpu()
    return positions[:1] if bool((positions == positions[:1]).all()) else positions


def _classes(queries: Tensor, keys: Tensor, period: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield indices of queries and keys that may see each other, by remainder of the period."""
    remainders = [_remainders(each, period) for each in (queries, keys)]
    if period == 1 or queries.shape[1] < _SMALLEST_CLASS * period or None in remainders:
        yield torch.arange(queries.shape[1]), torch.arange(keys.shape[1])
        return
    for value in range(period):
        rows, columns = ((each == value).nonzero()[:, 0] for each in remainders if each is not None)
        if len(rows) and len(columns):
            yield rows, columns


def _remainders(positions: Tensor, period: int) -> Tensor | None:
    """Return position modulo period of each index, −1 for padding; None if rows differ."""
    remainder = torch.where(positions >= 0, positions % period, -1)
    common = remainder.amax(0)
    # Rows share their blocks, so they must agree wherever they have a token.
    return common if bool(((remainder == common) | (remainder < 0)).all()) else None


def _ranges(positions: Tensor, rows: Tensor, size: int) -> Iterator[tuple[_Indices, int, int]]:
    """Yield blocks of indices with their lowest and highest position; none of only padding."""
    for part in rows.split(size):
        at = positions[:, part]
        real = at[at >= 0]
        if len(real):
            yield _as_slice(part), int(real.min()), int(real.max())


def _key_blocks(columns: Tensor, seen: Tensor, size: int) -> Iterator[_Indices]:
    """Divide the indices of keys into blocks of a size that cover at least all seen keys."""
    skipped = min(_SKIPPED, size)
    filled = torch.nn.functional.pad(seen, (0, -len(seen) % skipped))
    touched = filled.view(-1, skipped).any(1)
    # Few keys in the touched ranges are visible: gathering them costs a copy and saves most scores.
    if int(seen.sum()) <= _GATHERED * skipped * int(touched.sum()):
        yield from (_as_slice(part) for part in columns[seen].split(size) if len(part))
        return
    kept = touched.repeat_interleave(skipped)[: len(seen)].nonzero()[:, 0]
    ends = (kept.diff() > 1).nonzero()[:, 0] + 1
    for run in kept.tensor_split(ends):
        yield from (_as_slice(columns[part]) for part in run.split(size) if len(part))


def _as_slice(index: Tensor) -> _Indices:
    """Return indices as a slice where they are consecutive: indexing by it copies nothing."""
    first, last = int(index[0]), int(index[-1])
    return slice(first, last + 1) if last - first + 1 == len(index) else index
