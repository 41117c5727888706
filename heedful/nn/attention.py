"""Multi-head attention: projections around `attend` (Vaswani 2017; grouped heads: Ainslie 2023)."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.nn.attend import (
    attend,
    attention_bias,
    attention_scores,
    attention_weights,
    make_request,
)
from heedful.nn.biases import Bias, build_bias
from heedful.nn.cache import KeyValueCache
from heedful.nn.capture import Capture, offer
from heedful.nn.kept_heads import BiasOfKept, KeptHeads
from heedful.nn.masks import build_mask
from heedful.nn.native.library import Places
from heedful.nn.positions import Positions
from heedful.nn.product import Linear, is_plain, unwatched
from heedful.nn.projection import FusedLinear, store_maps_apart
from heedful.nn.rotary import Rotary
from heedful.nn.spec import AttentionSpec
from heedful.nn.stacked import stacked
from heedful.nn.sublayer import Ending, Heads, Memory, Parameters, joined
from heedful.nn.unpadding import RealRows

# Three maps of one Xavier gain each would make scores too wide at the start; 1/sqrt(2) is what
# the paper's successors settled on (fairseq's transformer).
_INPUT_GAIN = 1 / math.sqrt(2)


@dataclass(frozen=True)
class KeyValues:
    """Projected keys and values [B, K, Lk, E] of one attention module."""

    keys: Tensor
    values: Tensor

    @functools.cached_property
    def places(self) -> Places:
        """Where they stand."""
        return Places.of(self.keys, self.values)

    def plain(self) -> KeyValues:
        """The same as nothing but two tensors."""
        return self

    def select(self, sentences: Tensor) -> KeyValues:
        """Those of the given sentences ([B'] indices), in that order."""
        return KeyValues(
            self.keys.index_select(0, sentences), self.values.index_select(0, sentences)
        )

    def join(self, other: KeyValues, length: int) -> KeyValues:
        """The sentences of both, each row cut or filled up with zeros to so many tokens."""
        return KeyValues(
            stacked((self.keys, other.keys), length, -2),
            stacked((self.values, other.values), length, -2),
        )


class LearnedKeyValues(KeyValues):
    """Those of a memory that is learned from: as their projection leaves them, until someone asks.

    Args:
        memory: what the projection gave.
        apart: takes it apart.
    """

    def __init__(self, memory: Memory, apart: Callable[[Memory], KeyValues]) -> None:
        vars(self).update(memory=memory, _apart=apart)

    memory: Memory
    _apart: Callable[[Memory], KeyValues]

    @functools.cached_property
    def _key_values(self) -> KeyValues:
        with torch.enable_grad():  # whoever asks first, they are kept for all
            return self._apart(self.memory)

    def plain(self) -> KeyValues:
        """The same as nothing but two tensors."""
        return self._key_values

    @property
    def keys(self) -> Tensor:
        """[B, K, Lk, E]."""
        return self._key_values.keys

    @property
    def values(self) -> Tensor:
        """[B, K, Lk, E]."""
        return self._key_values.values


class Attention(nn.Module):
    """Self-attention, or attention over a memory.

    Args:
        width: model width D.
        spec: heads, mask, biases, rotary embedding.
        memory: attend over a memory instead of the input itself.
        kept: numbers of the heads that pruning left, ascending; all if None.
    """

    def __init__(
        self,
        width: int,
        spec: AttentionSpec,
        *,
        memory: bool = False,
        kept: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.num_kv_heads = spec.num_kv_heads or spec.num_heads
        heads = range(self.num_heads) if kept is None else kept
        self.kept = KeptHeads(tuple(heads), self.num_heads, self.num_heads // self.num_kv_heads)
        self.heads_left, self.key_heads_left = len(self.kept.heads), len(self.kept.key_heads)
        self._regroup = self.kept.regroup
        self.head_width = spec.head_width or width // spec.num_heads
        self.scale = spec.scale or 1 / math.sqrt(self.head_width)
        self.softcap = spec.softcap
        self.dropout = spec.dropout
        self.mask = build_mask(spec.mask)
        query = {"query": self.heads_left * self.head_width}
        key_value = dict.fromkeys(("key", "value"), self.key_heads_left * self.head_width)
        if memory:
            self.projection = FusedLinear(width, query, bias=spec.bias, gain=_INPUT_GAIN)
            self.memory_projection = FusedLinear(width, key_value, bias=spec.bias, gain=_INPUT_GAIN)
        else:
            self.projection = FusedLinear(
                width, query | key_value, bias=spec.bias, gain=_INPUT_GAIN
            )
        store_maps_apart(self)
        output_bias = spec.bias if spec.output_bias is None else spec.output_bias
        self.output = _linear(self.heads_left * self.head_width, width, bias=output_bias)
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
        rows: RealRows | None = None,
        capture: Capture | None = None,
        address: str = "",
    ) -> tuple[Tensor, KeyValueCache | None]:
        """Self-attention of `x`, which continues what the cache holds.

        Args:
            x: [B, Lq, D]; [1, R, D] without its padding.
            positions: of the tokens in x and its padding; those of a `BeamCache`'s keys come with
                them.
            cache: keys and values seen so far.
            biases: added to this module's own, such as one the whole stack shares.
            rows: where the rows of x stand, if it comes without its padding.
            capture: may ask for `{address}.query` [B, H, Lq, E], `.key` and `.value` [B, K, Lk, E],
                `.scores` and `.weights` [B, H, Lq, Lk], `.context` [B, H, Lq, E]; where there are
                position biases, their sum `.bias` [B or 1, H, Lq, Lk].
            address: this module's place in the model. Tensors have a place for heads that were
                pruned, with scores of −∞ and zero everywhere else.

        Returns:
            As x, and the cache with x's keys and values appended (None if none was given).
        """
        q, k, v = self.heads_of(*self.projection(x, rows))
        if self.rotary is not None:
            q, k = self.rotary(q, positions.query), self.rotary(k, positions.query)
        if cache is not None:
            cache, positions = cache.extend(k, v, positions)
            k, v = cache.keys, cache.values
        mixed = self._attend(q, KeyValues(k, v), positions, biases, capture, address)
        return self._merged(mixed, rows), cache

    def joined(
        self,
        x: Tensor,
        read: Tensor,
        positions: Positions,
        ending: Ending,
        *,
        biases: Sequence[Bias] = (),
        rows: RealRows | None = None,
        memory: KeyValues | None = None,
    ) -> tuple[Tensor, Tensor] | None:
        """This attention and all that follows it up to the next sub-layer, in one call.

        Args:
            x: [B, L, D], the stream; [1, R, D] without its padding.
            read: as x, what this module reads of it.
            positions: of queries and keys.
            ending: what becomes of the result.
            biases: added to this module's own.
            rows: where the rows of x stand, if it comes without its padding.
            memory: what is attended to; x itself if None.

        Returns:
            As `heedful.nn.sublayer.joined`; None where that is not to be had.
        """
        plain = self.rotary is None and self._regroup is None and self.softcap is None
        if not plain or self.biases_with(biases) or (self.training and self.dropout):
            return None
        if not is_plain(self.output) or not unwatched(self, self.projection):
            return None
        if memory is not None and not isinstance(memory, LearnedKeyValues):
            return None
        heads = Heads(
            self.heads_left,
            self.key_heads_left,
            self.scale,
            positions,
            self.mask,
            rows,
            None if memory is None else memory.memory,
        )
        first = Parameters(self.projection.weight, self.projection.bias)
        second = Parameters(self.output.weight, self.output.bias)
        return joined(x, read, first, heads, second, ending)

    def heads_of(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values [B, L, heads · E], each as [B, heads, L, E]."""
        return (
            self._heads(query, self.heads_left),
            self._heads(key, self.key_heads_left),
            self._heads(value, self.key_heads_left),
        )

    def biases_with(self, shared: Sequence[Bias]) -> Sequence[Bias]:
        """What is added to the scores: this module's own bias and those that all blocks share."""
        biases = shared if self.position_bias is None else (self.position_bias, *shared)
        return biases if self.kept.whole else [BiasOfKept(bias, self.kept) for bias in biases]

    def project_memory(self, memory: Tensor, rows: RealRows | None = None) -> KeyValues:
        """Keys and values of a memory, computed once and attended to many times.

        Args:
            memory: [B, Lk, D]; [1, R, D] without its padding.
            rows: where its rows stand, if it comes without its padding.
        """
        projection = self.memory_projection
        learns = self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if learns and isinstance(projection, FusedLinear) and unwatched(projection):
            return LearnedKeyValues(Memory(projection.fused(memory), rows), self._taken_apart)
        return self._laid_out(projection(memory, rows))

    def _taken_apart(self, memory: Memory) -> KeyValues:
        return self._laid_out(self.memory_projection.parts(memory.projected, memory.rows))

    def _laid_out(self, parts: Sequence[Tensor]) -> KeyValues:
        """As kernels read them, or each decoding step would copy them anew."""
        keys, values = (self._heads(part, self.key_heads_left).contiguous() for part in parts)
        return KeyValues(keys, values)

    def over(
        self,
        x: Tensor,
        memory: KeyValues,
        positions: Positions,
        *,
        rows: RealRows | None = None,
        capture: Capture | None = None,
        address: str = "",
    ) -> Tensor:
        """Attention of `x` [B, Lq, D] over a projected memory; returns [B, Lq, D].

        All beams of a sentence may stand side by side in Lq: queries do not see each other here.
        Without its padding x is [1, R, D], and so is what comes back.
        """
        (query,) = self.projection(x, rows)
        q = self._heads(query, self.heads_left)
        return self._merged(self._attend(q, memory, positions, (), capture, address), rows)

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
        biases = self.biases_with(biases)
        if capture is not None:
            offer(capture, f"{address}.key", self.kept.keys_in_place(memory.keys))
            offer(capture, f"{address}.value", self.kept.keys_in_place(memory.values))
        if self._regroup is not None:
            index = list(self._regroup)
            memory = KeyValues(memory.keys[:, index], memory.values[:, index])
        if capture is not None:
            self._show(q, memory, positions, biases, capture, address)
        mixed = q  # of no heads, when all were pruned
        if self.heads_left:
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
        if capture is not None:
            offer(capture, f"{address}.context", self.kept.in_place(mixed))
        return mixed

    def _merged(self, mixed: Tensor, rows: RealRows | None) -> Tensor:
        """What the heads [B, H, Lq, E] found as one vector for each token."""
        joined = mixed.transpose(1, 2).flatten(-2)
        merged: Tensor = self.output(joined if rows is None else rows.pack(joined))
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
        offer(capture, f"{address}.query", self.kept.in_place(q))
        recomputed = {"scores": attention_scores, "weights": attention_weights}
        if biases:
            recomputed["bias"] = attention_bias
        wanted = [name for name in recomputed if capture.wants(f"{address}.{name}")]
        if not wanted:
            return
        if not self.heads_left:
            nothing = q.new_zeros(q.shape[0], 0, q.shape[2], memory.keys.shape[2])
            for name in wanted:
                self._keep(capture, address, name, nothing)
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
            self._keep(capture, address, name, recomputed[name](request))

    def _keep(self, capture: Capture, address: str, name: str, value: Tensor) -> None:
        """Keep what there is of each head; one that is gone looks at nothing."""
        gone = -math.inf if name == "scores" else 0.0
        capture.keep(f"{address}.{name}", self.kept.in_place(value, gone))


def _linear(in_width: int, out_width: int, *, bias: bool) -> Linear:
    """A linear map whose numbers the caller sets."""
    with warnings.catch_warnings():
        if not in_width:  # PyTorch warns that there is nothing to set
            warnings.simplefilter("ignore", UserWarning)
        return Linear(in_width, out_width, bias=bias)
