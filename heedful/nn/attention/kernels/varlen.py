"""PyTorch's attention over sequences of unequal lengths side by side, for CUDA (`varlen_attn`).

Padding and other sequences' keys are never looked at, where a mask over a padded batch computes and
hides them. Sequences are given by where they begin in one long row of tokens. Nothing is copied for
that: a batch of rows is such a long row if its padding counts as sequences too, whose results are
thrown away. So shapes stay those of the batch, and all that is looked at on the device is looked at
once for all layers. Not yet run on a GPU: the plan does not choose it, and it must be asked for by
name; tests compute `varlen_attn` by its definition.

Shapes: B rows, S sequences at most in a row, T = B · L tokens.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.nn.attention.kernels.request import AttentionRequest, full_precision
from heedful.nn.positions import Positions

name = "varlen"

_WIDTHS = 8
"""Heads are multiples of it wide, and at most `_WIDEST`: what FlashAttention is compiled for."""
_WIDEST = 256


@dataclass(frozen=True, eq=False)
class Layout:
    """The places of the sequences of an attention.

    Args:
        query_starts: [B · (S + 1) + 1] int32, the first token of each sequence of queries and of
            each row's padding, and T.
        key_starts: the same for keys, sequence by sequence those that the queries see.
        sighted: [B, Lq] bool, queries that are there and have keys to see.
    """

    query_starts: Tensor
    key_starts: Tensor
    sighted: Tensor


def unsupported(request: AttentionRequest) -> str | None:
    """It needs CUDA, 16-bit numbers, and sequences one after the other."""
    if request.q.device.type != "cuda":
        return f"it is for CUDA, and the tensors are on {request.q.device.type}"
    if not _is_there():
        return "this PyTorch has no varlen_attn, or one without windows"
    if torch.compiler.is_compiling():
        return "it looks at positions, which a graph cannot"
    if request.q.dtype not in (torch.float16, torch.bfloat16):
        return "it computes float16 and bfloat16"
    return unsuitable(request)


def unsuitable(request: AttentionRequest) -> str | None:
    """Return why a request cannot be told as sequences side by side, as a clause; None if it can.

    Args:
        request: on any device.
    """
    widths = (request.q.shape[-1], request.v.shape[-1])
    if widths[0] != widths[1] or widths[0] % _WIDTHS or widths[0] > _WIDEST:
        return f"heads must be multiples of {_WIDTHS} wide, at most {_WIDEST}, values like keys"
    if request.biases or request.relative_values is not None:
        return "it knows no biases and no relative values"
    if request.softcap is not None or request.dropout:
        return "it knows no soft caps and no dropout"
    if request.positions.lineage is not None:
        return "it cannot tell continuations apart that share a row"
    if (request.positions.query_segment is None) != (request.positions.key_segment is None):
        return "either queries or keys have no segments"
    if request.mask.band() is None:
        return "its masks are: causal, a window, the own segment, and all of these"
    result = _layout(request)
    return result if isinstance(result, str) else None


def run(request: AttentionRequest) -> Tensor:
    """Hand the request to PyTorch, as rows of tokens and where their sequences begin."""
    from torch.nn.attention.varlen import varlen_attn

    return compute(request, varlen_attn)


def compute(request: AttentionRequest, varlen_attn: Callable[..., Any]) -> Tensor:
    """The same with a given form of `varlen_attn`."""
    layout, seen = _layout(request), request.mask.band()
    assert isinstance(layout, Layout), layout
    assert seen is not None
    q, k, v = (_one_row(each) for each in (request.q, request.k, request.v))
    with full_precision(request.q):
        output = varlen_attn(
            q,
            k,
            v,
            layout.query_starts,
            layout.key_starts,
            request.q.shape[2],
            request.k.shape[2],
            scale=request.scale,
            window_size=seen,
            enable_gqa=request.num_groups > 1,
        )
    rows: Tensor = output.unflatten(0, (len(layout.sighted), -1))
    return rows.masked_fill(~layout.sighted[..., None, None], 0.0).transpose(1, 2)


@functools.cache
def _is_there() -> bool:
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn

    return "window_size" in inspect.signature(varlen_attn).parameters


def _one_row(x: Tensor) -> Tensor:
    """[B, H, L, E] as [B · L, H, E]: a view of what a projection gave."""
    return x.transpose(1, 2).flatten(0, 1)


def _layout(request: AttentionRequest) -> Layout | str:
    positions, mask = request.positions, request.mask
    apart = positions.query_segment is not None and mask.parts_segments
    ordered = mask.band() != (-1, -1)
    return positions.derive(
        ("varlen", apart, ordered), lambda: _lay_out(positions, apart=apart, ordered=ordered)
    )


def _lay_out(positions: Positions, *, apart: bool, ordered: bool) -> Layout | str:
    """Return where sequences begin, or why they cannot be told apart.

    Args:
        positions: of queries and keys.
        apart: whether the segments of a row are sequences of their own.
        ordered: whether it matters where in a sequence a token stands.
    """
    sides = [_Side.of(positions.query, positions.query_segment if apart else None)]
    if positions.key is not positions.query:
        sides.append(_Side.of(positions.key, positions.key_segment if apart else None))
    queries, keys = sides[0], sides[-1]
    most = torch.stack([side.rank.amax() for side in sides]).amax() + 1
    faults = [side.is_scattered for side in sides]
    faults += [side.jumps & ordered for side in sides]
    # A look at the device, which waits for it: once for all layers of a batch.
    most_sequences, *found = torch.stack([most, *(fault.long() for fault in faults)]).tolist()
    if any(found[: len(sides)]):
        return "padding must come last in a row, and each segment in one piece"
    if any(found[len(sides) :]):
        return "positions must count up by one within a sequence"
    count = max(1, most_sequences)
    query_table, key_table = (side.table(count) for side in (queries, keys))
    if queries is not keys:
        both = (query_table.sizes > 0) & (key_table.sizes > 0)
        unlike = both & (query_table.segments != key_table.segments)
        late = both & ordered & (query_table.last != key_table.last)
        unlike, misaligned = torch.stack([unlike.any(), late.any()]).tolist()
        if unlike:
            return "queries and keys must have the same segments in the same order"
        if misaligned:
            return "queries must end where their keys end"
    has_keys = (key_table.sizes > 0).gather(1, queries.rank.clamp(min=0))
    return Layout(query_table.starts, key_table.starts, queries.real & has_keys)


@dataclass(frozen=True, eq=False)
class _Table:
    """The sequences of one side, [B, S] each.

    Args:
        sizes: tokens of each.
        segments: the segment it is; −1 where there is none.
        last: the position of its last token; −1 where there is none.
        starts: as in `Layout`.
    """

    sizes: Tensor
    segments: Tensor
    last: Tensor
    starts: Tensor


@dataclass(frozen=True, eq=False)
class _Side:
    """Queries or keys.

    Args:
        positions: [B, L].
        segments: [B, L]; zeros where a row is one sequence.
        real: [B, L] bool, no padding.
        rank: [B, L] int64, which sequence of its row a token belongs to; −1 before the first.
        is_scattered: 0-dim bool: padding before a token, or a segment in two pieces.
        jumps: 0-dim bool: neighbours in a sequence whose positions are not neighbours.
    """

    positions: Tensor
    segments: Tensor
    real: Tensor
    rank: Tensor
    is_scattered: Tensor
    jumps: Tensor

    @classmethod
    def of(cls, positions: Tensor, segments: Tensor | None) -> _Side:
        segments = torch.zeros_like(positions) if segments is None else segments
        real = positions >= 0
        both = real[:, 1:] & real[:, :-1]
        step = segments[:, 1:] - segments[:, :-1]
        begins = real.clone()
        begins[:, 1:] &= ~(both & (step == 0))
        # Numbers that only grow cannot come again.
        scattered = (real[:, 1:] & ~real[:, :-1]).any() | (both & (step < 0)).any()
        jumps = both & (step == 0) & (positions[:, 1:] != positions[:, :-1] + 1)
        return cls(positions, segments, real, begins.cumsum(1) - 1, scattered, jumps.any())

    def table(self, count: int) -> _Table:
        """Return the sequences, `count` of each row; those that are not there have no tokens."""
        rows, length = self.positions.shape
        place = self.rank.clamp(min=0)
        nothing = self.positions.new_full((rows, count), -1)
        here = self.real.to(self.positions.dtype)
        sizes = torch.zeros_like(nothing).scatter_add_(1, place, here)
        named = torch.where(self.real, self.segments, -1)
        segments = nothing.scatter_reduce(1, place, named, "amax")
        last = nothing.scatter_reduce(1, place, self.positions, "amax")
        # The start of each sequence, then of the row's padding.
        ends = torch.nn.functional.pad(sizes.cumsum(1), (1, 0))
        starts = ends + length * torch.arange(rows, device=sizes.device)[:, None]
        total = starts.new_full((1,), rows * length)
        return _Table(sizes, segments, last, torch.cat([starts.flatten(), total]).int())
