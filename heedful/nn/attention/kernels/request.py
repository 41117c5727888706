"""The request that a kernel of attention computes, and the steps that several kernels share.

Shapes: B batch, H heads, K key/value heads (H is a multiple of K), Lq queries, Lk keys, E width of
a query or key head, Ev width of a value head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from heedful.nn.attention.masks import Causal, Everything, Mask
from heedful.nn.attention.relative_positions import Bias
from heedful.nn.attention.relative_values import RelativeValues
from heedful.nn.positions import Positions


@dataclass(frozen=True, eq=False)
class AttentionRequest:
    """One attention to compute.

    Args:
        q: [B, H, Lq, E] queries, rotated if the model rotates, not scaled.
        k: [B, K, Lk, E] keys.
        v: [B, K, Lk, Ev] values.
        positions: where queries and keys stand.
        mask: who may see whom.
        biases: what is added to the scores.
        scale: factor on the scores.
        softcap: if given, scores are squashed to softcap · tanh(score / softcap).
        dropout: probability with which a weight is dropped now; 0 outside training.
        relative_values: adds vectors of distances to the values.
        device: type of the device to plan for: the tensors' own, unless a plan is made elsewhere.
        readable: whether values of positions can be read without waiting for them.
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
        """Query heads per key/value head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def precision(self) -> torch.dtype:
        """The type of scores and weights: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """The tensors of the biases and relative values that want a gradient."""
        more = () if self.relative_values is None else (self.relative_values,)
        return tuple(
            tensor
            for part in (*self.biases, *more)
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

        A backward pass that held them beside what autograd saves would keep them alive where
        autograd gives them up, as activation checkpointing makes it do.
        """
        q, k, v = (each.new_empty(0) for each in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v)


class Kernel(Protocol):
    """One way to compute attention.

    A kernel that an engine brings may have a method `advantage(request) -> str | None` besides,
    why it is the best for a request that it can serve. It is then asked before the others.
    """

    @property
    def name(self) -> str:
        """The name that it is asked for by."""

    def unsupported(self, request: AttentionRequest) -> str | None:
        """Return why this kernel cannot serve a request, as a clause; None when it can."""

    def run(self, request: AttentionRequest) -> Tensor:
        """Compute [B, H, Lq, Ev], in the type of the values."""


def shows_all(positions: Positions, mask: Mask, readable: bool) -> bool:
    """Return whether every query is known to see every key, so that no mask is needed.

    Args:
        positions: places of queries and keys.
        mask: restriction of what is seen.
        readable: values of positions may be read; see `AttentionRequest`.
    """
    if positions.counted and positions.lineage is None and mask == Everything():
        return True
    if not readable:
        return False
    visible = positions.visible(mask)  # kept with the positions, as the answer is
    return positions.derive(("shows all", mask), lambda: bool(visible.all()))


def is_causal(request: AttentionRequest) -> bool:
    """Return whether query i is known to see the keys up to i, and no others."""
    positions = request.positions
    square = positions.query.shape[1] == positions.key.shape[1]
    return positions.counted and positions.lineage is None and square and request.mask == Causal()


def may_have_blind_rows(request: AttentionRequest) -> bool:
    """Return whether some query may see no key at all."""
    positions, mask = request.positions, request.mask
    if shows_all(positions, mask, request.readable) or is_causal(request):
        return False
    if not request.readable:
        return True
    return positions.derive(
        ("blind rows", mask), lambda: not bool(positions.visible(mask).any(-1).all())
    )


def total_bias(request: AttentionRequest) -> Tensor | None:
    """The sum of all biases, [B|1, H, Lq, Lk], or None when there are none."""
    total: Tensor | None = None
    for bias in request.biases:
        scaled = request.q.to(request.precision) * request.scale
        term = bias(scaled, request.k, request.positions)
        total = term if total is None else total + term
    return total


def soft_cap(scores: Tensor, softcap: float | None) -> Tensor:
    """Squash scores smoothly into (−softcap, softcap)."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def hidden_scores(request: AttentionRequest, dtype: torch.dtype) -> Tensor | None:
    """Return the mask as numbers to add: 0 where visible, very negative elsewhere; None for all.

    The numbers are finite: a row that sees nothing becomes a plain mean, to be cleared by
    `clear_blind_rows`, where infinities would make it NaN. Any score is lost beside them in
    rounding, so nothing hidden leaks into a row that sees something.
    """
    positions, mask = request.positions, request.mask
    if shows_all(positions, mask, request.readable):
        return None

    def compute() -> Tensor:
        visible = positions.visible(mask)
        zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        return zeros.masked_fill_(~visible, torch.finfo(dtype).min / 2)

    return positions.derive(("hidden", mask, dtype), compute)


def clear_blind_rows(output: Tensor, request: AttentionRequest) -> Tensor:
    """Make the output [B, H, Lq, Ev] of queries that see nothing 0, and its gradient with it."""
    positions, mask = request.positions, request.mask
    if not may_have_blind_rows(request):
        return output
    sighted = positions.derive(
        ("sighted", mask, output.dtype),
        lambda: positions.visible(mask).any(-1, keepdim=True).to(output.dtype),
    )
    return output * sighted
