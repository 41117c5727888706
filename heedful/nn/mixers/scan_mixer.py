"""The base of mixers that read a sequence in order and keep a state of constant size.

A subclass defines the scan over the tokens of each row, in order and with padding after them. The
base class handles padding on either side, beams and packed sequences.

Shapes: B sentences, W beams of each, L length, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.nn.mixer import Context, MakeCache, ScanState


@dataclass(frozen=True)
class Tokens:
    """The tokens of each row in order, with padding after them.

    Args:
        real: [B, L] bool, false for padding, which is at the end.
        index: [B, L] int64, the slot that each token comes from; None if none moves.
        since_start: [B, L] int64, number of earlier tokens of the same sequence; None where each
            row is one sequence, which may have begun before this pass.
    """

    real: Tensor
    index: Tensor | None = None
    since_start: Tensor | None = None

    @classmethod
    def of(
        cls, positions: Tensor, segments: Tensor | None = None, *, in_order: bool = False
    ) -> Tokens:
        """Order the tokens of rows.

        Args:
            positions: [B, L] int64; −1 is padding, at any index.
            segments: [B, L] int64, the sequence of each token where a row packs several.
            in_order: flag of rows whose padding is known to stand after all tokens.
        """
        real, index = positions >= 0, None
        if real.shape[1] > 1 and not in_order:
            # Real tokens come first; stable, so that they keep their order.
            index = (~real).to(torch.int8).argsort(dim=1, stable=True)
            real = real.gather(1, index)
        if segments is None:
            return cls(real, index)
        if index is not None:
            segments = segments.gather(1, index)
        begins = torch.ones_like(real)
        begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
        places = torch.arange(real.shape[1], device=real.device)
        # The running maximum of starts is the start of the token's own sequence.
        starts = torch.where(begins, places, 0).cummax(1).values
        return cls(real, index, places - starts)

    @property
    def begins(self) -> Tensor | None:
        """[B, L] bool, true for the first token of each sequence; None if rows are not packed."""
        return None if self.since_start is None else self.since_start == 0

    def in_front(self, x: Tensor) -> Tensor:
        """Move the tokens of x [B, L, D] to the front, in order."""
        return x if self.index is None else x.gather(1, self.index[..., None].expand_as(x))

    def back(self, y: Tensor) -> Tensor:
        """Move the tokens of y [B, L, D] back to the slots that they come from."""
        if self.index is None:
            return y
        # The inverse of a permutation is its argsort.
        return y.gather(1, self.index.argsort(1)[..., None].expand_as(y))

    def before(self, joined: Tensor, lag: int) -> Tensor:
        """Return for every token the one `lag` before it; zeros where its sequence has none.

        Args:
            joined: [B, P + L, D], P earlier tokens in front of those of this pass.
            lag: number of tokens, at most P.
        """
        length = self.real.shape[1]
        first = joined.shape[1] - length - lag
        shifted = joined[:, first : first + length]
        if self.since_start is None:
            return shifted
        return shifted * (self.since_start >= lag)[..., None]

    def latest(self, joined: Tensor, count: int) -> Tensor:
        """Return the last `count` real tokens of joined [B, count + L, D]."""
        # A single token per row, as in every decoding step, needs `where` instead of a gather.
        if self.real.shape[1] == 1:
            return torch.where(self.real[..., None], joined[:, 1:], joined[:, :-1])
        places = self.real.sum(1, keepdim=True) + torch.arange(count, device=joined.device)
        return joined.gather(1, places[..., None].expand(-1, -1, joined.shape[2]))


class ScanMixer(nn.Module):
    """A mixer that reads the tokens of each row in order.

    Attributes:
        undecayed: names of parameters without weight decay.
    """

    undecayed: frozenset[str] = frozenset()

    def mix(
        self, x: Tensor, state: tuple[Tensor, ...], tokens: Tokens
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Read more tokens.

        Args:
            x: [B, L, D], tokens in order.
            state: tensors [B, ...] like those of `empty_state`.
            tokens: real tokens, and first tokens of sequences.

        Returns:
            The output [B, L, D], and the state after the real tokens.
        """
        raise NotImplementedError

    def empty_state(self, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return the tensors [rows, ...] of the state before the first token."""
        raise NotImplementedError

    def tokens_at(self, positions: Tensor, segments: Tensor | None = None) -> Tokens:
        """Return the tokens of rows in order; engines that know the order override this."""
        return Tokens.of(positions, segments)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Mix whole sequences; see `Mixer`."""
        context = context or Context.whole(x)
        positions = context.positions.query.reshape(x.shape[:2])
        tokens = self.tokens_at(positions, context.positions.query_segment)
        state = self.empty_state(len(x), x.device)
        return tokens.back(self.mix(tokens.in_front(x), state, tokens)[0])

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> ScanState:
        """Return the state before the first token; see `Mixer.initial_state`."""
        return ScanState(tuple(each[:, None] for each in self.empty_state(rows, like.device)))

    def step(self, x: Tensor, state: ScanState, context: Context) -> tuple[Tensor, ScanState]:
        """Read more tokens of the only beam, or one of each beam; see `Mixer.step`."""
        beams = state.tensors[0].shape[:2]
        # Beams become rows of the batch, each with one token.
        shape = (-1, 1) if beams[1] > 1 else x.shape[:2]
        tokens = self.tokens_at(context.positions.query.reshape(shape))
        before = tuple(each.flatten(0, 1) for each in state.tensors)
        inputs = tokens.in_front(x.reshape(*tokens.real.shape, x.shape[2]))
        y, after = self.mix(inputs, before, tokens)
        state = ScanState(tuple(each.unflatten(0, beams) for each in after))
        return tokens.back(y).reshape(x.shape), state

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of the state, the same after any number of tokens."""
        # Shapes without memory: the state itself says how large it is.
        state = self.empty_state(1, torch.device("meta"))
        return sum(each.numel() * each.element_size() for each in state)


def wide(x: Tensor) -> Tensor:
    """Return a tensor in float32, or in float64 if it has that dtype."""
    # Tests compare outputs and gradients with the definition in float64.
    return x if x.dtype == torch.float64 else x.float()


def chunk_length(length: int) -> int:
    """Return the length of a chunk, about √L, so that there are about as many chunks."""
    # Loops go over the tokens of a chunk and over the chunks: size + L / size steps, fewest at √L.
    size = 8
    while size < 128 and 2 * size * size < length:
        size *= 2
    return min(size, length)
