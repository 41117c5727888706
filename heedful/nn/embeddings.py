"""Token embeddings with their scale, positions, norm and dropout."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.feedforward import linear
from heedful.nn.norms import build_norm
from heedful.nn.positions import AxisPositions, LearnedPositions, SinusoidalPositions
from heedful.nn.spec import EmbeddingSpec, PositionSpec


class TokenEmbedding(nn.Module):
    """The table of token vectors, which source, target and output may share (Press 2017).

    Args:
        vocabulary: size V of the vocabulary.
        width: model width D. Entries start with variance 1/D, so that scaled by sqrt(D) they
            have unit variance and, as an output projection, give logits of unit variance.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(vocabulary, width), std=width**-0.5))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors [..., D] of ids [...] int64."""
        return F.embedding(ids, self.weight)

    def logits(self, states: Tensor, bias: Tensor | None) -> Tensor:
        """Project states [..., D] to the logits of all tokens, [..., V]."""
        return F.linear(states, self.weight, bias)

    def logits_over(self, ids: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return a projection to the logits of some tokens, made for many calls.

        Args:
            ids: [V'] int64, the tokens.
            bias: [V], the bias of all tokens, or None.

        Returns:
            A function from states [..., D] to logits [..., V'].
        """
        # Rows are gathered here once, instead of at every step of a search.
        chosen = None if bias is None else bias[ids]
        return functools.partial(F.linear, weight=self.weight[ids], bias=chosen)


class RowProjection(nn.Module):
    """A linear map of rows of numbers, such as the levels of a moment's frequencies, to vectors.

    As of a ViT's patch (Dosovitskiy 2021), with ids as numbers: what is learned of one level holds
    for its neighbours, which a table of vectors by id would have to learn one by one.

    Args:
        vocabulary: size V of the vocabulary, whose ids become numbers from −1 to 1.
        width: model width D.
        row_size: tokens R of a row.
    """

    def __init__(self, vocabulary: int, width: int, row_size: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        # Like an embedding table: sums of R products have about the variance of a token's vector.
        # No linear layer: like a table it stays in full precision where layers are packed.
        weight = nn.init.normal_(torch.empty(width, row_size), std=(row_size * width) ** -0.5)
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(width))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the vectors [B, N, D] of rows [B, N, R] int64, in which −1 is padding."""
        numbers = rows.to(self.weight.dtype) * (2 / (self.vocabulary - 1)) - 1
        return F.linear(numbers.where(rows >= 0, 0), self.weight, self.bias)


def in_rows(ids: Tensor, positions: Tensor, row_size: int) -> tuple[Tensor, Tensor]:
    """Cut sequences into rows of tokens; the last row of each may be shorter.

    Args:
        ids: [B, L] int64.
        positions: [B, L] int64, counted from 0 on; −1 is padding on the right.
        row_size: tokens R of a row.

    Returns:
        Rows [B, N, R] int64, −1 at padding, and their positions [B, N]; −1 is a row of padding.
    """
    left = -ids.shape[1] % row_size
    positions = F.pad(positions, (0, left), value=-1)
    rows = F.pad(ids, (0, left)).where(positions >= 0, -1)
    return rows.unflatten(1, (-1, row_size)), row_positions(positions, row_size)


def row_positions(positions: Tensor, row_size: int) -> Tensor:
    """Return the position [B, N] of each row of tokens, from those of its tokens [B, L]."""
    return positions[:, ::row_size].div(row_size, rounding_mode="floor")  # −1 stays −1


def source_embedding(
    vocabulary: int, width: int, row_size: int | None
) -> TokenEmbedding | RowProjection:
    """Return the vectors of an encoder's tokens, alone at their positions or in rows."""
    if row_size is None:
        return TokenEmbedding(vocabulary, width)
    return RowProjection(vocabulary, width, row_size)


class InputEmbedding(nn.Module):
    """Embedding of ids: table, scale, segments, positions, norm, dropout, and a map if any.

    The table is an argument of each call, since other parts of the model may share it.

    Args:
        width: model width D.
        spec: scale, segments, positions, norm and dropout.
    """

    def __init__(self, width: int, spec: EmbeddingSpec) -> None:
        super().__init__()
        inner = spec.width or width
        self.scale = math.sqrt(inner) if spec.scale else 1.0
        self._rounded: dict[torch.dtype, float] = {}
        if spec.scale == "rounded":
            # Gemma rounds sqrt(D) to the table's dtype before it multiplies, in training too; a
            # Python float would not be rounded.
            exact = torch.tensor(self.scale, device="cpu")  # "meta" holds no values to round
            self._rounded = {d: float(exact.to(d)) for d in (torch.bfloat16, torch.float16)}
        self.positions = _build_positions(spec.positions, inner)
        self.segments = TokenEmbedding(spec.num_segments, inner) if spec.num_segments else None
        self.norm = build_norm(spec.norm, inner) if spec.norm else None
        self.dropout = nn.Dropout(spec.dropout)
        # A table of V x W and one map need fewer weights than V x D (ALBERT, section 3.1).
        self.projection = linear(inner, width, bias=True) if spec.width else None

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        table: TokenEmbedding | RowProjection,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Embed ids [B, L] at positions [B, L] (−1: padding) as vectors [B, L, D].

        Args:
            ids: int64; rows of tokens [B, L, R] for a projection of rows.
            positions: int64.
            table: table of the vocabulary, or projection of rows.
            segments: [B, L] int64, kinds of segment; all of the first kind if None.

        Raises:
            ModelError: when a position lies past the table of learned positions.
        """
        x = self.embed(ids, positions, table, segments)
        # The norm stands between the sum and dropout, as in BERT (Devlin 2019).
        if self.norm is not None:
            x = self.norm(x)
        dropped: Tensor = self.dropout(x)
        if self.projection is not None:
            dropped = self.projection(dropped)
        return dropped

    def embed(
        self,
        ids: Tensor,
        positions: Tensor,
        table: TokenEmbedding | RowProjection,
        segments: Tensor | None,
    ) -> Tensor:
        """Return the sum of token, segment and position vectors, before norm and dropout."""
        x: Tensor = table(ids)
        if self.scale != 1.0:
            x = x * self._rounded.get(x.dtype, self.scale)
        if self.segments is not None:
            # Without segments, all tokens belong to BERT's sentence A, whose vector is still added.
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)
        if self.positions is not None:
            # Sinusoids are float32; added as they are they would widen a bfloat16 stream.
            x = x + self.positions(positions).to(x.dtype)
        return x


def _build_positions(
    spec: PositionSpec, width: int
) -> SinusoidalPositions | LearnedPositions | AxisPositions | None:
    if spec.kind == "sinusoidal":
        return SinusoidalPositions(width, spec.layout)
    if spec.kind == "learned":
        assert spec.max_length is not None  # the spec checks it
        return LearnedPositions(width, spec.max_length, spec.unused_rows)
    if spec.axes is not None:
        return AxisPositions(width, spec.axes)
    return None
