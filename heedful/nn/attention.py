"""Multi-head attention: projections around `attend` (Vaswani 2017; grouped heads: Ainslie 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from heedful.nn.attend import attend, attention_scores, attention_weights, make_request
from heedful.nn.biases import Bias, build_bias
from heedful.nn.cache import KeyValueCache
from heedful.nn.capture import Capture, offer
from heedful.nn.masks import build_mask
from heedful.nn.positions import Positions
from heedful.nn.projection import FusedLinear, store_maps_apart
from heedful.nn.rotary import Rotary
from heedful.nn.spec import AttentionSpec

# Three maps of one Xavier gain each would make scores too wide at the start; 1/sqrt(2) is what
# the paper's successors settled on (fairseq's transformer).
_INPUT_GAIN = 1 / math.sqrt(2)


@dataclass(frozen=True)
class KeyValues:
    """Projected keys and values [B, K, Lk, E] of one attention module."""

    keys: Tensor
    values: Tensor

    def select(self, sentences: Tensor) -> KeyValues:
        """Those of the given sentences ([B'] indices), in that order."""
        return KeyValues(
            self.keys.index_select(0, sentences), self.values.index_select(0, sentences)
        )


class Attention(nn.Module):
    """Self-attention, or attention over a memory.

    Args:
        width: model width D.
        spec: heads, mask, biases, rotary embedding.
        memory: attend over a memory instead of the input itself.
    """

    def __init__(self, width: int, spec: AttentionSpec, *, memory: bool = False) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.num_kv_heads = spec.num_kv_heads or spec.num_heads
        self.head_width = spec.head_width or width // spec.num_heads
        self.scale = spec.scale or 1 / math.sqrt(self.head_width)
        self.softcap = spec.softcap
        self.dropout = spec.dropout
        self.mask = build_mask(spec.mask)
        query = {"query": self.num_heads * self.head_width}
        key_value = dict.fromkeys(("key", "value"), self.num_kv_heads * self.head_width)
        if memory:
            self.projection = FusedLinear(width, query, bias=spec.bias, gain=_INPUT_GAIN)
            self.memory_projection = FusedLinear(width, key_value, bias=spec.bias, gain=_INPUT_GAIN)
        else:
            self.projection = FusedLinear(
                width, query | key_value, bias=spec.bias, gain=_INPUT_GAIN
            )
        store_maps_apart(self)
        output_bias = spec.bias if spec.output_bias is None else spec.output_bias
        self.output = nn.Linear(self.num_heads * self.head_width, width, bias=output_bias)
        nn.init.xavier_uniform_(self.output.weight)
        if output_bias:
            nn.init.zeros_(self.output.bias)
        self.rotary = Rotary(self.head_width, spec.rotary) if spec.rotary else None
        self.position_bias = (
            build_bias(spec.position_bias, self.num_heads, self.head_width)
            if spec.position_bias
            else None
        )

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        *,
        cache: KeyValueCache | None = None,
        biases: Sequence[Bias] = (),
        capture: Capture | None = None,
        address: str = "",
    ) -> tuple[Tensor, KeyValueCache | None]:
        """Self-attention of `x`, which continues what the cache holds.

        Args:
            x: [B, Lq, D].
            positions: of the tokens in x; those of a `BeamCache`'s keys come with them.
            cache: keys and values seen so far.
            biases: added to this module's own, such as one the whole stack shares.
            capture: may ask for `{address}.query` [B, H, Lq, E], `.key` and `.value` [B, K, Lk, E],
                `.scores` and `.weights` [B, H, Lq, Lk], `.context` [B, H, Lq, E].
            address: this module's place in the model.

        Returns:
            [B, Lq, D], and the cache with x's keys and values appended (None if none was given).
        """
        query, key, value = self.projection(x)
        q = self._heads(query, self.num_heads)
        k = self._heads(key, self.num_kv_heads)
        v = self._heads(value, self.num_kv_heads)
        if self.rotary is not None:
            q, k = self.rotary(q, positions.query), self.rotary(k, positions.query)
        if cache is not None:
            cache, positions = cache.extend(k, v, positions)
            k, v = cache.keys, cache.values
        return self._attend(q, KeyValues(k, v), positions, biases, capture, address), cache

    def project_memory(self, memory: Tensor) -> KeyValues:
        """Keys and values of a memory [B, Lk, D], computed once and attended to many times."""
        key, value = self.memory_projection(memory)
        # Laid out as kernels read them, or each decoding step would copy them anew.
        return KeyValues(
            self._heads(key, self.num_kv_heads).contiguous(),
            self._heads(value, self.num_kv_heads).contiguous(),
        )

    def over(
        self,
        x: Tensor,
        memory: KeyValues,
        positions: Positions,
        *,
        capture: Capture | None = None,
        address: str = "",
    ) -> Tensor:
        """Attention of `x` [B, Lq, D] over a projected memory; returns [B, Lq, D].

        All beams of a sentence may stand side by side in Lq: queries do not see each other here.
        """
        (query,) = self.projection(x)
        q = self._heads(query, self.num_heads)
        return self._attend(q, memory, positions, (), capture, address)

    def _heads(self, x: Tensor, num_heads: int) -> Tensor:
        """[B, L, heads·E] to [B, heads, L, E]."""
        return x.view(*x.shape[:2], num_heads, self.head_width).transpose(1, 2)

    def _attend(
        self,
        q: Tensor,
        memory: KeyValues,
        positions: Positions,
        biases: Sequence[Bias],
        capture: Capture | None,
        address: str,
    ) -> Tensor:
        if self.position_bias is not None:
            biases = (self.position_bias, *biases)
        if capture is not None:
            self._show(q, memory, positions, biases, capture, address)
        mixed = attend(
            q,
            memory.keys,
            memory.values,
            positions,
            self.mask,
            biases,
            scale=self.scale,
            softcap=self.softcap,
            dropout=self.dropout if self.training else 0.0,
        )
        offer(capture, f"{address}.context", mixed)
        merged: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return merged

    def _show(
        self,
        q: Tensor,
        memory: KeyValues,
        positions: Positions,
        biases: Sequence[Bias],
        capture: Capture,
        address: str,
    ) -> None:
        offer(capture, f"{address}.query", q)
        offer(capture, f"{address}.key", memory.keys)
        offer(capture, f"{address}.value", memory.values)
        recomputed = {"scores": attention_scores, "weights": attention_weights}
        wanted = [name for name in recomputed if capture.wants(f"{address}.{name}")]
        if not wanted:
            return
        request = make_request(
            q,
            memory.keys,
            memory.values,
            positions,
            self.mask,
            biases,
            self.scale,
            self.softcap,
        )
        for name in wanted:
            capture.keep(f"{address}.{name}", recomputed[name](request))
