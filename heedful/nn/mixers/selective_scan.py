"""The selective scan h_t = exp(Δ_t A) ∘ h_{t−1} + Δ_t B_t u_t, y_t = C_t h_t (Gu and Dao 2023).

All chunks of a sequence are scanned in parallel, first from zero for the state that each adds, then
from the state before its first token. Python loops over the tokens of a chunk and over the chunks,
about 2 √L steps. Channels are scanned a few at a time, so that operands stay in the cache, and only
the states between chunks are kept for the gradients.

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
"""Elements of one step that are computed together: 512 kB in float32, for each of five tensors."""

_FORGET = 1e30
"""A step size whose decay exp(Δ A) is 0."""


def selective_scan(
    u: Tensor,
    step: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor,
    begins: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scan sequences.

    Args:
        u: [B, L, I], input.
        step: [B, L, I], Δ ≥ 0; a token with Δ = 0 changes no state.
        a: [N, I], decay rates, negative.
        b: [B, L, N], weights by which the input enters the states.
        c: [B, L, N], weights by which the states are read.
        state: [B, N, I], state before the first token.
        begins: [B, L] bool, first tokens of packed sequences, before which states become 0.

    Returns:
        The output [B, L, I], and the state after the last token.
    """
    decay_step = step
    if begins is not None:
        # Only the decay forgets: Δ of the input must stay that of the token.
        decay_step = torch.where(begins[..., None], _FORGET, step)
    y, after = _SelectiveScan.apply(decay_step, step * u, a, b, c, state)  # type: ignore[no-untyped-call]
    return y, after


@dataclass(frozen=True)
class _Chunks:
    """The layout of a scan.

    Args:
        batch: number of sentences B.
        length: length L.
        size: tokens of a chunk C.
    """

    batch: int
    length: int
    size: int

    @property
    def count(self) -> int:
        """Number of chunks n."""
        return -(-self.length // self.size)

    def cut(self, x: Tensor) -> Tensor:
        """Reshape [B, L, K] to [C, R, K], with zeros after the last token."""
        # Zeros have Δ = 0, which changes no state. Tokens become the first axis, so that each step
        # of the loop reads contiguous memory.
        x = F.pad(x, (0, 0, 0, self.count * self.size - self.length))
        return x.view(self.batch * self.count, self.size, -1).transpose(0, 1).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """Reshape [C, R, K] to [B, L, K]."""
        whole = x.transpose(0, 1).reshape(self.batch, self.count * self.size, -1)
        return whole[:, : self.length]

    def rows(self, x: Tensor) -> Tensor:
        """View [R, N, P] as [B, n, N, P]."""
        return x.reshape(self.batch, self.count, *x.shape[1:])

    def channel_blocks(self, a: Tensor) -> Iterator[slice]:
        """Yield the channels that are scanned together."""
        states, channels = a.shape
        fitting = _CACHED // (self.batch * self.count * states)
        # Multiples of 16 floats, a cache line, so that blocks do not share one.
        width = min(max(16, fitting // 16 * 16), channels)
        for first in range(0, channels, width):
            yield slice(first, first + width)


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, step: Tensor, driven: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute `selective_scan`; `driven` is Δ u."""
        chunks = _Chunks(step.shape[0], step.shape[1], chunk_length(step.shape[1]))
        step, driven, b, c = (chunks.cut(each) for each in (step, driven, b, c))
        y, after = torch.empty_like(step), torch.empty_like(state)
        starts = state.new_empty(chunks.batch * chunks.count, *state.shape[1:])
        for part in chunks.channel_blocks(a):
            steps, inputs = step[..., part].contiguous(), driven[..., part].contiguous()
            h = _chunk_starts(chunks, steps, inputs, a[:, part], b, state[..., part])
            starts[..., part] = h
            factor = torch.empty_like(h)
            for token in range(chunks.size):
                h = _next_state(steps[token], inputs[token], a[:, part], b[token], h, factor)
                y[token, :, part] = (c[token, :, None] @ h)[:, 0]
            after[..., part] = chunks.rows(h)[:, -1]
        ctx.save_for_backward(step, driven, a, b, c, starts)
        ctx.chunks = chunks
        return chunks.join(y), after

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_after: Tensor) -> tuple[Tensor, ...]:
        """Compute the gradients; states are recomputed, a few channels at a time."""
        step, driven, a, b, c, starts = ctx.saved_tensors
        chunks: _Chunks = ctx.chunks
        grad_y = chunks.cut(grad_y)
        grad_step, grad_driven = torch.empty_like(step), torch.empty_like(driven)
        grad_a, grad_b, grad_c = torch.empty_like(a), torch.zeros_like(b), torch.zeros_like(c)
        grad_state = torch.empty_like(grad_after)
        for part in chunks.channel_blocks(a):
            one = _Backward(chunks, a[:, part], b, c, step[..., part], driven[..., part])
            one.scan_forward(starts[..., part])
            grad_state[..., part] = one.scan_back(grad_y[..., part], grad_after[..., part])
            grad_step[..., part], grad_driven[..., part] = one.grad_step, one.grad_driven
            grad_a[:, part] = one.grad_a
            # All channels share B and C, so the gradients of these are sums over the
            # blocks of channels.
            grad_b += one.grad_b
            grad_c += one.grad_c
        inputs = (chunks.join(each) for each in (grad_step, grad_driven))
        return *inputs, grad_a, chunks.join(grad_b), chunks.join(grad_c), grad_state


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
    # Written to a buffer that all tokens share: fresh ones would leave the cache.
    torch.mul(step[:, None], a, out=factor).exp_()
    return torch.mul(b[..., None], driven[:, None]).addcmul_(factor, h)


def _chunk_starts(
    chunks: _Chunks, step: Tensor, driven: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> Tensor:
    """Return the states before the first token of each chunk, [R, N, P].

    Args:
        chunks: layout of the sequence in chunks.
        step: [C, R, P].
        driven: [C, R, P].
        a: [N, P].
        b: [C, R, N].
        state: [B, N, P].
    """
    if chunks.count == 1:
        return state
    # The scan is linear: the state after a chunk is its own part, scanned from 0, plus the decayed
    # state before it. So only the second loop is sequential over the chunks.
    h = state.new_zeros(step.shape[1], *state.shape[1:])
    factor = torch.empty_like(h)
    for token in range(chunks.size):
        h = _next_state(step[token], driven[token], a, b[token], h, factor)
    added = chunks.rows(h)
    # Decays of a chunk multiply: exp(Σ Δ · A).
    kept = chunks.rows(torch.mul(step.sum(0)[:, None], a).exp_())
    starts, current = torch.empty_like(added), state
    for chunk in range(chunks.count):
        starts[:, chunk] = current
        current = torch.addcmul(added[:, chunk], kept[:, chunk], current)
    return starts.flatten(0, 1)


class _Backward:
    """The backward pass of a scan of some channels.

    Args:
        chunks: layout of the sequence in chunks.
        a: [N, P].
        b: [C, R, N].
        c: [C, R, N].
        step: [C, R, P].
        driven: [C, R, P].

    Attributes:
        grad_a, grad_b, grad_c, grad_step, grad_driven: gradients in the shapes of their arguments.
    """

    def __init__(
        self, chunks: _Chunks, a: Tensor, b: Tensor, c: Tensor, step: Tensor, driven: Tensor
    ) -> None:
        self.chunks, self.a, self.b, self.c = chunks, a, b, c
        self.step, self.driven = step.contiguous(), driven.contiguous()
        shape = (chunks.size, step.shape[1], *a.shape)
        # All states of these channels at once, which is why channels are taken a few at a time.
        self.factors, self.states = step.new_empty(shape), step.new_empty(shape)
        self.grad_step, self.grad_driven = torch.empty_like(self.step), torch.empty_like(self.step)
        self.grad_b, self.grad_c = torch.empty_like(b), torch.empty_like(c)
        self.grad_a = torch.zeros_like(a)

    def scan_forward(self, start: Tensor) -> None:
        """Compute states and decays of every token, from the states before the chunks [R, N, P]."""
        self.start = h = start.contiguous()
        for token in range(self.chunks.size):
            h = _next_state(
                self.step[token], self.driven[token], self.a, self.b[token], h, self.factors[token]
            )
            self.states[token] = h

    def scan_back(self, grad_y: Tensor, grad_after: Tensor) -> Tensor:
        """Compute all gradients.

        Args:
            grad_y: [C, R, P], gradient of the output.
            grad_after: [B, N, P], gradient of the state after the last token.

        Returns:
            [B, N, P], gradient of the state before the first token.
        """
        chunks, grad_y = self.chunks, grad_y.contiguous()
        # `later` is the gradient of the state after the current token; the loop carries it back.
        later, grad_state = self._after_chunks(grad_y, grad_after)
        grad_a = torch.zeros_like(later)
        for token in reversed(range(chunks.size)):
            h, before = self.states[token], self.states[token - 1] if token else self.start
            later.addcmul_(
                self.c[token][..., None], grad_y[token][:, None]
            )  # gradient of the state after the token
            torch.bmm(h, grad_y[token][..., None], out=self.grad_c[token][..., None])
            torch.bmm(later, self.driven[token][..., None], out=self.grad_b[token][..., None])
            torch.bmm(self.b[token][:, None], later, out=self.grad_driven[token][:, None])
            later.mul_(self.factors[token])
            decayed = later * before  # gradient of Δ A
            grad_a.addcmul_(decayed, self.step[token][:, None])
            self.grad_step[token] = decayed.mul_(self.a).sum(1)
        self.grad_a = grad_a.sum(0)
        return grad_state

    def _after_chunks(self, grad_y: Tensor, grad_after: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients of the states after chunks [R, N, P] and before the first [B, N, P]."""
        own = torch.zeros_like(self.start)
        for token in reversed(range(self.chunks.size)):
            own.addcmul_(self.c[token][..., None], grad_y[token][:, None]).mul_(self.factors[token])
        from_chunk = self.chunks.rows(own)
        kept = self.chunks.rows(torch.mul(self.step.sum(0)[:, None], self.a).exp_())
        after, current = torch.empty_like(from_chunk), grad_after
        for chunk in reversed(range(self.chunks.count)):
            after[:, chunk] = current
            current = torch.addcmul(from_chunk[:, chunk], kept[:, chunk], current)
        return after.flatten(0, 1), current
