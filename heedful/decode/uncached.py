"""A step model that remembers nothing: every step runs the whole prefix anew.

Slow, and the truth that caches are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class FullModel(Protocol):
    """A model that reads whole targets."""

    def __call__(
        self, source: Tensor, source_positions: Tensor, target: Tensor, target_positions: Tensor
    ) -> Tensor:
        """Hidden states [B, T, D] of whole targets [B, T]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] to [..., V]."""


@dataclass(frozen=True)
class Prefix:
    """Everything read so far.

    Args:
        source: [B, S] int64.
        source_positions: [B, S] int64.
        tokens: [B, W, t] int64.
    """

    source: Tensor
    source_positions: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class Uncached:
    """`StepModel` over the whole-target forward pass of a model."""

    model: FullModel

    def start(self, source: Tensor, source_positions: Tensor) -> Prefix:
        """See `StepModel`."""
        return Prefix(source, source_positions, source.new_zeros((source.shape[0], 1, 0)))

    def step(self, state: Prefix, tokens: Tensor) -> tuple[Tensor, Prefix]:
        """See `StepModel`."""
        prefix = torch.cat([state.tokens, tokens[..., None]], -1)
        count, width, length = prefix.shape
        positions = torch.arange(length, device=tokens.device).expand(count * width, -1)
        hidden = self.model(
            state.source.repeat_interleave(width, 0),
            state.source_positions.repeat_interleave(width, 0),
            prefix.flatten(0, 1),
            positions,
        )
        logits = self.model.logits(hidden[:, -1]).float().view(count, width, -1)
        return logits, Prefix(state.source, state.source_positions, prefix)

    def reorder(self, state: Prefix, rows: Tensor) -> Prefix:
        """See `StepModel`."""
        sentences = rows[:, 0] // state.tokens.shape[1]
        tokens = state.tokens.flatten(0, 1)[rows]
        return Prefix(state.source[sentences], state.source_positions[sentences], tokens)
