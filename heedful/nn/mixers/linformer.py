"""Linformer: attention over a fixed number of sums of keys and values (Wang 2020, equation 7).

Trained weights for every position reduce the L keys of a sequence to k sums, and its values
likewise. There are L · k scores instead of L². Each sum is over the whole sequence, so a token sees
later ones through it: there is no causal form and no decoding by steps.

Shapes: B sentences, L length, H heads, E head width, D model width, k sums.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.nn.linear_layers import FusedLinear, StoredApart
from heedful.nn.mixer import Context, MakeCache, MixerState
from heedful.nn.mixer_spec import LinformerSpec
from heedful.nn.positions import check_below
from heedful.nn.work import Saved, Work, weight_work


class Linformer(StoredApart):
    """Softmax attention whose keys and values are trained sums over a sequence.

    Args:
        width: model width D.
        spec: heads, number of sums, longest sequence.

    A capture may ask for `{address}.query` [B, H, L, E], for the sums as `.key` and `.value`
    [B, H, k, E], and for the attention weights over the sums as `.sums` [B, H, L, k].
    """

    def __init__(self, width: int, spec: LinformerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.head_width = spec.head_width or width // spec.num_heads
        inner = spec.num_heads * self.head_width
        maps = dict.fromkeys(("query", "key", "value"), inner)
        self.projection = FusedLinear(width, maps, bias=spec.bias, gain=1 / math.sqrt(2))
        heads = spec.num_heads if spec.sharing == "none" else 1
        names = ("key_sums",) if spec.sharing == "key_value" else ("key_sums", "value_sums")
        for name in names:
            # A sum of `length` independent terms keeps the variance of one term.
            weight = torch.randn(heads, spec.rank, spec.length) / math.sqrt(spec.length)
            self.register_parameter(name, nn.Parameter(weight))
        self.output = nn.Linear(inner, width, bias=spec.bias)
        nn.init.xavier_uniform_(self.output.weight)
        if spec.bias:
            nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Attend within x; see `Mixer`.

        Raises:
            ModelError: when a sequence is too long, or shares its row with another.
        """
        context = context or Context.whole(x)
        positions = context.positions.query
        self._check(context)
        q, k, v = (
            each.unflatten(-1, (self.spec.num_heads, -1)).transpose(1, 2)
            for each in self.projection(x)
        )
        k, v = self._sums(k, v, positions)
        for name, tensor in {"query": q, "key": k, "value": v}.items():
            context.offer(name, tensor)
        # No mask is needed: the sums leave out padding, and none of them is padding.
        scores = (q @ k.mT).float() / math.sqrt(self.head_width)
        weights = torch.softmax(scores, -1)
        context.offer("sums", weights)
        mixed = weights.to(v.dtype) @ v
        context.offer("context", mixed)
        merged = mixed.transpose(1, 2).flatten(-2)
        output: Tensor = self.output(merged.to(x.dtype))
        return output.view_as(x)

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> MixerState:
        """Refuse to decode token by token.

        Raises:
            ModelError: always, as each sum is over the whole sequence.
        """
        raise ModelError(
            "Linformer cannot go token by token: its sums are over the whole text",
            remedy="Use it in an encoder, and attention of another kind in a model that writes",
        )

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens of a sequence of `keys` tokens; see `Costed`."""
        heads, width, rank = self.spec.num_heads, self.head_width, self.spec.rank
        # A multiply-add is two operations, and keys and values have a sum each.
        sums = 2 * 2 * rank * keys * width
        return Work(
            weights=queries * weight_work(self.projection, self.output),
            attention=heads * (sums + 4 * queries * rank * width),
        )

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of queries, keys, values, their sums, outputs and weights."""
        inner, weights = self.spec.num_heads * self.head_width, self.spec.num_heads * self.spec.rank
        return Saved(5 * inner + (weights if mixed else 0), 0, weights)

    def _sums(self, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums [B, H, k, E] of keys and values [B, H, L, E]."""
        # No position exceeds the array's length, as a sequence counts its positions from 0.
        length = min(positions.shape[1], self.spec.length)
        # Summed by position, not by array index; padding goes to an extra slot that is cut off.
        slots = torch.where(positions >= 0, positions, length)[:, None, :, None]
        key_sums = self.get_parameter("key_sums")
        # The paper's key-value sharing: one matrix for both (section 4).
        shared = self.spec.sharing == "key_value"
        value_sums = key_sums if shared else self.get_parameter("value_sums")
        sums = []
        for each, weight in ((k, key_sums), (v, value_sums)):
            empty = each.new_zeros(*each.shape[:2], length + 1, each.shape[-1])
            placed = empty.scatter(2, slots.expand_as(each), each)[:, :, :length]
            sums.append(weight[:, :, :length].to(each.dtype) @ placed)
        return sums[0], sums[1]

    def _check(self, context: Context) -> None:
        positions, length = context.positions.query, self.spec.length
        if context.positions.query_segment is not None:
            raise ModelError(
                "Linformer cannot tell packed texts apart", remedy="Use one text in each row"
            )
        check_below(
            positions,
            length,
            f"the {length} tokens that Linformer has sums for",
            f"Use at most {length} tokens, or a model with a larger length",
        )
