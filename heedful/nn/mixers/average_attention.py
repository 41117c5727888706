"""Average attention: every token so far has the same weight (Zhang, Xiong and Su 2018).

The self-attention of a decoder is approximated by the plain average of its inputs, transformed by
a feed-forward network and weighted by a gate. A step needs only the sum so far.

Shapes: L length, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.nn.feedforward import FeedForward
from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import AverageAttentionSpec
from heedful.nn.mixers.linear_scan import LinearRecurrence
from heedful.nn.spec import FeedForwardSpec
from heedful.nn.work import Saved, Work, weight_work


class AverageAttention(LinearRecurrence):
    """Running averages of a sequence, a feed-forward network and a gate.

    Args:
        width: model width D.
        spec: inner width of the network, and use of the gate.

    A capture may ask for `{address}.average` [..., D], and `.gate` [..., 2 D], the shares of the
    token and of the average.
    """

    def __init__(self, width: int, spec: AverageAttentionSpec) -> None:
        super().__init__()
        self.state_width = width + 1  # the sum of the tokens, and their count
        inner = spec.inner_width(width)
        self.network = FeedForward(width, FeedForwardSpec(width=inner)) if inner else None
        self.gate = nn.Linear(2 * width, 2 * width) if spec.gate else None
        if self.gate is not None:
            nn.init.xavier_uniform_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return decays of 1 and the token with a count of 1; see `LinearRecurrence`."""
        # Float32: a bfloat16 count would stop at 256, where adding 1 no longer changes it.
        value = torch.cat([x.float(), x.new_ones(*x.shape[:-1], 1).float()], -1)
        return torch.ones_like(value), value

    def result(self, x: Tensor, state: Tensor, context: Context) -> Tensor:
        """Return the gated sum of a token and the average up to it."""
        # Divided by the count and not by the position: padding is neither in the sum nor in the
        # count.
        average = (state[..., :-1] / state[..., -1:].clamp(min=1)).to(x.dtype)
        context.offer("average", average)
        if self.network is not None:
            average = self.network(average)
        if self.gate is None:
            return average
        gates = torch.sigmoid(self.gate(torch.cat([x, average], -1)))
        context.offer("gate", gates)
        # Input and forget gate of the paper, which need not sum to 1.
        of_token, of_average = gates.chunk(2, -1)
        return of_token * x + of_average * average

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens, independent of earlier tokens; see `Costed`."""
        parts = [part for part in (self.network, self.gate) if part is not None]
        return Work(weights=queries * weight_work(*parts))

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of sums, decays, average, network and both gates."""
        width = self.state_width - 1
        kept = Saved(width, 0, 2 * width)
        if self.network is not None:
            inner = self.network.saved(length, mixed=mixed, shared_bias=shared_bias)
            kept = kept.plus(inner).plus(Saved(width))
        return kept if self.gate is None else kept.plus(Saved(4 * width))
