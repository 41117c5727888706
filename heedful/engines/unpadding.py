"""Computing real tokens only: a padded batch as rows without padding, and back (Zeng 2022).

Only attention needs to know which tokens belong to the same sequence. Norms, linear layers and
dropout treat every token alike, so computing padding there is wasted. Batches sorted by length
still have a few percent of padding, up to a seventh where pools are small or the two sides differ.

Shapes: B sequences of up to L tokens, N of them real, R ≥ N rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from heedful.models.block import BlockState
from heedful.models.stack import Stack
from heedful.nn.mixer import Context, Memory
from heedful.nn.positions import NOTHING_HERE

_MOST_REAL = 0.98
"""Largest share of real tokens for which padding is left out. Rows are copied on the way in and
out, and by attention with rotary positions; still three blocks 512 wide gain 1 to 2 % with a
fortieth of padding."""

_MOST_REAL_COPIED = 0.95
"""The same share where PyTorch computes matmuls and attention: every attention copies rows."""

_STEPS = 32
"""Numbers of rows between two powers of two, to which rows are rounded up where PyTorch multiplies.
oneDNN makes a plan for every new shape, which took 3 % of a step of `base` and 6 % of `tiny`, and
keeps only the latest plans."""


@dataclass(frozen=True, eq=False)
class RealRows:
    """Rows of the real tokens of a padded batch, and the slots they come from.

    Args:
        index: slot b · L + l of each row's token, [R] int64; surplus rows repeat the first token,
            and their results are not used.
        row: row of each slot, [B · L] int64; a slot of padding has the row of some token.
        count: N, the number of real tokens.
        positions: positions of the rows' tokens, [1, R] int64; −1 for surplus rows.
        shape: B and L.
    """

    index: Tensor
    row: Tensor
    count: int
    positions: Tensor
    shape: tuple[int, int]

    @functools.cached_property
    def starts(self) -> Tensor:
        """First row of each sequence, and N at the end, [B + 1] int64."""
        batch, length = self.shape
        # Slots of real tokens are sorted, so a binary search finds each sequence's first row.
        first_slots = torch.arange(batch + 1) * length
        return torch.searchsorted(self.index[: self.count], first_slots)

    @functools.cached_property
    def in_front(self) -> bool:
        """True if all padding of every sequence comes after its tokens."""
        slots = self.index[: self.count]
        sequence = slots // self.shape[1]
        # The number of real tokens before it is a token's place, unless padding precedes it.
        rank = torch.arange(self.count) - self.starts[sequence]
        return torch.equal(rank, slots - sequence * self.shape[1])

    def pack(self, x: Tensor) -> Tensor:
        """Pack x [B, L, D] into rows [1, R, D]."""
        packed: Tensor = _Pack.apply(x.flatten(0, 1), self)  # type: ignore[no-untyped-call]
        return packed[None]

    def unpack(self, x: Tensor) -> Tensor:
        """Unpack rows [1, R, D] to [B, L, D]; padding gets some token's vector, and no gradient."""
        unpacked: Tensor = _Unpack.apply(x[0], self)  # type: ignore[no-untyped-call]
        padded: Tensor = unpacked.unflatten(0, self.shape)
        return padded


rows_in_use: ContextVar[RealRows | None] = ContextVar("rows in use", default=None)
"""The rows of the running part, if its first linear map unpacks and its last one packs; None for a
part that gets padding or computes rows throughout."""


@dataclass(frozen=True)
class PackedContext(Context):
    """The context of a pass over a batch without its padding.

    Args:
        rows: places of the input's rows [1, R, D] in the batch.
        padded: context of the same pass with its padding.
    """

    rows: RealRows = field(kw_only=True)
    padded: Context = field(kw_only=True)

    @classmethod
    def of(cls, context: Context, rows: RealRows, embedding: Tensor) -> PackedContext:
        """Pack the context of a padded pass, whose embedding is packed already [1, R, D]."""
        values = {each.name: getattr(context, each.name) for each in fields(Context)}
        return cls(**values | {"embedding": embedding}, rows=rows, padded=context)


@dataclass(frozen=True)
class PackedMemory(Memory):
    """An encoder's output without its padding.

    Args:
        rows: places of the rows of `states` [1, R, D].
        padded: the same output with its padding, for parts that need it.
    """

    rows: RealRows = field(kw_only=True)
    padded: Memory = field(kw_only=True)

    @classmethod
    def of(cls, memory: Memory, rows: RealRows) -> PackedMemory:
        """Pack a memory into rows at the places of its real tokens."""
        values = {each.name: getattr(memory, each.name) for each in fields(Memory)}
        return cls(**values | {"states": rows.pack(memory.states)}, rows=rows, padded=memory)


def rows_of(context: Context) -> RealRows | None:
    """Return the rows of a pass without its padding; None where padding stays."""
    return context.rows if isinstance(context, PackedContext) else None


def row_positions(context: Context) -> Tensor:
    """Return the position of every row of a pass, [B, L] or [1, R] int64."""
    rows = rows_of(context)
    return context.positions.query if rows is None else rows.positions


def real_rows(positions: Tensor, *, exact_count: bool = False) -> RealRows | None:
    """Return the rows of a training batch; None where leaving out padding does not pay.

    Args:
        positions: positions of the tokens [B, L] int64; −1 is padding.
        exact_count: flag of exactly N rows, for kernels in C, which need no plan for a new shape.
    """
    if not torch.is_grad_enabled():
        return None
    flat = positions.flatten()
    index = (flat >= 0).nonzero()[:, 0]
    count = len(index)
    # In the interval (2^k, 2^(k+1)] numbers of rows are multiples of 2^k / 32.
    step = max(1, (1 << max(count - 1, 1).bit_length() - 1) // _STEPS)
    rows = count if exact_count else -(-count // step) * step
    most_real = _MOST_REAL if exact_count else _MOST_REAL_COPIED
    if count == 0 or rows > most_real * len(flat):
        return None
    # Surplus rows repeat a real token, so that every row holds ordinary, finite values.
    index = torch.cat([index, index[:1].expand(rows - count)])
    return _rows_at(index, count, positions)


def rows_in_front(positions: Tensor) -> RealRows | None:
    """Return exactly N rows of positions [B, L] with padding last, for kernels without plans.

    Returns:
        The rows; None if padding precedes a token, or if there is little of it.
    """
    real = positions >= 0
    index = real.flatten().nonzero()[:, 0]
    if len(index) == 0 or len(index) > _MOST_REAL_COPIED * positions.numel():
        return None
    if bool((real[:, 1:] > real[:, :-1]).any()):
        return None
    return _rows_at(index, len(index), positions)


def _rows_at(index: Tensor, count: int, positions: Tensor) -> RealRows:
    flat = positions.flatten()
    row_positions = flat[index]
    row_positions[count:] = NOTHING_HERE
    # Padding gets the row of the last token before it; the clamp is for padding at the very start.
    row = ((flat >= 0).cumsum(0) - 1).clamp_(min=0)
    return RealRows(
        index, row, count, row_positions[None], (positions.shape[0], positions.shape[1])
    )


class UnpaddedStack(Stack):
    """A stack that computes real tokens only, where an engine finds their rows."""

    def forward(self, x: Tensor, context: Context, read: Sequence[BlockState] = ()) -> Tensor:
        rows = self._real_rows(x, context)
        if rows is None:
            return super().forward(x, context, read)
        # Packed once and unpacked once for all blocks: only attention needs sequences in rows.
        packed = rows.pack(x)
        here = self._enter(packed, PackedContext.of(context, rows, packed))
        y, _ = self._run(packed, here, read)
        return rows.unpack(self._leave(y, here))

    def _real_rows(self, x: Tensor, context: Context) -> RealRows | None:
        """Return the rows of a pass over x [B, L, D] without padding; None where padding stays."""
        raise NotImplementedError


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slots: Tensor, rows: RealRows) -> Tensor:
        ctx.rows = rows
        return slots.index_select(0, rows.index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows, (gradient,) = ctx.rows, gradients
        # Padding gets zeros: as a query it must not move the keys that it does not see.
        slots = gradient.new_zeros(len(rows.row), gradient.shape[1])
        real = slice(rows.count)
        return slots.index_copy_(0, rows.index[real], gradient[real]), None


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: RealRows) -> Tensor:
        ctx.rows = rows
        return x.index_select(0, rows.row)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows = ctx.rows
        gradient = gradients[0].index_select(0, rows.index)
        # Surplus rows repeat the first token, whose gradient must count once.
        gradient[rows.count :] = 0.0
        return gradient, None
