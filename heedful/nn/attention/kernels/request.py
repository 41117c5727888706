"""The request to a kernel of attention, and the steps that several kernels share.

Shapes: B batch, H heads, K key/value heads (H is a multiple of K), Lq queries, Lk keys, E width of
a query or key head, Ev width of a value head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from heedful.nn.attention.masks import Causal, Everything, Mask, SameSegment
from heedful.nn.positions import Positions

if TYPE_CHECKING:
    from heedful.nn.attention.relative_positions import Bias
    from heedful.nn.attention.relative_values import RelativeValues

MAX_DECODED = 16
"""Largest number of queries that the kernel of decoding serves; they share one range of slots."""


@dataclass(frozen=True, eq=False)
class AttentionRequest:
    """The inputs and settings of one attention.

    Args:
        q: [B, H, Lq, E] queries, rotated if the model rotates, not scaled.
        k: [B, K, Lk, E] keys.
        v: [B, K, Lk, Ev] values.
        positions: positions and segments of queries and keys.
        mask: rule for the keys that a query may see.
        biases: position biases that are added to the scores.
        scale: factor on the scores.
        softcap: bound c of the scores, which become c · tanh(score / c); None for no bound.
        dropout: probability of dropping a weight in this call; 0 outside training.
        relative_values: trained vectors of distances that are added to the values.
        device: type of the device to plan for: the tensors' own, unless a plan is made elsewhere.
        readable: flag of positions whose values can be read without waiting for a device.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    positions: Positions
    mask: Mask
    biases: tuple[Bias, ...]
    scale: float
    softcap: float | None = None
    dropout: float = 0.0
    relative_values: RelativeValues | None = None
    device: str = "cpu"
    readable: bool = False

    @property
    def num_groups(self) -> int:
        """Number of query heads for each key/value head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def precision(self) -> torch.dtype:
        """The dtype of scores and weights: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """The tensors of biases and relative values that require a gradient."""
        more = () if self.relative_values is None else (self.relative_values,)
        return tuple(
            tensor
            for part in (*self.biases, *more)
            # Buffers as well: a table that is no parameter may be computed from trained tensors.
            for tensor in (*part.parameters(), *part.buffers())
            if tensor.requires_grad
        )

    @property
    def wants_gradient(self) -> bool:
        """True where a backward pass may follow."""
        if not torch.is_grad_enabled():
            return False
        return any(t.requires_grad for t in (self.q, self.k, self.v)) or bool(self.learned)

    def without_inputs(self) -> AttentionRequest:
        """Return the request with empty queries, keys and values.

        A backward pass that held them outside of autograd's saved tensors would keep them alive
        where autograd drops them, as under activation checkpointing.
        """
        q, k, v = (each.new_empty(0) for each in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v)


class Kernel(Protocol):
    """The protocol of a kernel of attention.

    A kernel of an engine may also have a method `advantage(request) -> str | None`, which returns
    the reason why it is the best for a request that it can serve. Such a kernel ranks first.
    """

    @property
    def name(self) -> str:
        """The name by which it can be requested."""

    def unsupported(self, request: AttentionRequest) -> str | None:
        """Return the reason why it cannot serve a request, as a clause; None when it can."""

    def run(self, request: AttentionRequest) -> Tensor:
        """Compute attention, [B, H, Lq, Ev] in the dtype of the values."""


def shows_all(positions: Positions, mask: Mask, readable: bool) -> bool:
    """Return whether every query is known to see every key, so that no mask is needed.

    Args:
        positions: positions of queries and keys.
        mask: rule for the keys that a query may see.
        readable: permission to read the values of positions; see `AttentionRequest`.
    """
    if positions.counted and positions.lineage is None and mask == Everything():
        return True
    if not readable:
        return False
    if (keys := common_keys(positions, mask)) is not None:
        real = positions.query >= 0
        return positions.derive(("shows all", mask), lambda: bool(keys.all() and real.all()))
    visible = positions.visible(mask)  # cached with the positions, like the result below
    return positions.derive(("shows all", mask), lambda: bool(visible.all()))


def common_keys(positions: Positions, mask: Mask) -> Tensor | None:
    """Return the keys that every query sees [B, 1, 1, Lk] bool; None where queries differ.

    Padded queries count like all others: `clear_blind_rows` clears their outputs.
    """
    # A mask of all pairs grows with the square of the length: 1.3 GB for 16,384 tokens.
    if mask != Everything() or positions.lineage is not None:
        return None
    return (positions.key >= 0)[:, None, None, :]


def of_one_text(positions: Positions, mask: Mask) -> Mask:
    """Return a mask without its rule of segments where rows have none, which then hides nothing."""
    if positions.query_segment is not None or positions.key_segment is not None:
        return mask
    rules = [rule for rule in mask.conjuncts if rule != SameSegment()]
    return rules[0] if len(rules) == 1 else mask


def is_causal(request: AttentionRequest) -> bool:
    """Return whether query i is known to see the keys up to i and no others."""
    positions = request.positions
    # With more keys than queries, flags of PyTorch's kernels align the triangle to the upper left.
    square = positions.query.shape[1] == positions.key.shape[1]
    known = positions.counted and positions.lineage is None and square
    # Masks of language models heed segments too, of which rows of one text have none.
    return known and of_one_text(positions, request.mask) == Causal()


def may_have_blind_rows(request: AttentionRequest) -> bool:
    """Return whether some query may see no key."""
    positions, mask = request.positions, request.mask
    if shows_all(positions, mask, request.readable) or is_causal(request):
        return False
    # Where values cannot be read, True is the safe answer: it costs one multiplication.
    if not request.readable:
        return True
    return positions.derive(("blind rows", mask), lambda: not bool(_sighted(positions, mask).all()))


def _sighted(positions: Positions, mask: Mask) -> Tensor:
    """Return the queries that see a key [B, 1, Lq, 1] bool."""
    if (keys := common_keys(positions, mask)) is None:
        return positions.visible(mask).any(-1, keepdim=True)
    return (positions.query >= 0)[:, None, :, None] & keys.any(-1, keepdim=True)


def total_bias(request: AttentionRequest) -> Tensor | None:
    """Return the sum of all biases, [B|1, H, Lq, Lk], or None when there are none."""
    total: Tensor | None = None
    for bias in request.biases:
        # Biases made of queries (Shaw, Transformer-XL) share the scale of the scores.
        scaled = request.q.to(request.precision) * request.scale
        term = bias(scaled, request.k, request.positions)
        total = term if total is None else total + term
    return total


def soft_cap(scores: Tensor, softcap: float | None) -> Tensor:
    """Squash scores smoothly into (−softcap, softcap)."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def hidden_scores(request: AttentionRequest, dtype: torch.dtype) -> Tensor | None:
    """Return the mask as a term of the scores: 0 where visible, else very negative; None for all 0.

    The term is finite, so that a row without visible keys becomes a plain mean, which
    `clear_blind_rows` clears; −∞ would make it NaN. A score added to it is lost in rounding, so no
    hidden value leaks into a row with visible keys.
    """
    positions, mask = request.positions, request.mask
    if shows_all(positions, mask, request.readable):
        return None

    def compute() -> Tensor:
        visible = positions.visible(mask)
        zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        # Half of the lowest number is used: a negative score added to the lowest could overflow to
        # −∞.
        return zeros.masked_fill_(~visible, torch.finfo(dtype).min / 2)

    return positions.derive(("hidden", mask, dtype), compute)


def clear_blind_rows(output: Tensor, request: AttentionRequest) -> Tensor:
    """Set the output [B, H, Lq, Ev] of queries that see no key, and their gradient, to 0."""
    positions, mask = request.positions, request.mask
    if not may_have_blind_rows(request):
        return output
    # A factor of 0 or 1 in the output's dtype also sets the gradient to zero.
    sighted = positions.derive(
        ("sighted", mask, output.dtype),
        lambda: _sighted(positions, mask).to(output.dtype),
    )
    return output * sighted
