"""Token embeddings with their scale, positions, norm and dropout."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.dropout import Dropout
from heedful.nn.native.embedding import embed
from heedful.nn.native.norm import norm_rows
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


class InputEmbedding(nn.Module):
    """Embeds ids: table (given, as it may be shared), scale, segments, positions, norm, dropout.

    Args:
        width: model width D.
        spec: which of those there are.

    Attributes:
        runs_natively: whether kernels in C may embed and norm, once the model is not trained any
            more.
    """

    def __init__(self, width: int, spec: EmbeddingSpec) -> None:
        super().__init__()
        self.scale = math.sqrt(width) if spec.scale else 1.0
        self.positions = _build_positions(spec.positions, width)
        self.segments = TokenEmbedding(spec.num_segments, width) if spec.num_segments else None
        self.norm = build_norm(spec.norm, width) if spec.norm else None
        self.dropout = Dropout(spec.dropout)
        self.runs_natively = False

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
        x = self._at_once(ids, positions, table) if self.runs_natively else None
        if x is None:
            x = self._embedded(ids, positions, table, segments)
        if self.norm is not None:
            x = norm_rows(x, self.norm) if self.runs_natively else self.norm(x)
        dropped: Tensor = self.dropout(x)
        return dropped

    def _at_once(self, ids: Tensor, positions: Tensor, table: TokenEmbedding) -> Tensor | None:
        if self.segments is not None:
            return None
        places = None
        if self.positions is not None:
            places = self.positions.table(positions)
            if places is None:
                return None
        return embed(ids, positions, table.weight, self.scale, places)

    def _embedded(
        self, ids: Tensor, positions: Tensor, table: TokenEmbedding, segments: Tensor | None
    ) -> Tensor:
        x: Tensor = table(ids)
        if self.scale != 1.0:
            x = x * self.scale
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
