"""Exact attention in blocks: never more than one block of scores in memory (Rabe 2021, Dao 2022).

The softmax is kept up while the keys go by (a running maximum and sum), the backward pass makes
each block of scores anew, and keys that the mask hides from a block of queries are never touched
(Child 2019): neither whole blocks of them nor, where few of a stretch are seen, single ones, which
are gathered. A mask with a period is computed in passes, with queries and keys sorted by it.
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

QUERY_BLOCK = 128
KEY_BLOCK = 512

_SKIPPED = 64
"""Keys that are skipped together: a window of 128 sees 382 keys of a block of queries, in whole
blocks of 512 keys 880 on average."""

_GATHERED = 0.5
"""Largest share of such keys that are seen for which a copy of those alone is worth its time."""

_SMALLEST_CLASS = 16
"""Queries at one place of a period that make a block; with fewer, blocks are too many."""


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


_Places = slice | Tensor
"""Array indices: a stretch, or [n] int64."""


def computed_pairs(positions: Positions, mask: Mask) -> int:
    """Return the number of pairs of query and key in a row that the kernel computes scores of.

    Args:
        positions: where they stand.
        mask: that hides some.
    """
    queries, keys = (torch.arange(each.shape[1]) for each in (positions.query, positions.key))
    blocks = [block for row in _plan(positions, mask, QUERY_BLOCK, KEY_BLOCK) for block in row]
    return sum(len(queries[block.queries]) * len(keys[block.keys]) for block in blocks)


@dataclass(frozen=True)
class _Block:
    """Queries and keys of which some see each other by a mask."""

    number: int
    queries: _Places
    keys: _Places
    mask: Mask

    def within(self, positions: Positions) -> Positions:
        """The block's positions: a new value each time, so that its masks are freed after use."""
        return positions.at_queries(self.queries).at_keys(self.keys)


class _Chunked(torch.autograd.Function):
    """Attention whose backward pass recomputes the scores of each block."""

    @staticmethod
    def forward(
        ctx: Any, request: AttentionRequest, seed: int, q: Tensor, k: Tensor, v: Tensor, *_: Tensor
    ) -> Tensor:
        ctx.request, ctx.seed = request.without_inputs(), seed
        output, log_sums = attend_to_all(request, [(request, seed)])
        ctx.save_for_backward(q, k, v, output, log_sums)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, output, log_sums = ctx.saved_tensors
        request: AttentionRequest = replace(ctx.request, q=q, k=k, v=v)
        sums = GradientSums.zeros(request)
        with full_precision(q):
            whole = SoftmaxGradient.of(gradient, output, log_sums)
            add_gradients(request, ctx.seed, whole, sums)
        return None, None, sums.q.to(q.dtype), sums.k.to(k.dtype), sums.v.to(v.dtype), *sums.learned


@dataclass(frozen=True)
class SoftmaxGradient:
    """The softmax of queries over all of their keys, as far as gradients of a block need it.

    Args:
        output: gradient of the output, [B, H, Lq, Ev].
        log_sums: log of the sums of exp(score), [B, H, Lq, 1].
        common: what the softmax takes away from every score's gradient of a row, [B, H, Lq, 1].
    """

    output: Tensor
    log_sums: Tensor
    common: Tensor

    @classmethod
    def of(cls, gradient: Tensor, output: Tensor, log_sums: Tensor) -> SoftmaxGradient:
        """From the gradient of an output [B, H, Lq, Ev], the output, and its log sums."""
        precision = log_sums.dtype
        common = (gradient.to(precision) * output.to(precision)).sum(-1, keepdim=True)
        return cls(gradient, log_sums, common)


@dataclass(frozen=True)
class GradientSums:
    """Gradients of an attention's inputs, which grow block by block.

    Args:
        q: [B, H, Lq, E].
        k: [B, K, Lk, E].
        v: [B, K, Lk, Ev].
        learned: of the request's learned tensors, in their order.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    learned: list[Tensor]

    @classmethod
    def zeros(cls, request: AttentionRequest) -> GradientSums:
        """Before the first block."""
        tensors = (request.q, request.k, request.v)
        q, k, v = (torch.zeros_like(each, dtype=request.precision) for each in tensors)
        return cls(q, k, v, [torch.zeros_like(each) for each in request.learned])


def attend_to_all(
    request: AttentionRequest, parts: Iterable[tuple[AttentionRequest, int]]
) -> tuple[Tensor, Tensor]:
    """Attend to keys that come in parts: one softmax over all of them.

    Args:
        request: of all queries.
        parts: the same queries with some of the keys, and the seed that fixes the dropout of these
            blocks; taken one after the other.

    Returns:
        The output [B, H, Lq, Ev], and the log of the sums of exp(score), [B, H, Lq, 1].
    """
    running = RunningSoftmax.start(request.q, request.v.shape[-1], request.precision)
    with full_precision(request.q):
        for part, seed in parts:
            attend_more(part, seed, running)
        output, log_sums = running.finish()
    return output.to(request.v.dtype), log_sums


def attend_more(request: AttentionRequest, seed: int, running: RunningSoftmax) -> None:
    """Go on with the softmax of all queries over the keys of a request, in place.

    Args:
        request: queries and more keys.
        seed: fixes the dropout of its blocks.
        running: of the queries over other keys; see `RunningSoftmax.start`.
    """
    for blocks in _rows_of_blocks(request):
        rows = blocks[0].queries
        running.put(rows, _attend_blocks(request, blocks, seed, running.at(rows)))


def add_gradients(
    request: AttentionRequest, seed: int, whole: SoftmaxGradient, sums: GradientSums
) -> None:
    """Add the gradients from all queries and some of the keys that they saw, in place.

    Args:
        request: queries and these keys.
        seed: as of `attend_more` with them.
        whole: of the queries, over all of their keys.
        sums: of the request.
    """
    for block in (block for blocks in _rows_of_blocks(request) for block in blocks):
        rows, keys, positions = block.queries, block.keys, block.within(request.positions)
        q = request.q[:, :, rows].detach().requires_grad_()
        k = request.k[:, :, keys].detach().requires_grad_()
        with torch.enable_grad():
            scores = _scores(request, q, k, positions)
        weights = torch.exp(scores.detach() - whole.log_sums[:, :, rows])
        weights.masked_fill_(~positions.visible(block.mask), 0.0)
        keep_mask = _kept(request, block, weights, seed)
        arriving = whole.output[:, :, rows].to(request.precision)
        sums.v[:, :, keys] += _of_key_heads(weights * keep_mask, arriving, request.num_groups)
        v = request.v[:, :, keys].to(request.precision)
        to_weights = _with_key_heads(arriving, v.mT) * keep_mask
        if request.relative_values is not None:
            through = _through_values(
                request, weights * keep_mask, positions, arriving, sums.learned
            )
            to_weights += through * keep_mask
        to_scores = weights * (to_weights - whole.common[:, :, rows])
        result = torch.autograd.grad(scores, (q, k, *request.learned), to_scores, allow_unused=True)
        sums.q[:, :, rows] += result[0]
        sums.k[:, :, keys] += result[1]
        for total, part in zip(sums.learned, result[2:], strict=True):
            if part is not None:
                total += part


@dataclass(frozen=True)
class RunningSoftmax:
    """The softmax of some queries over the keys so far, kept up from block to block of keys.

    The sums are of exp(score − highest), so parts over different keys can be taken up in any order
    and none overflows (Milakov 2018).

    Args:
        highest: largest score, [B, H, rows, 1].
        total: sum of exp(score − highest), [B, H, rows, 1].
        output: of the same weights and values, [B, H, rows, Ev].
    """

    highest: Tensor
    total: Tensor
    output: Tensor

    @classmethod
    def start(cls, q: Tensor, value_width: int, precision: torch.dtype) -> RunningSoftmax:
        """Before the first key, of queries q [B, H, rows, E]."""
        lowest = torch.finfo(precision).min
        highest = q.new_full((*q.shape[:3], 1), lowest, dtype=precision)
        output = highest.new_zeros(*q.shape[:3], value_width)
        return cls(highest, torch.zeros_like(highest), output)

    def at(self, rows: _Places) -> RunningSoftmax:
        """Those of some queries."""
        return RunningSoftmax(
            self.highest[:, :, rows], self.total[:, :, rows], self.output[:, :, rows]
        )

    def put(self, rows: _Places, part: RunningSoftmax) -> None:
        """Store those of some queries."""
        self.highest[:, :, rows] = part.highest
        self.total[:, :, rows] = part.total
        self.output[:, :, rows] = part.output

    def finish(self) -> tuple[Tensor, Tensor]:
        """Output [B, H, rows, Ev], and the log of the sums of exp(score) [B, H, rows, 1]."""
        # A blind row has a total of 0 and an output of 0.
        seen = self.total.clamp(min=torch.finfo(self.total.dtype).tiny)
        return self.output / seen, self.highest + seen.log()


def _attend_blocks(
    request: AttentionRequest, blocks: list[_Block], seed: int, running: RunningSoftmax
) -> RunningSoftmax:
    """Go on with the softmax of some queries over more blocks of keys."""
    q = request.q[:, :, blocks[0].queries]
    highest, total, output = running.highest, running.total, running.output
    for block in blocks:
        positions = block.within(request.positions)
        scores = _scores(request, q, request.k[:, :, block.keys], positions)
        scores.masked_fill_(~positions.visible(block.mask), -torch.inf)
        higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
        shrink = torch.exp(highest - higher)
        weights = torch.exp(scores - higher)
        total = total * shrink + weights.sum(-1, keepdim=True)
        weights *= _kept(request, block, weights, seed)
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
    """Gradient of the weights of a block from relative values, whose own is added to theirs."""
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
    """Scores of one block before the mask, [B, H, rows, keys]."""
    scaled = q.to(request.precision) * request.scale
    scores = soft_cap(_with_key_heads(scaled, k.to(request.precision).mT), request.softcap)
    for bias in request.biases:
        scores = scores + bias(scaled, k, positions)
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
    queries, keys = _distinct_rows(positions.query), _distinct_rows(positions.key)
    plan: list[list[_Block]] = []
    number = 0
    for part, period in mask.passes():
        for rows, columns in _classes(queries, keys, period):
            at = keys[:, columns]
            for places, lo, hi in _ranges(queries, rows, query_block):
                seen = (part.reaches(lo, hi, at) & (at >= 0)).any(0)
                blocks = [
                    _Block(number + i, places, stretch, part)
                    for i, stretch in enumerate(_stretches(columns, seen, key_block))
                ]
                number += len(blocks)
                if blocks:
                    plan.append(blocks)
    return plan


def _distinct_rows(positions: Tensor) -> Tensor:
    """Positions [B, L], or [1, L] where all rows are alike, where the plan is made."""
    positions = positions.cpu()
    return positions[:1] if bool((positions == positions[:1]).all()) else positions


def _classes(queries: Tensor, keys: Tensor, period: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Array indices of queries and keys that may see each other, one place of the period a time."""
    places = [_places_in(each, period) for each in (queries, keys)]
    if period == 1 or queries.shape[1] < _SMALLEST_CLASS * period or None in places:
        yield torch.arange(queries.shape[1]), torch.arange(keys.shape[1])
        return
    for place in range(period):
        rows, columns = ((each == place).nonzero()[:, 0] for each in places if each is not None)
        if len(rows) and len(columns):
            yield rows, columns


def _places_in(positions: Tensor, period: int) -> Tensor | None:
    """Place in the period of each array index, −1 for padding; None if rows of a batch differ."""
    place = torch.where(positions >= 0, positions % period, -1)
    common = place.amax(0)
    return common if bool(((place == common) | (place < 0)).all()) else None


def _ranges(positions: Tensor, rows: Tensor, size: int) -> Iterator[tuple[_Places, int, int]]:
    """Blocks of array indices with the lowest and highest position in each; none of padding."""
    for part in rows.split(size):
        at = positions[:, part]
        real = at[at >= 0]
        if len(real):
            yield _as_slice(part), int(real.min()), int(real.max())


def _stretches(columns: Tensor, seen: Tensor, size: int) -> Iterator[_Places]:
    """Divide the array indices of keys, those that are seen at least, into blocks of a size."""
    skipped = min(_SKIPPED, size)
    filled = torch.nn.functional.pad(seen, (0, -len(seen) % skipped))
    touched = filled.view(-1, skipped).any(1)
    if int(seen.sum()) <= _GATHERED * skipped * int(touched.sum()):
        yield from (_as_slice(part) for part in columns[seen].split(size) if len(part))
        return
    kept = touched.repeat_interleave(skipped)[: len(seen)].nonzero()[:, 0]
    ends = (kept.diff() > 1).nonzero()[:, 0] + 1
    for run in kept.tensor_split(ends):
        yield from (_as_slice(columns[part]) for part in run.split(size) if len(part))


def _as_slice(index: Tensor) -> _Places:
    """The same array indices, as a slice if they follow one another: that copies nothing."""
    first, last = int(index[0]), int(index[-1])
    return slice(first, last + 1) if last - first + 1 == len(index) else index
