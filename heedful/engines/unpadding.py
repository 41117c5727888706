"""Work on real tokens only: a padded batch as rows without its padding, and back (Zeng 2022).

Only attention needs to know which tokens stand in the same sequence. All else in a block treats
every token alike, and what it does with padding is work for nothing. Shapes: B sequences of up to L
tokens, N of them real, R ≥ N rows.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from heedful.nn.mixer import Context, Memory
from heedful.nn.positions import NOTHING_HERE

_WORTH_IT = 0.98
"""Rows are copied on the way in and out, and by attention with rotary positions: with a fortieth of
padding three blocks 512 wide gain 1 to 2 % all the same."""

_WORTH_COPYING = 0.95
"""The same where PyTorch multiplies and attends: rows are copied in every attention."""

_STEPS = 32
"""There numbers of rows are rounded up to one of so many between a power of two and the next:
oneDNN makes a plan for every new shape, 3 % of a step's time, and keeps those of the latest."""


@dataclass(frozen=True, eq=False)
class RealRows:
    """The real tokens of a padded batch: which slot each row is from.

    Args:
        index: [R] int64, the slot b · L + l of each row's token; more rows than tokens repeat the
            first, and what is computed for them goes nowhere.
        row: [B · L] int64, the row of each slot; padding has some token's.
        count: N.
        positions: [1, R] int64 of the rows' tokens; −1 for those that repeat.
        shape: B and L.
    """

    index: Tensor
    row: Tensor
    count: int
    positions: Tensor
    shape: tuple[int, int]

    @functools.cached_property
    def starts(self) -> Tensor:
        """The first row of each sequence, and N, [B + 1] int64."""
        batch, length = self.shape
        first_slots = torch.arange(batch + 1) * length
        return torch.searchsorted(self.index[: self.count], first_slots)

    @functools.cached_property
    def in_front(self) -> bool:
        """True where the tokens of each sequence come first, and all of its padding after them."""
        slots = self.index[: self.count]
        sequence = slots // self.shape[1]
        rank = torch.arange(self.count) - self.starts[sequence]
        return torch.equal(rank, slots - sequence * self.shape[1])

    def pack(self, x: Tensor) -> Tensor:
        """[B, L, D] to [1, R, D]."""
        packed: Tensor = _Pack.apply(x.flatten(0, 1), self)  # type: ignore[no-untyped-call]
        return packed[None]

    def unpack(self, x: Tensor) -> Tensor:
        """[1, R, D] to [B, L, D]; a padding slot gets the vector of some token, and no gradient."""
        unpacked: Tensor = _Unpack.apply(x[0], self)  # type: ignore[no-untyped-call]
        padded: Tensor = unpacked.unflatten(0, self.shape)
        return padded


rows_in_use: ContextVar[RealRows | None] = ContextVar("rows in use", default=None)
"""The rows of the part that runs, whose first map unpacks its output and whose last packs its
input; None where it runs with padding."""


@dataclass(frozen=True)
class PackedContext(Context):
    """The context of a pass over a batch without its padding.

    Args:
        rows: the places of the input's rows [1, R, D] in the batch.
        padded: the context of the same pass with its padding.
    """

    rows: RealRows = field(kw_only=True)
    padded: Context = field(kw_only=True)

    @classmethod
    def of(cls, context: Context, rows: RealRows, embedding: Tensor) -> PackedContext:
        """Pack a context.

        Args:
            context: of the padded pass.
            rows: the places of its real tokens.
            embedding: [1, R, D], the packed input of the stack.
        """
        values = {each.name: getattr(context, each.name) for each in fields(Context)}
        return cls(**values | {"embedding": embedding}, rows=rows, padded=context)


@dataclass(frozen=True)
class PackedMemory(Memory):
    """An encoder's output without its padding.

    Args:
        rows: the places of the rows of `states` [1, R, D].
        padded: the same output with its padding.
    """

    rows: RealRows = field(kw_only=True)
    padded: Memory = field(kw_only=True)

    @classmethod
    def of(cls, memory: Memory, rows: RealRows) -> PackedMemory:
        """Pack a memory, given the places of its real tokens."""
        values = {each.name: getattr(memory, each.name) for each in fields(Memory)}
        return cls(**values | {"states": rows.pack(memory.states)}, rows=rows, padded=memory)


def rows_of(context: Context) -> RealRows | None:
    """Return the rows of a pass without its padding; None where padding stays."""
    return context.rows if isinstance(context, PackedContext) else None


def row_positions(context: Context) -> Tensor:
    """Return the position of every row of a pass, [B, L] or [1, R] int64."""
    rows = rows_of(context)
    return context.positions.query if rows is None else rows.positions


def real_rows(positions: Tensor, *, as_they_stand: bool = False) -> RealRows | None:
    """The rows of a batch that is being trained on; None where padding is not worth leaving out.

    Args:
        positions: [B, L] int64; −1 is padding.
        as_they_stand: whether kernels in C multiply them, which need no plans.
    """
    if not torch.is_grad_enabled():
        return None
    flat = positions.flatten()
    index = (flat >= 0).nonzero()[:, 0]
    count = len(index)
    rows = count if as_they_stand else _rounded_up(count)
    worth = _WORTH_IT if as_they_stand else _WORTH_COPYING
    if count == 0 or rows > worth * len(flat):
        return None
    index = torch.cat([index, index[:1].expand(rows - count)])
    return _rows_at(index, count, positions)


def rows_in_front(positions: Tensor) -> RealRows | None:
    """The rows of a batch where all padding comes last; None elsewhere, or where it is little.

    Exactly as many as there are tokens, for kernels that need no plan.

    Args:
        positions: [B, L] int64; −1 is padding.
    """
    real = positions >= 0
    index = real.flatten().nonzero()[:, 0]
    if len(index) == 0 or len(index) > _WORTH_COPYING * positions.numel():
        return None
    if bool((real[:, 1:] > real[:, :-1]).any()):
        return None
    return _rows_at(index, len(index), positions)


def _rows_at(index: Tensor, count: int, positions: Tensor) -> RealRows:
    flat = positions.flatten()
    row_positions = flat[index]
    row_positions[count:] = NOTHING_HERE
    row = ((flat >= 0).cumsum(0) - 1).clamp_(min=0)
    return RealRows(
        index, row, count, row_positions[None], (positions.shape[0], positions.shape[1])
    )


def _rounded_up(count: int) -> int:
    step = max(1, (1 << max(count - 1, 1).bit_length() - 1) // _STEPS)
    return -(-count // step) * step


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
        gradient[rows.count :] = 0.0
        return gradient, None
