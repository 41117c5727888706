"""Multi-head attention: projections around `attend` (Vaswani 2017; grouped heads: Ainslie 2023)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heedful.nn.attention.attend import (
    KernelSet,
    attend,
    attention_bias,
    attention_scores,
    attention_weights,
    make_request,
)
from heedful.nn.attention.beam_cache import BeamCache
from heedful.nn.attention.cache import KeyValues, SegmentInputs
from heedful.nn.attention.masks import build_mask
from heedful.nn.attention.relative_positions import Bias, BiasOfHeads, build_bias
from heedful.nn.attention.relative_values import RelativeValues
from heedful.nn.linear_layers import FusedLinear, store_maps_apart
from heedful.nn.mixer import Context, KeyValueCache, MakeCache, Memory
from heedful.nn.norms import build_norm
from heedful.nn.positions import Positions, Rotary
from heedful.nn.spec import AttentionSpec
from heedful.nn.work import Saved, Work, weight_work


@dataclass(frozen=True)
class KeptHeads:
    """The heads of an attention that pruning left.

    A key/value head is left as long as one of the query heads that share it is.

    Args:
        heads: their numbers, ascending.
        total: H.
        shared: query heads that shared a key/value head, H / K.
    """

    heads: tuple[int, ...]
    total: int
    shared: int = 1

    @property
    def key_heads(self) -> tuple[int, ...]:
        """Numbers of the key/value heads that are left, ascending."""
        return tuple(sorted({head // self.shared for head in self.heads}))

    @property
    def regroup(self) -> tuple[int, ...] | None:
        """For each head left the place of its key/value head among those left.

        None where equally many heads share each, which attention takes as it is.
        """
        places = {number: place for place, number in enumerate(self.key_heads)}
        result = tuple(places[head // self.shared] for head in self.heads)
        counts = {result.count(place) for place in places.values()}
        return None if len(counts) <= 1 else result

    @property
    def whole(self) -> bool:
        """True where nothing was pruned."""
        return len(self.heads) == self.total

    def in_place(self, value: Tensor, filler: float = 0.0) -> Tensor:
        """Tensors of the heads left, each at its number.

        Args:
            value: [B, heads left, …].
            filler: for heads that are gone.

        Returns:
            [B, H, …].
        """
        return _placed(value, self.heads, self.total, filler)

    def keys_in_place(self, value: Tensor) -> Tensor:
        """[B, key/value heads left, …] to [B, K, …], zero for those that are gone."""
        return _placed(value, self.key_heads, self.total // self.shared, 0.0)


def _placed(value: Tensor, numbers: Sequence[int], total: int, filler: float) -> Tensor:
    if len(numbers) == total:
        return value
    result = value.new_full((value.shape[0], total, *value.shape[2:]), filler)
    result[:, list(numbers)] = value
    return result


@dataclass(frozen=True)
class GlobalQueries:
    """Queries that attend by projections of their own, in the place of the others'.

    Args:
        q: [B, H, G, E].
        memory: keys and values that they see.
        positions: of these queries and all keys; −1 where a row has fewer than G.
        rows: [B, G] int64, the places of these queries among all; they differ.
    """

    q: Tensor
    memory: KeyValues
    positions: Positions
    rows: Tensor

    def put(self, whole: Tensor, part: Tensor) -> Tensor:
        """Return [B, H, Lq, …] with [B, H, G, …] in the places of these queries."""
        index = self.rows[:, None, :, None].expand_as(part)
        real = (self.positions.query >= 0)[:, None, :, None]
        return whole.scatter(2, index, torch.where(real, part, whole.gather(2, index)))


# Three maps of one Xavier gain each would make scores too wide at the start; 1/sqrt(2) is what
# the paper's successors settled on (fairseq's transformer).
_INPUT_GAIN = 1 / math.sqrt(2)


class Attention(nn.Module):
    """Scaled dot-product attention of several heads: what attention of all kinds has in common.

    Args:
        width: model width D.
        spec: heads, mask, biases, rotary embedding, norm of queries and keys.

    A capture may ask for `{address}.query` [B, H, Lq, E], `.key` and `.value` [B, K, Lk, E],
    `.scores` and `.weights` [B, H, Lq, Lk], `.context` [B, H, Lq, E]; where there are position
    biases, their sum `.bias` [B or 1, H, Lq, Lk]. Tensors have a place for heads that were pruned,
    with scores of −∞ and zero everywhere else.
    """

    kernels = KernelSet()
    """Kernels that `attend` may pick; engines bring others."""

    projection: FusedLinear
    has_shared_biases: bool
    """Whether the position biases that all blocks share are added to the scores."""
    over_memory: bool
    """Whether keys and values are of a memory."""

    def __init__(self, width: int, spec: AttentionSpec) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.num_kv_heads = spec.num_kv_heads or spec.num_heads
        heads = range(self.num_heads) if spec.kept_heads is None else spec.kept_heads
        self.kept = KeptHeads(tuple(heads), self.num_heads, self.num_heads // self.num_kv_heads)
        self.heads_left, self.key_heads_left = len(self.kept.heads), len(self.kept.key_heads)
        self.regroup = self.kept.regroup
        self.head_width = spec.width_of_heads(width)
        self.scale = spec.scale_of_scores(width)
        self.softcap = spec.softcap
        self.dropout = spec.dropout
        self.mask = build_mask(spec.mask)
        self._build_projections(width, spec.bias)
        store_maps_apart(self)
        output_bias = spec.bias if spec.output_bias is None else spec.output_bias
        self.output = _linear(self.heads_left * self.head_width, width, bias=output_bias)
        nn.init.xavier_uniform_(self.output.weight)
        if output_bias:
            nn.init.zeros_(self.output.bias)
        self.query_norm = self.key_norm = None
        if spec.query_key_norm is not None:
            self.query_norm = build_norm(spec.query_key_norm, self.head_width)
            self.key_norm = build_norm(spec.query_key_norm, self.head_width)
        self.rotary = Rotary(self.head_width, spec.rotary) if spec.rotary else None
        self.position_bias = (
            build_bias(spec.position_bias, spec, width) if spec.position_bias else None
        )
        self.relative_values = (
            RelativeValues(self.head_width, spec.relative_values) if spec.relative_values else None
        )

    def _build_projections(self, width: int, bias: bool) -> None:
        """Make the maps from D to queries, and to keys and values."""
        raise NotImplementedError

    def _widths(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the output widths of the maps to queries, and to keys and values, by name."""
        query = {"query": self.heads_left * self.head_width}
        return query, dict.fromkeys(("key", "value"), self.key_heads_left * self.head_width)

    def biases_with(self, shared: Sequence[Bias]) -> Sequence[Bias]:
        """Return the biases of the scores: this module's own, then those all blocks share."""
        shared = shared if self.has_shared_biases else ()
        biases = shared if self.position_bias is None else (self.position_bias, *shared)
        return (
            biases if self.kept.whole else [BiasOfHeads(bias, self.kept.heads) for bias in biases]
        )

    def queries_of(self, query: Tensor) -> Tensor:
        """Return queries [B, L, H · E] as [B, H, L, E], normed where the spec says so."""
        q = self._heads(query, self.heads_left)
        return q if self.query_norm is None else self.query_norm(q)

    def keys_of(self, key: Tensor) -> Tensor:
        """Return keys [B, L, K · E] as [B, K, L, E], normed where the spec says so."""
        k = self._heads(key, self.key_heads_left)
        return k if self.key_norm is None else self.key_norm(k)

    def values_of(self, value: Tensor) -> Tensor:
        """Return values [B, L, K · E] as [B, K, L, E]."""
        return self._heads(value, self.key_heads_left)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of queries that look at keys; see `Costed`."""
        rows = queries * self.heads_left
        pairs = 4 * rows * self.head_width * keys  # a score and a weighted value for each
        if self.position_bias is not None:
            pairs += self.heads_left * self.position_bias.work(queries, keys)
        if self.relative_values is not None:
            pairs += self.relative_values.work(rows)
        return Work(weights=queries * weight_work(self.projection, self.output), attention=pairs)

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of the keys and values of tokens."""
        return 2 * self.key_heads_left * self.head_width * tokens * number_bytes

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return queries, outputs of the heads, and weights of a text of `length` tokens."""
        # Softmax keeps its result in float32; the product with the values keeps its own input.
        weights = self.heads_left * length
        copied = weights if mixed or self.dropout else 0
        queries = self.heads_left * self.head_width
        return Saved(2 * queries + copied, weights if self.dropout else 0, weights)

    def is_plain(self, *, shared_bias: bool) -> bool:
        """Return whether scores are plain products: no bias, cap, dropout or relative values.

        Args:
            shared_bias: whether the blocks of the stack share a position bias.
        """
        biased = self.position_bias is not None or (self.has_shared_biases and shared_bias)
        plain = not self.dropout and self.softcap is None and not biased
        return plain and self.relative_values is None

    def _heads(self, x: Tensor, num_heads: int) -> Tensor:
        return x.view(*x.shape[:2], num_heads, self.head_width).transpose(1, 2)

    def _attend(
        self,
        q: Tensor,
        memory: KeyValues,
        positions: Positions,
        context: Context,
        others: GlobalQueries | None = None,
    ) -> Tensor:
        """Return one vector for each token of q [B, H, Lq, E], from the values it attends to."""
        biases = self.biases_with(context.biases)
        capturing = context.capture is not None
        if capturing:
            context.offer("key", self.kept.keys_in_place(memory.keys))
            context.offer("value", self.kept.keys_in_place(memory.values))
        if self.regroup is not None:
            index = list(self.regroup)
            memory = KeyValues(memory.keys[:, index], memory.values[:, index])
        if capturing:
            self._show(q, memory, positions, biases, context, others)
        mixed = q  # of no heads, when all were pruned
        if self.heads_left:
            mix = partial(
                attend,
                biases=biases,
                scale=self.scale,
                softcap=self.softcap,
                dropout=self.dropout if self.training else 0.0,
                relative_values=self.relative_values,
                kernels=self.kernels,
            )
            mask = self.mask.within_segments(positions)
            mixed = mix(q, memory.keys, memory.values, positions, mask)
            if others is not None:
                mask = self.mask.within_segments(others.positions)
                keys, values = others.memory.keys, others.memory.values
                mixed = others.put(mixed, mix(others.q, keys, values, others.positions, mask))
        if capturing:
            context.offer("context", self.kept.in_place(mixed))
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return output

    def _show(
        self,
        q: Tensor,
        memory: KeyValues,
        positions: Positions,
        biases: Sequence[Bias],
        context: Context,
        others: GlobalQueries | None,
    ) -> None:
        """Recompute what a capture asks for and no kernel leaves behind."""
        context.offer("query", self.kept.in_place(q))
        recompute = {"scores": attention_scores, "weights": attention_weights}
        if biases:
            recompute["bias"] = attention_bias
        wanted = [name for name in recompute if context.wants(name)]
        if not wanted:
            return
        request = other = None
        args = (self.mask.within_segments(positions), biases, self.scale, self.softcap)
        if self.heads_left:  # else all heads were pruned
            request = make_request(q, memory.keys, memory.values, positions, *args)
        if others is not None:
            keys, values = others.memory.keys, others.memory.values
            other = make_request(others.q, keys, values, others.positions, *args)
        nothing = q.new_zeros(q.shape[0], 0, q.shape[2], memory.keys.shape[2])
        for name in wanted:
            value = nothing if request is None else recompute[name](request)
            if others is not None and other is not None:
                value = others.put(value, recompute[name](other))
            filler = -math.inf if name == "scores" else 0.0  # a pruned head looks at nothing
            context.keep(name, self.kept.in_place(value, filler))


class SelfAttention(Attention):
    """Attention over the input itself."""

    has_shared_biases = True
    over_memory = False

    def _build_projections(self, width: int, bias: bool) -> None:
        query, key_value = self._widths()
        self.projection = FusedLinear(width, query | key_value, bias=bias, gain=_INPUT_GAIN)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Attend within x [B, L, D]; see `Mixer`."""
        q, keys, values = self._project(x, context)
        return self._attend(q, KeyValues(keys, values), context.positions, context)

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> KeyValueCache:
        """Return an empty cache; see `Mixer.initial_state`."""
        if make_cache is None:
            return BeamCache()
        empty = like.new_empty((rows, self.key_heads_left, 0, self.head_width))
        return make_cache(empty, empty)

    def read_segment(
        self, x: Tensor, state: SegmentInputs, context: Context
    ) -> tuple[Tensor, SegmentInputs]:
        """Attend from a segment to it and to the tokens before it.

        Args:
            x: [B, L, D].
            state: M tokens before it.
            context: positions of the segment as queries, and of the M + L tokens as keys.

        Returns:
            [B, L, D], and the last M of the tokens.
        """
        whole = torch.cat([state.inputs.to(x.dtype), x], 1)
        (query,) = self.projection.some(x, "query")
        key, value = self.projection.some(whole, "key", "value")
        q, k, v = self.queries_of(query), self.keys_of(key), self.values_of(value)
        positions = context.positions
        if self.rotary is not None:
            q, k = self.rotary(q, positions.query), self.rotary(k, positions.key)
        mixed = self._attend(q, KeyValues(k, v), positions, context)
        return mixed, SegmentInputs(whole[:, x.shape[1] :].detach())

    def step(self, x: Tensor, state: Any, context: Context) -> tuple[Tensor, Any]:
        """Attend from more tokens to them and to those in the state; see `Mixer.step`."""
        if isinstance(state, SegmentInputs):
            return self.read_segment(x, state, context)
        q, keys, values = self._project(self.rows_of(x, context), context)
        state, positions = state.extend(keys, values, context.positions)
        memory = KeyValues(state.keys, state.values)
        return self._attend(q, memory, positions, context).view_as(x), state

    @staticmethod
    def rows_of(x: Tensor, context: Context) -> Tensor:
        """Return x as a row for each row of positions: beams that share none have their own.

        Args:
            x: [B, W, D], a token of each beam; [B, n, D], n tokens of the only beam.
            context: positions [B · W, 1] of beams with rows of their own; else as x.
        """
        return x.reshape(*context.positions.query.shape, x.shape[-1])

    def segment_work(self, tokens: int, memory: int) -> Work:
        """Return the operations of a segment and of the keys and values of tokens before it."""
        key_value = 2 * self.key_heads_left * self.head_width * self.output.out_features
        own = self.work(tokens, memory + tokens)
        return own + Work(weights=2 * memory * key_value)

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Add the keys and values, which are made of the same tokens."""
        key_value = 2 * self.key_heads_left * self.head_width
        return super().saved(length, mixed=mixed, shared_bias=shared_bias).plus(Saved(key_value))

    def _project(
        self, x: Tensor, context: Context, projection: FusedLinear | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, L, E], keys and values [B, K, L, E], rotated to their places."""
        positions = context.positions.query
        query, key, value = (projection or self.projection)(x)
        q, k, v = self.queries_of(query), self.keys_of(key), self.values_of(value)
        if self.rotary is not None:
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        return q, k, v


class CrossAttention(Attention):
    """Attention over a memory, whose keys and values are projected once."""

    has_shared_biases = False
    over_memory = True

    def _build_projections(self, width: int, bias: bool) -> None:
        query, key_value = self._widths()
        self.projection = FusedLinear(width, query, bias=bias, gain=_INPUT_GAIN)
        self.memory_projection = FusedLinear(width, key_value, bias=bias, gain=_INPUT_GAIN)

    def read(self, memory: Memory) -> KeyValues:
        """Return keys and values of a memory, as kernels read them: else each step copies them."""
        key, value = self.memory_projection(memory.states)
        return KeyValues(self.keys_of(key).contiguous(), self.values_of(value).contiguous())

    def step(self, x: Tensor, state: KeyValues, context: Context) -> tuple[Tensor, KeyValues]:
        """Attend from x [B, Lq, D] to a memory; see `CrossMixer.step`.

        All beams of a sentence may stand side by side in Lq: queries do not see each other here.
        """
        (query,) = self.projection(x)
        assert context.memory_positions is not None
        return self._attend(self.queries_of(query), state, context.memory_positions, context), state

    def read_work(self, tokens: int) -> Work:
        """Return the operations of reading a memory of so many tokens."""
        return Work(weights=tokens * weight_work(self.memory_projection))

    def read_saved(self, mixed: bool) -> Saved:
        """Return what a token of the memory leaves: its key and value, and their input if cast."""
        width = self.output.out_features if mixed else 0
        return Saved(2 * self.key_heads_left * self.head_width + width)


def _linear(in_width: int, out_width: int, *, bias: bool) -> nn.Linear:
    """A linear map whose numbers the caller sets."""
    with warnings.catch_warnings():
        if not in_width:  # PyTorch warns that there is nothing to set
            warnings.simplefilter("ignore", UserWarning)
        return nn.Linear(in_width, out_width, bias=bias)
