"""The block every architecture here is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from heedful.models.spec import BlockSpec
from heedful.nn.attention import Attention, KeyValues
from heedful.nn.biases import Bias
from heedful.nn.cache import Cache
from heedful.nn.capture import Capture
from heedful.nn.dropout import Dropout
from heedful.nn.moe import MixtureOfExperts, build_feedforward
from heedful.nn.norms import build_norm
from heedful.nn.positions import Positions


@dataclass(frozen=True)
class Sight:
    """What a stack's blocks have in common in one pass: who stands where, and what to keep.

    Args:
        self_positions: of the input, for self-attention.
        memory_positions: of the input's queries and the memory's keys, for cross-attention.
        biases: position biases all blocks share.
        capture: what to keep of the pass.
    """

    self_positions: Positions
    memory_positions: Positions | None = None
    biases: Sequence[Bias] = ()
    capture: Capture | None = None


class Block(nn.Module):
    """Self-attention, cross-attention where the spec has it, feed-forward; each with a residual.

    Args:
        width: model width D.
        spec: the parts, where the norms stand, dropout on each part's output.
    """

    def __init__(self, width: int, spec: BlockSpec) -> None:
        super().__init__()
        self.norm_first = spec.norm_placement == "pre"
        self.self_attention = Attention(width, spec.self_attention)
        self.self_attention_norm = build_norm(spec.norm, width)
        self.cross_attention: Attention | None = None
        self.cross_attention_norm: nn.Module | None = None
        if spec.cross_attention is not None:
            self.cross_attention = Attention(width, spec.cross_attention, memory=True)
            self.cross_attention_norm = build_norm(spec.norm, width)
        self.feedforward = build_feedforward(width, spec.feedforward)
        self.feedforward_norm = build_norm(spec.norm, width)
        self.dropout = Dropout(spec.dropout)

    def forward(
        self,
        x: Tensor,
        sight: Sight,
        *,
        memory: KeyValues | None = None,
        cache: Cache | None = None,
        address: str = "",
    ) -> tuple[Tensor, Cache | None]:
        """Transform `x` [B, L, D].

        With a cache, the rows of self-attention are the cache's: x [B, W·n, D] holds n new
        tokens of each of W beams, and is seen as [B·W, n, D] there and as it is elsewhere.

        Returns:
            [B, L, D], and the cache with x's tokens appended (None if none was given).
        """
        y = self.self_attention_norm(x) if self.norm_first else x
        rows = cache.keys.shape[0] if cache is not None else x.shape[0]
        attended, cache = self.self_attention(
            y.reshape(rows, -1, y.shape[-1]),
            sight.self_positions,
            cache=cache,
            biases=sight.biases,
            capture=sight.capture,
            address=f"{address}.self",
        )
        x = self._add(x, attended.view_as(x), self.self_attention_norm)
        if self.cross_attention is not None:
            assert memory is not None and sight.memory_positions is not None
            assert self.cross_attention_norm is not None
            y = self.cross_attention_norm(x) if self.norm_first else x
            seen = self.cross_attention.over(
                y,
                memory,
                sight.memory_positions,
                capture=sight.capture,
                address=f"{address}.cross",
            )
            x = self._add(x, seen, self.cross_attention_norm)
        y = self.feedforward_norm(x) if self.norm_first else x
        return self._add(x, self._feed(y, sight, address), self.feedforward_norm), cache

    def _feed(self, y: Tensor, sight: Sight, address: str) -> Tensor:
        if isinstance(self.feedforward, MixtureOfExperts):
            positions = sight.self_positions.query.reshape(y.shape[:2])
            fed: Tensor = self.feedforward(y, positions, sight.capture, f"{address}.feedforward")
        else:
            fed = self.feedforward(y)
        return fed

    def _add(self, x: Tensor, change: Tensor, norm: nn.Module) -> Tensor:
        x = x + self.dropout(change)
        normed: Tensor = x if self.norm_first else norm(x)
        return normed
