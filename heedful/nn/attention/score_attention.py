"""Attention before the Transformer: one head, a score of states (Bahdanau 2015; Luong 2015).

Keys and values are projections of an encoder's states, computed once for a sentence.

Shapes: B sentences, Lq queries of each (tokens or beams), S length of the memory, D model width, A
inner width of the score.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.nn.attention.cache import KeyValues
from heedful.nn.mixer import Context, Memory
from heedful.nn.mixer_spec import ScoreAttentionSpec
from heedful.nn.positions import Positions
from heedful.nn.work import Saved, Work, weight_work


def one_memory(context: Context) -> Positions:
    """Return the positions of queries and of a memory with one sequence in each row.

    Raises:
        ModelError: when rows pack several sequences, which these attentions cannot separate.
    """
    positions = context.memory_positions
    assert positions is not None
    if positions.query_segment is not None or positions.key_segment is not None:
        raise ModelError(
            "A recurrent or score-function decoder cannot tell packed sources apart",
            remedy="Use one pair in each row, or attention of several heads over the source",
        )
    return positions


class ScoreFunction(nn.Module):
    """A score function: attention weights over a memory's states, and their weighted sums.

    Args:
        width: model width D.
        spec: score, window, and use of embeddings.
    """

    def __init__(self, width: int, spec: ScoreAttentionSpec) -> None:
        super().__init__()
        self.score = spec.score
        self.scale = spec.scale
        self.window = spec.window
        self.embeddings = spec.embeddings
        self.dropout = nn.Dropout(spec.dropout)
        inner = spec.width or width
        self.is_additive = spec.score in ("additive", "concat")
        self.query = self.key = self.vector = self.place = self.place_vector = None
        if self.is_additive or (spec.score == "dot" and spec.width is not None):
            self.query = _xavier(nn.Linear(width, inner, bias=False))
            # vᵀ tanh(W q + U k + b): the bias is added to the keys, which is done
            # once per sentence.
            self.key = _xavier(nn.Linear(width, inner, bias=spec.score == "additive"))
        # qᵀ W k (Luong 2015, section 3.1): W is applied to the keys, which all steps share.
        elif spec.score == "general":
            self.key = _xavier(nn.Linear(width, width, bias=False))
        if self.is_additive:
            self.vector = _xavier(nn.Linear(inner, 1, bias=False))
        if spec.embeddings and self.query is None:
            self.query = _xavier(nn.Linear(width, width))
        if spec.window is not None:
            self.place = _xavier(nn.Linear(width, width, bias=False))
            self.place_vector = _xavier(nn.Linear(width, 1, bias=False))

    def read(self, memory: Memory) -> KeyValues:
        """Project a memory to keys [B, S, A], A = D without inner width, and values [B, S, D]."""
        states = memory.states
        keys = states if self.key is None else self.key(states)
        if not self.embeddings:
            return KeyValues(keys, states)
        assert memory.embedding is not None
        # Only values get the embedding of the source token (Gehring 2017, equation 2).
        return KeyValues(keys, states + memory.embedding.to(states.dtype))

    def forward(
        self,
        query: Tensor,
        keys: KeyValues,
        key_positions: Tensor,
        embedding: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend from queries to a memory.

        Args:
            query: [B, Lq, D].
            keys: keys and values from `read`.
            key_positions: [B, S] int64; −1 is padding.
            embedding: [B, Lq, D], embedded tokens of the queries, for a spec that uses them.

        Returns:
            Context vectors [B, Lq, D], and weights [B, Lq, S] float32, 0 for padding.
        """
        real = key_positions >= 0
        scores = self.scores(query, keys, embedding)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        seen, gaussian = real[:, None], None
        if self.place is not None and self.place_vector is not None:
            # The predicted position p / S = sigmoid(vᵀ tanh(W q)) (Luong 2015, equation 9), a
            # share of the sentence's length.
            centre = torch.sigmoid(
                self.place_vector(torch.tanh(self.place(query))).to(scores.dtype)
            )
            distance = key_positions[:, None] - centre * real.sum(1)[:, None, None]
            assert self.window is not None
            seen = seen & (distance.abs() <= self.window)
            gaussian = torch.exp(
                -2.0 * (distance / self.window) ** 2
            )  # σ = window / 2 (equation 10)
        # Finite instead of −∞: a source without tokens gives zeros and not NaN.
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, -1) * seen
        if gaussian is not None:
            # After the softmax and not renormalised, as in the paper: the sum may be below 1.
            weights = weights * gaussian
        used = self.dropout(weights)
        mixed = used.to(keys.values.dtype) @ keys.values
        if self.embeddings:
            # Even weights over m states would leave 1/m of their variance; √m, the paper's
            # m · √(1/m), restores it (Gehring 2017, section 3.4).
            mixed = mixed * real.sum(1)[:, None, None].to(mixed.dtype).sqrt()
        return mixed, weights

    def scores(self, query: Tensor, keys: KeyValues, embedding: Tensor | None = None) -> Tensor:
        """Return the score of each state for each query, [B, Lq, S]; arguments as in `forward`."""
        if self.query is not None:
            query = self.query(query)
        if self.embeddings:
            assert embedding is not None
            query = query + embedding.to(query.dtype)
        if not self.is_additive:
            scores = query.to(keys.keys.dtype) @ keys.keys.transpose(1, 2)
        else:
            assert self.vector is not None
            # The largest tensor of additive attention, which multiplicative scores do without.
            sums = torch.tanh(query[:, :, None] + keys.keys[:, None])  # [B, Lq, S, A]
            scores = self.vector(sums)[..., 0]
        return scores if self.scale == 1.0 else scores * self.scale

    def key_width(self, width: int) -> int:
        """Return A, or D where keys have the width of the model."""
        return width if self.key is None else self.key.out_features

    def work(self, queries: int, keys: int, width: int) -> Work:
        """Return the operations of queries that attend to a memory."""
        maps = [each for each in (self.query, self.place, self.place_vector) if each is not None]
        pairs = 2 * queries * keys * (self.key_width(width) + width)  # a score, a weighted value
        return Work(weights=queries * weight_work(*maps), attention=pairs)

    def read_work(self, tokens: int) -> Work:
        """Return the operations of projecting `tokens` tokens of a memory."""
        return Work(weights=tokens * weight_work(self.key)) if self.key is not None else Work()

    def saved(self, length: int, width: int) -> Saved:
        """Return the elements that a query keeps for the gradients, mostly those of token pairs.

        Args:
            length: tokens of the memory.
            width: D.
        """
        per_pair = 2 * self.key_width(width) if self.is_additive else 0
        return Saved(2 * width, 0, (per_pair + 2) * length)


class ScoreAttention(nn.Module):
    """Attention of one head as a cross mixer: context vectors through an output projection.

    Args:
        width: model width D.
        spec: score, window, and use of embeddings.

    A capture may ask for `{address}.weights` [B, 1, Lq, S] and `{address}.context` [B, 1, Lq, D].
    """

    num_heads = 1

    def __init__(self, width: int, spec: ScoreAttentionSpec) -> None:
        super().__init__()
        self.width = width
        self.head_width = width
        self.function = ScoreFunction(width, spec)
        self.output = _xavier(nn.Linear(width, width))

    def read(self, memory: Memory) -> KeyValues:
        """Project a memory to keys and values; see `CrossMixer.read`."""
        return self.function.read(memory)

    def step(self, x: Tensor, state: KeyValues, context: Context) -> tuple[Tensor, KeyValues]:
        """Attend from x to the memory; see `CrossMixer.step`."""
        keys = one_memory(context).key
        mixed, weights = self.function(x, state, keys, context.embedding)
        offer_weights(context, weights)
        context.offer("context", mixed[:, None])
        return self.output(mixed.to(x.dtype)), state

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of queries that attend to a memory; see `Costed`."""
        output = Work(weights=queries * weight_work(self.output))
        return self.function.work(queries, keys, self.width) + output

    def read_work(self, tokens: int) -> Work:
        """Return the operations of projecting `tokens` tokens of a memory."""
        return self.function.read_work(tokens)

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of keys and values of a memory."""
        return tokens * (self.function.key_width(self.width) + self.width) * number_bytes

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of queries and weights; see `Costed`."""
        return self.function.saved(length, self.width)

    def read_saved(self, mixed: bool) -> Saved:
        """Return the elements that a token of the memory keeps for gradients: key and value."""
        return Saved(self.function.key_width(self.width) + self.width)


def offer_weights(context: Context, weights: Tensor) -> None:
    """Offer weights [B, Lq, S] to the capture as those of one head, 0 in rows of padding."""
    if context.wants("weights"):
        real = context.positions.query.reshape(len(weights), -1, 1) >= 0
        context.keep("weights", (weights * real)[:, None])


def _xavier(layer: nn.Linear) -> nn.Linear:
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
