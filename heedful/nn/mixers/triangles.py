"""Triangle multiplication and triangle attention over pairs of residues (Jumper 2021, 1.6.5-1.6.6).

The pairs of a chain of N residues are the edges of a graph. Three residues i, j and k have three
edges, whose distances cannot contradict each other: the update of edge (i, j) reads the other two
edges of each triangle that it is in. Attention over the sequence of all N² pairs would have N⁴
scores, and would have to learn from positions which pairs share a residue; here there are N³.

Shapes: B chains, L length of a sequence, N residues, D model width, C multiplied channels, H heads,
E head width. The grid of a chain is [B, N, N, D].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.nn.linear_layers import FusedLinear, StoredApart
from heedful.nn.mixer import Context, MakeCache, MixerState
from heedful.nn.norms import build_norm
from heedful.nn.pair_mixer_spec import (
    CommonPairSpec,
    TriangleAttentionSpec,
    TriangleMultiplicationSpec,
)
from heedful.nn.spec import NormSpec
from heedful.nn.work import Saved, Work, weight_outputs, weight_work


@dataclass(frozen=True)
class PairGrid:
    """The places of pairs in sequences of tokens.

    Args:
        slots: [B, L] int64, place i · N + j of each token's pair; N² for tokens that are none.
        real: [B, N, N] bool, false for pairs that a sequence lacks.
    """

    slots: Tensor
    real: Tensor

    @classmethod
    def of(cls, context: Context, spec: CommonPairSpec) -> PairGrid:
        """Return the places of a pass, made once for all layers.

        Raises:
            ModelError: when the rows are too short for a grid, or hold several chains each.
        """
        positions, side, pairs = context.positions, spec.side, spec.exact_text
        length = positions.query.shape[1]
        if length < spec.first + pairs:
            raise ModelError(
                f"A row of {length} tokens cannot hold the {side} × {side} pairs of a chain, the "
                f"first of them at position {spec.first}",
                remedy="Give a word for every pair, or a model with another side",
            )
        if positions.query_segment is not None:
            raise ModelError(
                "Mixers of pairs cannot tell packed chains apart", remedy="Use one chain a row"
            )

        def places() -> PairGrid:
            # By position, not by array index, so that padding may stand on either side.
            at = positions.query - spec.first
            slots = torch.where((at >= 0) & (at < pairs), at, pairs)
            real = torch.zeros(len(at), pairs + 1, dtype=torch.bool, device=at.device)
            real = real.scatter(1, slots, torch.ones_like(slots, dtype=torch.bool))
            return cls(slots, real[:, :-1].unflatten(1, (side, side)))

        return positions.derive(("pairs", side, spec.first), places)

    def take(self, x: Tensor) -> Tensor:
        """Return the pairs of x [B, L, D] as a grid [B, N, N, D], zero where one is missing."""
        side = self.real.shape[1]
        empty = x.new_zeros(len(x), side * side + 1, x.shape[-1])
        index = self.slots[..., None].expand_as(x)
        # Tokens that are no pair go to an extra slot, which is cut off.
        grid: Tensor = empty.scatter(1, index, x)[:, :-1].unflatten(1, (side, side))
        return grid

    def place(self, pairs: Tensor) -> Tensor:
        """Return a grid [B, N, N, D] as a sequence [B, L, D], zero for tokens that are no pair."""
        slots = F.pad(pairs.flatten(1, 2), (0, 0, 0, 1))
        index = self.slots[..., None].expand(-1, -1, pairs.shape[-1])
        return slots.gather(1, index)


class PairMixer(StoredApart):
    """Base of mixers over the pairs of a chain, which leave all other tokens as they are.

    Args:
        spec: number of residues and position of the first pair.
    """

    projection: FusedLinear
    output: nn.Linear

    def __init__(self, spec: CommonPairSpec) -> None:
        super().__init__()
        self.pair_spec = spec

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Update the pairs of x; see `Mixer`. The output is 0 for tokens that are no pair.

        Raises:
            ModelError: when the rows are too short for a grid, or hold several chains each.
        """
        context = context or Context.whole(x)
        grid = PairGrid.of(context, self.pair_spec)
        return grid.place(self.mix(grid.take(x), grid.real, context))

    def mix(self, pairs: Tensor, real: Tensor, context: Context) -> Tensor:
        """Return the update of a grid.

        Args:
            pairs: [B, N, N, D].
            real: [B, N, N] bool, false for pairs that are missing, which no other may read.
            context: capture of the pass.
        """
        raise NotImplementedError

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> MixerState:
        """Refuse to decode token by token.

        Raises:
            ModelError: always, as a pair reads others before and after it.
        """
        raise ModelError(
            "Mixers of pairs cannot go token by token: a pair reads others after it",
            remedy="Use them in an encoder",
        )

    def _work(self, queries: int, between: int) -> Work:
        """Return the operations of the maps of pairs, and `between` operations for each of them."""
        pairs = min(queries, self.pair_spec.exact_text)
        return Work(
            weights=pairs * weight_work(self.projection, self.output), attention=pairs * between
        )


class TriangleMultiplication(PairMixer):
    """Triangle multiplication: gated sums over k of left edge times right edge, channel by channel.

    Outgoing edges give Σ a(i, k) · b(j, k), incoming ones Σ a(k, i) · b(k, j). Weights begin
    Xavier-uniform as elsewhere here, where the paper begins with an output of 0.

    Args:
        width: model width D.
        spec: kind of edges, channels, number of residues.
    """

    def __init__(self, width: int, spec: TriangleMultiplicationSpec) -> None:
        super().__init__(spec)
        self.incoming = spec.edges == "incoming"
        self.channels = channels = spec.width or width
        names = ("left", "right", "left_gate", "right_gate")
        maps = dict.fromkeys(names, channels) | {"output_gate": width}
        self.projection = FusedLinear(width, maps, bias=spec.bias)
        # A sum of N products grows with the chain: the norm takes that out (algorithm 11, line 4).
        self.norm = build_norm(NormSpec(), channels)
        self.output = _output(channels, width, spec.bias)

    def mix(self, pairs: Tensor, real: Tensor, context: Context) -> Tensor:
        """See `PairMixer.mix`."""
        left, right, left_gate, right_gate, gate = self.projection(pairs)
        # A missing pair is no factor of a sum; its bias vectors would be one.
        a, b = (
            (each * opening.sigmoid() * real[..., None]).permute(0, 3, 1, 2)  # [B, C, N, N]
            for each, opening in ((left, left_gate), (right, right_gate))
        )
        sums = a.mT @ b if self.incoming else a @ b.mT
        normed = self.norm(sums.permute(0, 2, 3, 1))
        output: Tensor = self.output(normed.to(pairs.dtype)) * gate.sigmoid()
        return output

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens of a sequence; see `Costed`."""
        # A multiply-add is two operations, for each channel and third residue.
        return self._work(queries, 2 * self.channels * self.pair_spec.side)

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of maps, factors, sums and normed sums."""
        return Saved(weight_outputs(self.projection, self.output) + 4 * self.channels)


class TriangleAttention(PairMixer):
    """Triangle attention: each edge attends to the edges of one of its nodes.

    A capture may ask for `{address}.triangles` [B, H, N, N, N], the weights of triangles: edge
    (i, j) reads (i, k) at [i, j, k] around the starting node, and (k, j) at [j, i, k] around the
    ending one.

    Args:
        width: model width D.
        spec: node, heads, number of residues.
    """

    def __init__(self, width: int, spec: TriangleAttentionSpec) -> None:
        super().__init__(spec)
        self.ending = spec.node == "ending"
        self.num_heads = spec.num_heads
        self.head_width = spec.head_width or width // spec.num_heads
        inner = spec.num_heads * self.head_width
        maps = dict.fromkeys(("query", "key", "value", "gate"), inner)
        self.projection = FusedLinear(width, maps, bias=spec.bias, gain=1 / math.sqrt(2))
        self.edge_bias = nn.Linear(width, spec.num_heads, bias=False)
        nn.init.xavier_uniform_(self.edge_bias.weight)
        self.output = _output(inner, width, spec.bias)

    def mix(self, pairs: Tensor, real: Tensor, context: Context) -> Tensor:
        """See `PairMixer.mix`."""
        # Around the ending node is around the starting node of the transposed grid.
        if self.ending:
            pairs, real = pairs.transpose(1, 2), real.mT
        q, k, v, gate = (
            each.unflatten(-1, (self.num_heads, -1)).permute(0, 3, 1, 2, 4)  # [B, H, N, N, E]
            for each in self.projection(pairs)
        )
        scores = (q @ k.mT).float() / math.sqrt(self.head_width)  # [B, H, i, j, k]
        # Edge (j, k) closes the triangle of (i, j) and (i, k): one bias for all i.
        scores = scores + self.edge_bias(pairs).float().permute(0, 3, 1, 2)[:, :, None]
        hidden = ~real[:, None, :, None, :]
        # Not −∞: a row without any real pair, which nobody reads, would be NaN.
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, -1)
        context.offer("triangles", weights)
        mixed = (weights.to(v.dtype) @ v) * gate.sigmoid()
        output: Tensor = self.output(mixed.permute(0, 2, 3, 1, 4).flatten(-2).to(pairs.dtype))
        return output.transpose(1, 2) if self.ending else output

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens of a sequence; see `Costed`."""
        pairs = min(queries, self.pair_spec.exact_text)
        own = self._work(queries, 4 * self.pair_spec.side * self.num_heads * self.head_width)
        return own + Work(weights=pairs * weight_work(self.edge_bias))

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of maps, sums, gated sums, and of the weights of a pair."""
        inner, weights = self.num_heads * self.head_width, self.num_heads * self.pair_spec.side
        maps = weight_outputs(self.projection, self.output) + 2 * inner
        return Saved(maps + (weights if mixed else 0), 0, weights)


def _output(inner: int, width: int, bias: bool) -> nn.Linear:
    layer = nn.Linear(inner, width, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
