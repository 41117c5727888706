"""Multi-head attention: projections around `attend` (Vaswani 2017; grouped heads: Ainslie 2023)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.nn.attention.attend import (
    attend,
    attention_bias,
    attention_scores,
    attention_weights,
    make_request,
    recomputes_weights,
)
from heedful.nn.attention.beam_cache import BeamCache
from heedful.nn.attention.cache import KeyValueCache, KeyValues, LearnedKeyValues, SegmentInputs
from heedful.nn.attention.masks import build_mask
from heedful.nn.attention.relative_positions import Bias, BiasOfHeads, RelativeValues, build_bias
from heedful.nn.fused_sublayer import Heads, Parameters, ProjectedMemory, fused_sublayer
from heedful.nn.linear_layers import FusedLinear, Linear, has_no_hooks, is_plain, store_maps_apart
from heedful.nn.mixer import Context, MakeCache, Memory
from heedful.nn.positions import Positions, Rotary
from heedful.nn.spec import AttentionSpec
from heedful.nn.sublayer import ResidualNorm, build_norm
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

    projection: FusedLinear
    has_shared_biases: bool
    """Whether the position biases that all blocks share are added to the scores."""

    def __init__(self, width: int, spec: AttentionSpec) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.num_kv_heads = spec.num_kv_heads or spec.num_heads
        heads = range(self.num_heads) if spec.kept_heads is None else spec.kept_heads
        self.kept = KeptHeads(tuple(heads), self.num_heads, self.num_heads // self.num_kv_heads)
        self.heads_left, self.key_heads_left = len(self.kept.heads), len(self.kept.key_heads)
        self._regroup = self.kept.regroup
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

    def fused(
        self,
        x: Tensor,
        y: Tensor,
        after: ResidualNorm,
        context: Context,
        state: KeyValues | LearnedKeyValues | None = None,
    ) -> tuple[Tensor, Tensor] | None:
        """Attend and do all that follows up to the next sub-layer in one call.

        Args:
            x: [B, L, D], the residual stream; [1, R, D] without its padding.
            y: as x, the input of this module.
            after: dropout, sum and norm that follow.
            context: positions of x.
            state: the memory that is attended to; x itself if None.

        Returns:
            The stream, and the input of the next sub-layer; None where no kernel serves.
        """
        plain = self.rotary is None and self.query_norm is None and self.softcap is None
        plain = plain and self.relative_values is None
        if not plain or self._regroup is not None or self.biases_with(context.biases):
            return None
        if self.training and self.dropout:
            return None
        if not is_plain(self.output) or not has_no_hooks(self, self.projection):
            return None
        positions, memory = context.positions, None
        if state is not None:
            if not isinstance(state, LearnedKeyValues) or context.memory_positions is None:
                return None
            positions, memory = context.memory_positions, state.memory
        heads = Heads(
            self.heads_left,
            self.key_heads_left,
            self.scale,
            positions,
            self.mask.within_segments(positions),
            context.rows,
            memory,
        )
        first = Parameters(self.projection.weight, self.projection.bias)
        second = Parameters(self.output.weight, self.output.bias)
        return fused_sublayer(x, y, first, heads, second, after)

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
        """Return queries, outputs of the heads, and weights unless they are recomputed."""
        # Softmax keeps its result in float32; the product with the values keeps its own input.
        weights = 0 if self._recomputes(shared_bias) else self.heads_left * length
        copied = weights if mixed or self.dropout else 0
        queries = self.heads_left * self.head_width
        return Saved(2 * queries + copied, weights if self.dropout else 0, weights)

    def _recomputes(self, shared_bias: bool) -> bool:
        """Return whether the kernel of training keeps no attention weights."""
        biased = self.position_bias is not None or (self.has_shared_biases and shared_bias)
        plain = not self.dropout and self.softcap is None and not biased
        plain = plain and self.relative_values is None
        return plain and recomputes_weights(self.head_width)

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
        if self._regroup is not None:
            index = list(self._regroup)
            memory = KeyValues(memory.keys[:, index], memory.values[:, index])
        if capturing:
            self._show(q, memory, positions, biases, context, others)
        mixed = q  # of no heads, when all were pruned
        if self.heads_left:
            mixed = self._mix(q, memory, positions, biases)
            if others is not None:
                own = self._mix(others.q, others.memory, others.positions, biases)
                mixed = others.put(mixed, own)
        if capturing:
            context.offer("context", self.kept.in_place(mixed))
        merged = mixed.transpose(1, 2).flatten(-2)
        output: Tensor = self.output(merged if context.rows is None else context.rows.pack(merged))
        return output

    def _mix(
        self, q: Tensor, memory: KeyValues, positions: Positions, biases: Sequence[Bias]
    ) -> Tensor:
        mask, more = self.mask.within_segments(positions), self.relative_values
        heads = (q, memory.keys, memory.values, positions, mask, biases, self.scale)
        dropout = self.dropout if self.training else 0.0
        return attend(*heads, softcap=self.softcap, dropout=dropout, relative_values=more)

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

    def _build_projections(self, width: int, bias: bool) -> None:
        query, key_value = self._widths()
        self.projection = FusedLinear(width, query | key_value, bias=bias, gain=_INPUT_GAIN)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Attend within x.

        Args:
            x: [B, L, D]; [1, R, D] without its padding.
            context: positions of x.

        Returns:
            As x.
        """
        q, keys, values = self._project(x, context)
        return self._attend(q, KeyValues(keys, values), context.positions, context).view_as(x)

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
        q, keys, values = self._project(x, context)
        state, positions = state.extend(keys, values, context.positions)
        memory = KeyValues(state.keys, state.values)
        return self._attend(q, memory, positions, context).view_as(x), state

    def segment_work(self, tokens: int, memory: int) -> Work:
        """Return the operations of a segment and of the keys and values of tokens before it."""
        key_value = 2 * self.key_heads_left * self.head_width * self.output.out_features
        own = self.work(tokens, memory + tokens)
        return own + Work(weights=2 * memory * key_value)

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Add the keys and values, which are made of the same tokens."""
        key_value = 2 * self.key_heads_left * self.head_width
        kept = super().saved(length, mixed=mixed, shared_bias=shared_bias).plus(Saved(key_value))
        if self.rotary is not None and self._recomputes(shared_bias):
            # Values are read where the projection left them, beside what was rotated since.
            kept = kept.plus(Saved(self.heads_left * self.head_width + key_value // 2))
        return kept

    def _project(
        self, x: Tensor, context: Context, projection: FusedLinear | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, L, E], keys and values [B, K, L, E], rotated to their places."""
        positions, rows = context.positions.query, context.rows
        if rows is None:  # with rows of its own each of W beams: [B, W, D] is [B · W, 1, D]
            x = x.reshape(positions.shape[0], -1, x.shape[-1])
        query, key, value = (projection or self.projection)(x, rows)
        q, k, v = self.queries_of(query), self.keys_of(key), self.values_of(value)
        if self.rotary is not None:
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        return q, k, v


class CrossAttention(Attention):
    """Attention over a memory, whose keys and values are projected once."""

    has_shared_biases = False

    def _build_projections(self, width: int, bias: bool) -> None:
        query, key_value = self._widths()
        self.projection = FusedLinear(width, query, bias=bias, gain=_INPUT_GAIN)
        self.memory_projection = FusedLinear(width, key_value, bias=bias, gain=_INPUT_GAIN)

    def read(self, memory: Memory) -> KeyValues | LearnedKeyValues:
        """Return keys and values of a memory."""
        projection = self.memory_projection
        learns = self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if learns and isinstance(projection, FusedLinear) and has_no_hooks(projection):
            projected = ProjectedMemory(projection.fused(memory.states), memory.rows)
            return LearnedKeyValues(projected, self._split)
        return self._laid_out(projection(memory.states, memory.rows))

    def step(self, x: Tensor, state: Any, context: Context) -> tuple[Tensor, Any]:
        """Attend from x [B, Lq, D] to a memory; see `CrossMixer.step`.

        All beams of a sentence may stand side by side in Lq: queries do not see each other here.
        Without its padding x is [1, R, D], and so is the result.
        """
        (query,) = self.projection(x, context.rows)
        assert context.memory_positions is not None
        positions = context.memory_positions
        return self._attend(self.queries_of(query), state.plain(), positions, context), state

    def read_work(self, tokens: int) -> Work:
        """Return the operations of reading a memory of so many tokens."""
        return Work(weights=tokens * weight_work(self.memory_projection))

    def read_saved(self, mixed: bool) -> Saved:
        """Return what a token of the memory leaves: its key and value, and their input if cast."""
        width = self.output.out_features if mixed else 0
        return Saved(2 * self.key_heads_left * self.head_width + width)

    def _split(self, memory: ProjectedMemory) -> KeyValues:
        return self._laid_out(self.memory_projection.parts(memory.projected, memory.rows))

    def _laid_out(self, parts: Sequence[Tensor]) -> KeyValues:
        """Return keys and values as kernels read them; else each step would copy them anew."""
        key, value = parts
        return KeyValues(self.keys_of(key).contiguous(), self.values_of(value).contiguous())


def _linear(in_width: int, out_width: int, *, bias: bool) -> Linear:
    """A linear map whose numbers the caller sets."""
    with warnings.catch_warnings():
        if not in_width:  # PyTorch warns that there is nothing to set
            warnings.simplefilter("ignore", UserWarning)
        return Linear(in_width, out_width, bias=bias)
