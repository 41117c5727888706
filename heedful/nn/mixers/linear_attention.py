"""Linear attention: features in the place of softmax (Katharopoulos 2020).

With positive features φ a query's output is φ(q) · Σ φ(k) vᵀ / φ(q) · Σ φ(k). The sums over keys
do not depend on the query, so a whole sequence costs O(L), and a decoding step the same at any
length: its state is one matrix and one vector for each head. The features come from `feature_maps`;
linear attention, cosFormer and Performer differ in nothing else.

Shapes: B sentences, W beams, L length, H heads, E head width, F features, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.device import full_precision
from heedful.errors import ModelError
from heedful.nn.attention.masks import Causal, Everything, canonical
from heedful.nn.linear_layers import FusedLinear, StoredApart
from heedful.nn.mixer import Context, MakeCache, Reordering
from heedful.nn.mixer_spec import LinearAttentionSpec
from heedful.nn.mixers.feature_maps import build_features
from heedful.nn.work import FLOAT32, Saved, Work, weight_work

_CHUNK = 64
"""Tokens whose mutual weights are computed as a matrix; between chunks only the sums are kept."""


@dataclass(frozen=True)
class LinearState:
    """The sums over the tokens so far, for each beam.

    Args:
        products: Σ φ(k) vᵀ, [B, W, H, F, E] float32.
        keys: Σ φ(k), [B, W, H, F] float32.
    """

    products: Tensor
    keys: Tensor

    def reorder(self, choice: Reordering) -> LinearState:
        """Return the sums of the chosen beams."""
        return LinearState(
            self.products.flatten(0, 1)[choice.rows], self.keys.flatten(0, 1)[choice.rows]
        )


class LinearAttention(StoredApart):
    """Multi-head attention whose weights are dot products of positive features.

    Args:
        width: model width D.
        spec: heads, features, and restriction to earlier tokens.

    A capture may ask for `{address}.query` and `.key` [B, H, L, F] (features), `.value`
    [B, H, L, E], and over a whole sequence for `.weights` [B, H, L, L], which sum to 1.
    """

    def __init__(self, width: int, spec: LinearAttentionSpec) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.head_width = spec.head_width or width // spec.num_heads
        self.causal = spec.causal
        self.features = build_features(spec.features, self.head_width)
        # Unused here; inspection asks every attention for its mask.
        self.mask = canonical(Causal() if spec.causal else Everything())
        inner = self.num_heads * self.head_width
        maps = dict.fromkeys(("query", "key", "value"), inner)
        self.projection = FusedLinear(width, maps, bias=spec.bias)
        self.output = nn.Linear(inner, width, bias=spec.bias)
        nn.init.xavier_uniform_(self.output.weight)
        if spec.bias:
            nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Attend within x; see `Mixer`."""
        context = context or Context.whole(x)
        if self.training:
            self.features.count_pass()
        q, k, v = self._features(x, context)
        positions = context.positions
        segments = positions.query_segment
        if context.wants("weights"):
            context.keep("weights", self._weights(q, k, context))
        if self.causal:
            mixed, _ = self._causal(q, k, v, self._empty(q), segments)
        else:
            if segments is not None:
                raise ModelError(
                    "Linear attention that sees later tokens cannot tell packed texts apart",
                    remedy="Use causal = true, or one text in each row",
                )
            # φ(k)ᵀ v first, [F, E]: the other order would make the L · L weights.
            mixed = self._divide(q @ (k.transpose(2, 3) @ v), q @ k.sum(2)[..., None])
        return self._merge(mixed, x, context)

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> LinearState:
        """Return sums of no tokens; see `Mixer.initial_state`.

        Raises:
            ModelError: when tokens see later ones, which a step does not have.
        """
        if not self.causal:
            raise ModelError(
                "Linear attention that sees later tokens cannot go token by token",
                remedy="Use causal = true for a model that writes",
            )
        heads, features = self.num_heads, self.features.width
        keys = torch.zeros((rows, 1, heads, features), device=like.device)
        return LinearState(keys.new_zeros((rows, 1, heads, features, self.head_width)), keys)

    def step(self, x: Tensor, state: LinearState, context: Context) -> tuple[Tensor, LinearState]:
        """Add more tokens to the sums, and attend from them; see `Mixer.step`."""
        q, k, v = self._features(x, context)
        if state.keys.shape[1] == 1:  # several tokens of a single beam, in order
            mixed, state = self._causal(q, k, v, state, None)
            return self._merge(mixed, x, context), state
        # q, k, v are [B, H, W, ·], a token of each beam; the state has W before H.
        products = state.products + (k[..., None] * v[..., None, :]).transpose(1, 2)
        keys = state.keys + k.transpose(1, 2)
        query = q.transpose(1, 2)
        numerator = (query[..., None, :] @ products)[..., 0, :]
        mixed = self._divide(numerator, (query * keys).sum(-1, keepdim=True)).transpose(1, 2)
        return self._merge(mixed, x, context), LinearState(products, keys)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens, independent of earlier tokens; see `Costed`."""
        width, features, pairs = self.head_width, self.features.width, 0
        if self.causal:  # within a chunk; sums of earlier chunks are counted below
            whole, rest = divmod(queries, _CHUNK)
            pairs = 2 * (whole * _CHUNK**2 + rest**2) * (features + width)
        per_head = pairs + queries * features * (4 * width + 2) + self.features.work(queries)
        return Work(
            weights=queries * weight_work(self.projection, self.output),
            attention=self.num_heads * per_head,
        )

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of the float32 sums, the same after any number of tokens."""
        return self.num_heads * self.features.width * (self.head_width + 1) * FLOAT32

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of features, sums and weights of chunks, as measured."""
        inner, features = self.num_heads * self.head_width, self.num_heads * self.features.width
        if not self.causal:
            return Saved(4 * inner + 4 * features, 0, inner)
        return Saved(5 * inner + 5 * features + self.num_heads * _CHUNK, 0, 2 * inner)

    def _features(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Return φ(q) and φ(k) [B, H, L, F] and v [B, H, L, E], float32; padding has keys of 0."""
        query, key, value = self.projection(x)
        q, k, v = (
            # float32 at any precision: the sums over a long text would lose small
            # terms in bfloat16.
            each.float().unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for each in (query, key, value)
        )
        positions = context.positions.query.reshape(q.shape[0], -1)
        real = (positions >= 0)[:, None, :, None]
        with full_precision(q):
            q = self.features(q, positions, of_keys=False)
            k = self.features(k, positions, of_keys=True) * real
        for name, tensor in {"query": q, "key": k, "value": v}.items():
            context.offer(name, tensor)
        return q, k, v

    def _causal(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState, segments: Tensor | None
    ) -> tuple[Tensor, LinearState]:
        """Attend to tokens up to each query, chunk by chunk.

        Args:
            q: [B, H, L, F], features.
            k: the same of keys.
            v: [B, H, L, E], values.
            state: sums of the earlier tokens, with one beam.
            segments: [B, L] int64, the sequence of each token where a row packs several.

        Returns:
            [B, H, L, E], and the state after these tokens.
        """
        if not q.shape[2]:
            return v, state
        products, keys = state.products[:, 0], state.keys[:, 0]
        outputs = []
        last = None if segments is None else segments[:, 0]
        # Split, not sliced: autograd answers each slice with zeros as long as the whole sequence,
        # so the gradient of n chunks would write n times as much (docs/design/log.md).
        parts = zip(*(each.split(_CHUNK, 2) for each in (q, k, v)), strict=True)
        for number, (query, key, value) in enumerate(parts):
            # Within a chunk a matrix of weights: 64 tokens at a time keep the matmuls large.
            weights = (query @ key.transpose(2, 3)).tril()
            before = query
            if segments is not None and last is not None:
                here = segments[:, number * _CHUNK : (number + 1) * _CHUNK]
                weights = weights * (here[:, None, :, None] == here[:, None, None, :])
                before = query * (here == last[:, None])[:, None, :, None]
            numerator = weights @ value + before @ products
            denominator = weights.sum(-1, keepdim=True) + before @ keys[..., None]
            outputs.append(self._divide(numerator, denominator))
            if segments is not None and last is not None:  # only the last sequence continues
                continues = (here[:, -1] == last)[:, None, None]
                products, keys, last = (
                    products * continues[..., None],
                    keys * continues,
                    here[:, -1],
                )
                key = key * (here == last[:, None])[:, None, :, None]
            products, keys = products + key.transpose(2, 3) @ value, keys + key.sum(2)
        return torch.cat(outputs, 2), LinearState(products[:, None], keys[:, None])

    def _weights(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        """Return the weight of every key for every query, [B, H, L, L]."""
        # L² elements, which the mixer itself never has: made for inspection alone.
        weights = q @ k.transpose(2, 3)
        if self.causal:
            weights = weights.tril()
        segments = context.positions.query_segment
        if segments is not None:
            weights = weights * (segments[:, None, :, None] == segments[:, None, None, :])
        return self._divide(weights, weights.sum(-1, keepdim=True))

    def _empty(self, q: Tensor) -> LinearState:
        keys = q.new_zeros((q.shape[0], 1, *q.shape[1::2]))
        return LinearState(keys.new_zeros((*keys.shape, self.head_width)), keys)

    def _merge(self, mixed: Tensor, x: Tensor, context: Context) -> Tensor:
        """Concatenate the heads [B, H, L, E] and project them to the shape of x."""
        context.offer("context", mixed)
        merged = mixed.transpose(1, 2).flatten(-2)
        output: Tensor = self.output(merged.to(x.dtype))
        return output.view_as(x)

    def _divide(self, numerator: Tensor, denominator: Tensor) -> Tensor:
        return numerator / denominator.clamp(min=self.features.smallest)
