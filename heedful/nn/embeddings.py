"""Token embeddings with their scale, positions, norm and dropout."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.norms import build_norm
from heedful.nn.positions import LearnedPositions, SinusoidalPositions
from heedful.nn.spec import EmbeddingSpec, PositionSpec


class TokenEmbedding(nn.Module):
    """The table of token vectors. May be one table for source, target and output (Press 2017).

    Args:
        vocabulary: number of pieces V.
        width: model width D. Entries start with variance 1/D, so that scaled by sqrt(D) they
            have unit variance and, as an output projection, give logits of unit variance.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(vocabulary, width), std=width**-0.5))

    def forward(self, ids: Tensor) -> Tensor:
        """[...] int64 to [..., D]."""
        return F.embedding(ids, self.weight)

    def logits(self, states: Tensor, bias: Tensor | None) -> Tensor:
        """Scores of every piece, as an output projection: states [..., D] to [..., V]."""
        return F.linear(states, self.weight, bias)

    def logits_over(self, ids: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return a projection that scores some pieces as `logits` scores all; for many calls.

        Args:
            ids: [V'] int64, the pieces.
            bias: [V] of all pieces, or None.

        Returns:
            A function of states [..., D] that gives scores [..., V'].
        """
        chosen = None if bias is None else bias[ids]
        return functools.partial(F.linear, weight=self.weight[ids], bias=chosen)


class InputEmbedding(nn.Module):
    """Embeds ids: table (given, as it may be shared), scale, segments, positions, norm, dropout.

    Args:
        width: model width D.
        spec: which of those there are.
    """

    def __init__(self, width: int, spec: EmbeddingSpec) -> None:
        super().__init__()
        self.scale = math.sqrt(width) if spec.scale else 1.0
        self._rounded: dict[torch.dtype, float] = {}
        if spec.scale == "rounded":  # products of 16 bits would take all of sqrt(width)
            exact = torch.tensor(self.scale, device="cpu")
            self._rounded = {d: float(exact.to(d)) for d in (torch.bfloat16, torch.float16)}
        self.positions = _build_positions(spec.positions, width)
        self.segments = TokenEmbedding(spec.num_segments, width) if spec.num_segments else None
        self.norm = build_norm(spec.norm, width) if spec.norm else None
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        table: TokenEmbedding,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Ids [B, L] at positions [B, L] (−1: padding) to vectors [B, L, D].

        Args:
            ids: int64.
            positions: int64.
            table: of the vocabulary.
            segments: [B, L] int64, for a spec that has them; all of the first kind if None.

        Raises:
            ModelError: when a learned position lies past its table.
        """
        x = self.embed(ids, positions, table, segments)
        if self.norm is not None:
            x = self.norm(x)
        dropped: Tensor = self.dropout(x)
        return dropped

    def embed(
        self, ids: Tensor, positions: Tensor, table: TokenEmbedding, segments: Tensor | None
    ) -> Tensor:
        """Scaled vectors of tokens, plus those of segments and positions: what the norm takes."""
        x: Tensor = table(ids)
        if self.scale != 1.0:
            x = x * self._rounded.get(x.dtype, self.scale)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)
        if self.positions is not None:
            x = x + self.positions(positions).to(x.dtype)
        return x


def _build_positions(
    spec: PositionSpec, width: int
) -> SinusoidalPositions | LearnedPositions | None:
    if spec.kind == "sinusoidal":
        return SinusoidalPositions(width, spec.layout)
    if spec.kind == "learned":
        assert spec.max_length is not None  # the spec checks it
        return LearnedPositions(width, spec.max_length, spec.unused_rows)
    return None
