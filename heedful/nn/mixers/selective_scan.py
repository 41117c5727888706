"""The selective scan h_t = exp(Δ_t A) ∘ h_{t−1} + Δ_t B_t u_t, y_t = C_t h_t (Gu and Dao 2023).

All chunks of a text are scanned side by side, first for what each leaves behind, then from the
state in which it begins. A pass of Python goes over the tokens of a chunk and one over the chunks,
about 2 √L steps. Channels are taken a few at a time, so that numbers stay in the cache, and of the
states only those between chunks are kept for the gradients.

Shapes: B sentences, L length, I channels, N states of a channel, n chunks of C tokens, R = B n rows
of chunks, P channels at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.nn.mixers.scan_mixer import chunk_length

_CACHED = 1 << 17
"""Numbers of a step that are worked on together: 512 kB in float32, of which five are at hand."""

_FORGET = 1e30
"""Step size after which nothing is left of a state."""


def selective_scan(
    u: Tensor,
    step: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor,
    begins: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scan texts.

    Args:
        u: [B, L, I], input.
        step: [B, L, I], Δ ≥ 0; a token with 0 changes no state.
        a: [N, I], below 0.
        b: [B, L, N], how the input enters the states.
        c: [B, L, N], how the states are read.
        state: [B, N, I], before the first token.
        begins: [B, L] bool, tokens before which all is forgotten.

    Returns:
        [B, L, I], and the state after the last token.
    """
    decay_step = step
    if begins is not None:
        decay_step = torch.where(begins[..., None], _FORGET, step)
    y, after = _SelectiveScan.apply(decay_step, step * u, a, b, c, state)  # type: ignore[no-untyped-call]
    return y, after


@dataclass(frozen=True)
class _Chunks:
    """The layout of a scan.

    Args:
        batch: B.
        length: L.
        size: C.
    """

    batch: int
    length: int
    size: int

    @property
    def count(self) -> int:
        """n."""
        return -(-self.length // self.size)

    def cut(self, x: Tensor) -> Tensor:
        """[B, L, K] to [C, R, K]; tokens that are missing are zeros."""
        x = F.pad(x, (0, 0, 0, self.count * self.size - self.length))
        return x.view(self.batch * self.count, self.size, -1).transpose(0, 1).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """[C, R, K] to [B, L, K]."""
        whole = x.transpose(0, 1).reshape(self.batch, self.count * self.size, -1)
        return whole[:, : self.length]

    def rows(self, x: Tensor) -> Tensor:
        """[R, N, P] as [B, n, N, P]."""
        return x.reshape(self.batch, self.count, *x.shape[1:])

    def pieces(self, a: Tensor) -> Iterator[slice]:
        """Yield the channels that are worked on together."""
        states, channels = a.shape
        room = _CACHED // (self.batch * self.count * states)
        width = min(max(16, room // 16 * 16), channels)
        for first in range(0, channels, width):
            yield slice(first, first + width)


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, step: Tensor, driven: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `selective_scan`; `driven` is Δ u."""
        chunks = _Chunks(step.shape[0], step.shape[1], chunk_length(step.shape[1]))
        step, driven, b, c = (chunks.cut(each) for each in (step, driven, b, c))
        y, after = torch.empty_like(step), torch.empty_like(state)
        starts = state.new_empty(chunks.batch * chunks.count, *state.shape[1:])
        for part in chunks.pieces(a):
            piece = (step[..., part].contiguous(), driven[..., part].contiguous())
            h = _chunk_starts(chunks, *piece, a[:, part], b, state[..., part])
            starts[..., part] = h
            factor = torch.empty_like(h)
            for token in range(chunks.size):
                h = _next_state(piece[0][token], piece[1][token], a[:, part], b[token], h, factor)
                y[token, :, part] = (c[token, :, None] @ h)[:, 0]
            after[..., part] = chunks.rows(h)[:, -1]
        ctx.save_for_backward(step, driven, a, b, c, starts)
        ctx.chunks = chunks
        return chunks.join(y), after

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, for_y: Tensor, for_after: Tensor) -> tuple[Tensor, ...]:
        """Gradients; states are computed anew, a few channels at a time."""
        step, driven, a, b, c, starts = ctx.saved_tensors
        chunks: _Chunks = ctx.chunks
        up = chunks.cut(for_y)
        for_step, for_driven = torch.empty_like(step), torch.empty_like(driven)
        for_a, for_b, for_c = torch.empty_like(a), torch.zeros_like(b), torch.zeros_like(c)
        for_state = torch.empty_like(for_after)
        for part in chunks.pieces(a):
            one = _Backward(chunks, a[:, part], b, c, step[..., part], driven[..., part])
            one.scan_forward(starts[..., part])
            for_state[..., part] = one.scan_back(up[..., part], for_after[..., part])
            for_step[..., part], for_driven[..., part] = one.for_step, one.for_driven
            for_a[:, part] = one.for_a
            for_b += one.for_b
            for_c += one.for_c
        inputs = (chunks.join(each) for each in (for_step, for_driven))
        return *inputs, for_a, chunks.join(for_b), chunks.join(for_c), for_state


def _next_state(
    step: Tensor, driven: Tensor, a: Tensor, b: Tensor, h: Tensor, factor: Tensor
) -> Tensor:
    """Return the states after one token of every row, and write their decay to `factor`.

    Args:
        step: [R, P].
        driven: [R, P].
        a: [N, P].
        b: [R, N].
        h: [R, N, P].
        factor: [R, N, P].
    """
    torch.mul(step[:, None], a, out=factor).exp_()
    return torch.mul(b[..., None], driven[:, None]).addcmul_(factor, h)


def _chunk_starts(
    chunks: _Chunks, step: Tensor, driven: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> Tensor:
    """Return the states in which chunks begin, [R, N, P].

    Args:
        chunks: the layout.
        step: [C, R, P].
        driven: [C, R, P].
        a: [N, P].
        b: [C, R, N].
        state: [B, N, P].
    """
    if chunks.count == 1:
        return state
    h = state.new_zeros(step.shape[1], *state.shape[1:])
    factor = torch.empty_like(h)
    for token in range(chunks.size):
        h = _next_state(step[token], driven[token], a, b[token], h, factor)
    left = chunks.rows(h)
    kept = chunks.rows(torch.mul(step.sum(0)[:, None], a).exp_())
    starts, current = torch.empty_like(left), state
    for chunk in range(chunks.count):
        starts[:, chunk] = current
        current = torch.addcmul(left[:, chunk], kept[:, chunk], current)
    return starts.flatten(0, 1)


class _Backward:
    """The gradients of a scan of some channels.

    Args:
        chunks: the layout.
        a: [N, P].
        b: [C, R, N].
        c: [C, R, N].
        step: [C, R, P].
        driven: [C, R, P].

    Attributes:
        for_a: gradients of a, and in the same way of the others.
    """

    def __init__(
        self, chunks: _Chunks, a: Tensor, b: Tensor, c: Tensor, step: Tensor, driven: Tensor
    ) -> None:
        self.chunks, self.a, self.b, self.c = chunks, a, b, c
        self.step, self.driven = step.contiguous(), driven.contiguous()
        shape = (chunks.size, step.shape[1], *a.shape)
        self.factors, self.states = step.new_empty(shape), step.new_empty(shape)
        self.for_step, self.for_driven = torch.empty_like(self.step), torch.empty_like(self.step)
        self.for_b, self.for_c = torch.empty_like(b), torch.empty_like(c)
        self.for_a = torch.zeros_like(a)

    def scan_forward(self, start: Tensor) -> None:
        """Compute the states and decays of every token, from those before the chunks [R, N, P]."""
        self.start = h = start.contiguous()
        for token in range(self.chunks.size):
            h = _next_state(
                self.step[token], self.driven[token], self.a, self.b[token], h, self.factors[token]
            )
            self.states[token] = h

    def scan_back(self, up: Tensor, for_after: Tensor) -> Tensor:
        """Compute all gradients.

        Args:
            up: [C, R, P], of the output.
            for_after: [B, N, P], of the state after the last token.

        Returns:
            [B, N, P], of the state before the first token.
        """
        chunks, up = self.chunks, up.contiguous()
        later, for_state = self._after_chunks(up, for_after)
        for_a = torch.zeros_like(later)
        for token in reversed(range(chunks.size)):
            h, before = self.states[token], self.states[token - 1] if token else self.start
            later.addcmul_(self.c[token][..., None], up[token][:, None])  # of the state itself
            torch.bmm(h, up[token][..., None], out=self.for_c[token][..., None])
            torch.bmm(later, self.driven[token][..., None], out=self.for_b[token][..., None])
            torch.bmm(self.b[token][:, None], later, out=self.for_driven[token][:, None])
            later.mul_(self.factors[token])
            decayed = later * before  # of Δ A
            for_a.addcmul_(decayed, self.step[token][:, None])
            self.for_step[token] = decayed.mul_(self.a).sum(1)
        self.for_a = for_a.sum(0)
        return for_state

    def _after_chunks(self, up: Tensor, for_after: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients of the states after chunks [R, N, P] and before the first [B, N, P]."""
        own = torch.zeros_like(self.start)
        for token in reversed(range(self.chunks.size)):
            own.addcmul_(self.c[token][..., None], up[token][:, None]).mul_(self.factors[token])
        mine = self.chunks.rows(own)
        kept = self.chunks.rows(torch.mul(self.step.sum(0)[:, None], self.a).exp_())
        after, current = torch.empty_like(mine), for_after
        for chunk in reversed(range(self.chunks.count)):
            after[:, chunk] = current
            current = torch.addcmul(mine[:, chunk], kept[:, chunk], current)
        return after.flatten(0, 1), current
