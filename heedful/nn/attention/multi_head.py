"""Multi-head attention: projections around `attend` (Vaswani 2017; grouped heads: Ainslie 2023)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

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
from heedful.nn.attention.cache import GlobalQueries, KeyValues, SegmentInputs
from heedful.nn.attention.masks import canonical
from heedful.nn.linear_layers import FusedLinear, StoredApart
from heedful.nn.mixer import (
    Context,
    KeyValueCache,
    MakeCache,
    Memory,
    build_bias,
    spec_of,
)
from heedful.nn.norms import build_norm
from heedful.nn.positions import Positions, Rotary
from heedful.nn.spec import AttentionSpec
from heedful.nn.work import Saved, Work, weight_work

if TYPE_CHECKING:
    from heedful.nn.attention.relative_positions import Bias
    from heedful.nn.attention.relative_values import RelativeValues


@dataclass(frozen=True)
class KeptHeads:
    """The query heads that are left after pruning (Michel 2019).

    A key/value head is left if at least one of the query heads that share it is left.

    Args:
        heads: ascending indices of the query heads that are left.
        total: number of heads H before pruning.
        shared: query heads for each key/value head before pruning, H / K.
    """

    heads: tuple[int, ...]
    total: int
    shared: int = 1

    @property
    def key_heads(self) -> tuple[int, ...]:
        """Ascending indices of the key/value heads that are left."""
        return tuple(sorted({head // self.shared for head in self.heads}))

    @property
    def regroup(self) -> tuple[int, ...] | None:
        """Indices that repeat a key/value head for each query head that is left.

        None where each key/value head serves equally many query heads, as grouped attention needs.
        """
        places = {number: place for place, number in enumerate(self.key_heads)}
        result = tuple(places[head // self.shared] for head in self.heads)
        # Grouped attention derives a head's group from its index, which uneven groups would break.
        counts = {result.count(place) for place in places.values()}
        return None if len(counts) <= 1 else result

    @property
    def whole(self) -> bool:
        """True where no head was pruned."""
        return len(self.heads) == self.total

    def in_place(self, value: Tensor, filler: float = 0.0) -> Tensor:
        """Move the heads that are left to their indices before pruning.

        Args:
            value: [B, heads left, …].
            filler: value of the heads that were pruned.

        Returns:
            [B, H, …].
        """
        return _placed(value, self.heads, self.total, filler)

    def keys_in_place(self, value: Tensor) -> Tensor:
        """Move key/value heads [B, heads left, …] to [B, K, …], zero for pruned heads."""
        return _placed(value, self.key_heads, self.total // self.shared, 0.0)


def _placed(value: Tensor, numbers: Sequence[int], total: int, filler: float) -> Tensor:
    if len(numbers) == total:
        return value
    result = value.new_full((value.shape[0], total, *value.shape[2:]), filler)
    result[:, list(numbers)] = value
    return result


# Three maps of one Xavier gain each would make scores too wide at the start; 1/sqrt(2) is what
# the paper's successors settled on (fairseq's transformer).
_INPUT_GAIN = 1 / math.sqrt(2)


class Attention(StoredApart):
    """Scaled dot-product attention of several heads: the base of self- and cross-attention.

    Args:
        width: model width D.
        spec: heads, mask, biases, rotary embedding, norm of queries and keys; None with `heads`.
        heads: number of query heads, instead of a spec.
        **settings: other fields of `AttentionSpec`, such as `num_kv_heads`, `mask` or `rotary`.

    A capture may ask for `{address}.query` [B, H, Lq, E], `.key` and `.value` [B, K, Lk, E],
    `.scores` and `.weights` [B, H, Lq, Lk], `.context` [B, H, Lq, E]; where there are position
    biases, their sum `.bias` [B or 1, H, Lq, Lk]. Heads that were pruned keep their index, with
    scores of −∞ and zeros in all other tensors.
    """

    kernels = KernelSet()
    """Kernels that `attend` may pick; engines exchange them."""

    projection: FusedLinear
    has_shared_biases: bool
    """True where the position biases that all blocks share are added to the scores."""
    over_memory: bool
    """True where keys and values are projections of a memory."""

    def __init__(
        self,
        width: int,
        spec: AttentionSpec | None = None,
        *,
        heads: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        spec = spec_of(AttentionSpec, width, spec, {"num_heads": heads, **settings})
        self.num_heads = spec.num_heads
        self.num_kv_heads = spec.num_kv_heads or spec.num_heads
        kept = range(self.num_heads) if spec.kept_heads is None else spec.kept_heads
        self.kept = KeptHeads(tuple(kept), self.num_heads, self.num_heads // self.num_kv_heads)
        self.heads_left, self.key_heads_left = len(self.kept.heads), len(self.kept.key_heads)
        self.regroup = self.kept.regroup
        self.head_width = spec.width_of_heads(width)
        self.scale = spec.scale_of_scores(width)
        self.softcap = spec.softcap
        self.dropout = spec.dropout
        self.mask = canonical(spec.mask)
        self._build_projections(width, spec)
        output_bias = spec.bias if spec.output_bias is None else spec.output_bias
        self.output = _linear(self.heads_left * self.head_width, width, bias=output_bias)
        nn.init.xavier_uniform_(self.output.weight)
        if output_bias:
            nn.init.zeros_(self.output.bias)
        self.query_norm = self.key_norm = None
        # A norm over E of each head bounds its scores, which otherwise grow with training and
        # saturate the softmax (Henry 2020; Dehghani 2023).
        if spec.query_key_norm is not None:
            whole = spec.query_key_norm_over == "all_heads"
            query, key = (self.num_heads, self.num_kv_heads) if whole else (1, 1)
            self.query_norm = build_norm(spec.query_key_norm, query * self.head_width)
            self.key_norm = build_norm(spec.query_key_norm, key * self.head_width)
        self.norms_all_heads = spec.query_key_norm_over == "all_heads"
        self.rotary = Rotary(self.head_width, spec.rotary) if spec.rotary else None
        self.position_bias = (
            build_bias(spec.position_bias, spec, width) if spec.position_bias else None
        )
        self.relative_values: RelativeValues | None = None
        if spec.relative_values:
            from heedful.nn.attention import relative_values  # few models have them

            self.relative_values = relative_values.RelativeValues(
                self.head_width, spec.relative_values
            )

    def _build_projections(self, width: int, spec: AttentionSpec) -> None:
        """Build the projections from D to queries, and to keys and values."""
        raise NotImplementedError

    def _widths(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the output widths of the query map, and of the key and value maps, by name."""
        query = {"query": self.heads_left * self.head_width}
        return query, dict.fromkeys(("key", "value"), self.key_heads_left * self.head_width)

    def biases_with(self, shared: Sequence[Bias]) -> Sequence[Bias]:
        """Return the biases of the scores: this module's own, then those that all blocks share."""
        shared = shared if self.has_shared_biases else ()
        biases = shared if self.position_bias is None else (self.position_bias, *shared)
        return biases if self.kept.whole else [bias.reduced_to(self.kept.heads) for bias in biases]

    def queries_of(self, query: Tensor) -> Tensor:
        """Return queries [B, L, H · E] as [B, H, L, E], normalised where the spec says so."""
        # Normed before the rotation, which keeps lengths, as in Gemma 3 and Qwen 3.
        return self._normed_heads(query, self.query_norm, self.heads_left)

    def keys_of(self, key: Tensor) -> Tensor:
        """Return keys [B, L, K · E] as [B, K, L, E], normalised where the spec says so."""
        return self._normed_heads(key, self.key_norm, self.key_heads_left)

    def values_of(self, value: Tensor) -> Tensor:
        """Return values [B, L, K · E] as [B, K, L, E]."""
        return self._heads(value, self.key_heads_left)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of queries that attend to keys; see `Costed`."""
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
        """Return the elements of queries, head outputs and weights over `length` tokens."""
        # Softmax keeps its result in float32; the matmul with the values keeps its own input.
        weights = self.heads_left * length
        copied = weights if mixed or self.dropout else 0
        queries = self.heads_left * self.head_width
        return Saved(2 * queries + copied, weights if self.dropout else 0, weights)

    def is_plain(self, *, shared_bias: bool) -> bool:
        """Return whether scores are plain: no bias, cap, dropout or relative values.

        Args:
            shared_bias: flag of a stack whose blocks share a position bias.
        """
        biased = self.position_bias is not None or (self.has_shared_biases and shared_bias)
        plain = not self.dropout and self.softcap is None and not biased
        return plain and self.relative_values is None

    def _normed_heads(self, x: Tensor, norm: nn.Module | None, num_heads: int) -> Tensor:
        """Divide x [B, L, H · E] into heads [B, H, L, E], normed before or after the division."""
        if norm is None:
            return self._heads(x, num_heads)
        if self.norms_all_heads:  # OLMo 2 (2024)
            return self._heads(norm(x), num_heads)
        normed: Tensor = norm(self._heads(x, num_heads))
        return normed

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
        """Attend from queries [B, H, Lq, E] and project the heads' outputs to [B, Lq, D]."""
        biases = self.biases_with(context.biases)
        capturing = context.capture is not None
        if capturing:
            # Captured before keys are repeated for pruned heads, with K heads.
            context.offer("key", self.kept.keys_in_place(memory.keys))
            context.offer("value", self.kept.keys_in_place(memory.values))
        if self.regroup is not None:
            index = list(self.regroup)
            memory = KeyValues(memory.keys[:, index], memory.values[:, index])
        if capturing:
            self._keep_recomputed(q, memory, positions, biases, context, others)
        mixed = q  # [B, 0, Lq, E] where all heads were pruned
        if self.heads_left:
            mix = partial(
                attend,
                biases=biases,
                scale=self.scale,
                softcap=self.softcap,
                # Probability 0 in evaluation, so that kernels need not know the mode of the module.
                dropout=self.dropout if self.training else 0.0,
                relative_values=self.relative_values,
                kernels=self.kernels,
            )
            # Positions with segments narrow any mask to the query's own sequence, so packing rows
            # does not depend on the mask that a model was trained with.
            mask = positions.within_segments(self.mask)
            mixed = mix(q, memory.keys, memory.values, positions, mask)
            if others is not None:
                mask = others.positions.within_segments(self.mask)
                keys, values = others.memory.keys, others.memory.values
                mixed = others.put(mixed, mix(others.q, keys, values, others.positions, mask))
        if capturing:
            context.offer("context", self.kept.in_place(mixed))
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return output

    def _keep_recomputed(
        self,
        q: Tensor,
        memory: KeyValues,
        positions: Positions,
        biases: Sequence[Bias],
        context: Context,
        others: GlobalQueries | None,
    ) -> None:
        """Keep wanted tensors that no fused kernel returns, recomputed by the definition."""
        context.offer("query", self.kept.in_place(q))
        recompute = {"scores": attention_scores, "weights": attention_weights}
        if biases:
            recompute["bias"] = attention_bias
        wanted = [name for name in recompute if context.wants(name)]
        # Scores take Lq · Lk elements per head, so only what a capture wants is recomputed.
        if not wanted:
            return
        request = other = None
        args = (positions.within_segments(self.mask), biases, self.scale, self.softcap)
        if self.heads_left:  # otherwise all heads were pruned
            request = make_request(q, memory.keys, memory.values, positions, *args)
        if others is not None:
            keys, values = others.memory.keys, others.memory.values
            other = make_request(others.q, keys, values, others.positions, *args)
        nothing = q.new_zeros(q.shape[0], 0, q.shape[2], memory.keys.shape[2])
        for name in wanted:
            value = nothing if request is None else recompute[name](request)
            if others is not None and other is not None:
                value = others.put(value, recompute[name](other))
            filler = -math.inf if name == "scores" else 0.0  # a pruned head sees no key
            context.keep(name, self.kept.in_place(value, filler))


class SelfAttention(Attention):
    """Attention over the input itself."""

    has_shared_biases = True
    over_memory = False

    def _build_projections(self, width: int, spec: AttentionSpec) -> None:
        query, key_value = self._widths()
        # One matmul for queries, keys and values, which have one input.
        self.projection = FusedLinear(width, query | key_value, bias=spec.bias, gain=_INPUT_GAIN)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Attend within x [B, L, D]; see `Mixer`."""
        context = context or Context.whole(x)
        q, keys, values = self._project(x, context)
        return self._attend(q, KeyValues(keys, values), context.positions, context)

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> KeyValueCache:
        """Return an empty cache; see `Mixer.initial_state`."""
        if make_cache is None:
            return BeamCache()
        # Zero slots: it only tells a cache its heads, width, dtype and device.
        empty = like.new_empty((rows, self.key_heads_left, 0, self.head_width))
        return make_cache(empty, empty)

    def read_segment(
        self, x: Tensor, state: SegmentInputs, context: Context
    ) -> tuple[Tensor, SegmentInputs]:
        """Attend from a segment to itself and to the tokens before it (Dai 2019, section 3.2).

        Args:
            x: [B, L, D].
            state: inputs of the M tokens before the segment.
            context: positions of the segment as queries, and of the M + L tokens as keys.

        Returns:
            The output [B, L, D], and the inputs of the last M tokens.
        """
        whole = torch.cat([state.inputs.to(x.dtype), x], 1)
        # The old tokens need no queries. Their keys are projected again, so that the maps get
        # gradients from them, as in the paper.
        (query,) = self.projection.some(x, "query")
        key, value = self.projection.some(whole, "key", "value")
        q, k, v = self.queries_of(query), self.keys_of(key), self.values_of(value)
        positions = context.positions
        if self.rotary is not None:
            q, k = self.rotary(q, positions.query), self.rotary(k, positions.key)
        mixed = self._attend(q, KeyValues(k, v), positions, context)
        return mixed, SegmentInputs(whole[:, x.shape[1] :].detach())  # the paper's stop-gradient

    def step(self, x: Tensor, state: Any, context: Context) -> tuple[Tensor, Any]:
        """Attend from new tokens to themselves and to those in the state; see `Mixer.step`."""
        if isinstance(state, SegmentInputs):
            return self.read_segment(x, state, context)
        # Keys are cached rotated: a position never changes, so no step rotates them again.
        q, keys, values = self._project(self.rows_of(x, context), context)
        state, positions = state.extend(keys, values, context.positions)
        memory = KeyValues(state.keys, state.values)
        return self._attend(q, memory, positions, context).view_as(x), state

    @staticmethod
    def rows_of(x: Tensor, context: Context) -> Tensor:
        """Reshape x to the rows of the positions: caches may give each beam a row of its own.

        Args:
            x: [B, W, D], one token of each beam; or [B, n, D], n tokens of the only beam.
            context: context with positions [B · W, 1] where beams have rows of their own, else
                with the shape of x.
        """
        return x.reshape(*context.positions.query.shape, x.shape[-1])

    def segment_work(self, tokens: int, memory: int) -> Work:
        """Return the operations of a segment and of the keys and values of tokens before it."""
        key_value = 2 * self.key_heads_left * self.head_width * self.output.out_features
        own = self.work(tokens, memory + tokens)
        return own + Work(weights=2 * memory * key_value)

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Add the keys and values, which are projections of the same tokens."""
        key_value = 2 * self.key_heads_left * self.head_width
        return super().saved(length, mixed=mixed, shared_bias=shared_bias).plus(Saved(key_value))

    def _project(
        self, x: Tensor, context: Context, projection: FusedLinear | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, L, E], keys and values [B, K, L, E]; queries and keys rotated."""
        positions = context.positions.query
        query, key, value = (projection or self.projection)(x)
        q, k, v = self.queries_of(query), self.keys_of(key), self.values_of(value)
        if self.rotary is not None:
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        return q, k, v


class CrossAttention(Attention):
    """Attention over a memory, whose keys and values are projected once."""

    # The positions of two sequences have no distance, so no position bias applies.
    has_shared_biases = False
    over_memory = True

    def _build_projections(self, width: int, spec: AttentionSpec) -> None:
        query, key_value = self._widths()
        self.projection = FusedLinear(width, query, bias=spec.bias, gain=_INPUT_GAIN)
        self.memory_projection = FusedLinear(width, key_value, bias=spec.bias, gain=_INPUT_GAIN)

    def forward(self, x: Tensor, memory: Tensor, real: Tensor | None = None) -> Tensor:
        """Attend from whole sequences to a memory, for other models; stacks `read` and `step`.

        Args:
            x: [B, Lq, D].
            memory: [B, S, D].
            real: [B, S] bool, false at padding of the memory; no padding if None.

        Returns:
            [B, Lq, D].
        """
        own, there = Context.whole(x), Context.whole(memory, real).positions
        positions = Positions(own.positions.query, there.query)
        state = self.read(Memory(memory, there.query))
        return self.step(x, state, replace(own, memory_positions=positions))[0]

    def read(self, memory: Memory) -> KeyValues:
        """Project a memory to keys and values [B, K, S, E]."""
        # Contiguous in the layout of the kernels: one copy here instead of one in every step.
        key, value = self.memory_projection(memory.states)
        return KeyValues(self.keys_of(key).contiguous(), self.values_of(value).contiguous())

    def step(self, x: Tensor, state: KeyValues, context: Context) -> tuple[Tensor, KeyValues]:
        """Attend from x [B, Lq, D] to a memory; see `CrossMixer.step`.

        All beams of a sentence may stand side by side in Lq, as queries do not see each other.
        """
        (query,) = self.projection(x)
        assert context.memory_positions is not None
        return self._attend(self.queries_of(query), state, context.memory_positions, context), state

    def read_work(self, tokens: int) -> Work:
        """Return the operations of reading a memory of so many tokens."""
        return Work(weights=tokens * weight_work(self.memory_projection))

    def read_saved(self, mixed: bool) -> Saved:
        """Return the elements kept for a token of the memory: key, value, and a cast input."""
        width = self.output.out_features if mixed else 0
        return Saved(2 * self.key_heads_left * self.head_width + width)


def _linear(in_width: int, out_width: int, *, bias: bool) -> nn.Linear:
    """Return a linear map whose weights the caller initialises."""
    with warnings.catch_warnings():
        if not in_width:  # all heads pruned: PyTorch warns that initialising no elements is a no-op
            warnings.simplefilter("ignore", UserWarning)
        return nn.Linear(in_width, out_width, bias=bias)
