"""A mixture of experts: many feed-forward networks, of which each token uses a few.

A router scores the experts for every token; the best few process it, and their outputs are summed
with the router's weights (Shazeer 2017; Fedus 2021). No token is dropped and no expert has a limit,
so a token's output does not depend on its neighbours. Tokens are sorted by expert, and each expert
makes one pass over its tokens. Padding is not routed: it costs nothing and counts for nothing.

A router without further loss sends most tokens to a few experts, so training adds a loss that grows
with imbalance. The layer computes it, and the objective adds it. Between them it is not stored in
the module but offered to the `Capture` of the pass, at these addresses (`…` is the block, such as
`encoder.3`):

    ….feedforward.balance   0-dim; X · Σ (share of tokens · mean probability) over experts: A when
                            experts are used alike, X when all tokens go to the same
    ….feedforward.penalty   0-dim; the balance times its weight, a term of the mean loss
    ….feedforward.routing   [B, L, X]; the weight of every expert in every token's output

An objective passes `Capture([PENALTIES])` to the model and adds `penalty(capture)`, the sum over
layers, to its loss per token. Without a capture nothing is computed; the output is the same.

Legend: X experts, A of them for each token, T tokens that are no padding, B batch, L length,
D model width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.device import full_precision
from heedful.nn.capture import Capture
from heedful.nn.feedforward import FeedForward
from heedful.nn.mixer import Context
from heedful.nn.spec import FeedForwardSpec
from heedful.nn.work import Saved, Work, weight_work

PENALTIES = "**.penalty"
"""The addresses of all terms that layers add to the loss in training."""


def penalty(capture: Capture) -> Tensor | float:
    """Return the sum of the terms that layers add to the mean loss of a token; 0 for none.

    Args:
        capture: capture of `PENALTIES`, after the pass.
    """
    results = [value for address, value in capture.found.items() if address.endswith(".penalty")]
    return torch.stack(results).sum() if results else 0.0


@dataclass(frozen=True)
class Routes:
    """The experts of each token, and the weights of their outputs.

    Args:
        probabilities: [T, X] float32, softmax over all experts.
        experts: [T, A] int64, chosen experts, the best first.
        weights: [T, A] float32, weights of the chosen experts' outputs.
    """

    probabilities: Tensor
    experts: Tensor
    weights: Tensor

    def balance(self) -> Tensor:
        """Return the load-balancing loss, 0-dim float32 (Fedus 2021, equation 4).

        Shares of tokens are counts without gradient; the probabilities have one.
        """
        tokens, num_experts = self.probabilities.shape
        if not tokens:
            # The value is zero, but part of the graph:
            # every process needs a gradient of the router.
            return self.probabilities.sum()
        counts = torch.bincount(self.experts.flatten(), minlength=num_experts)
        return num_experts * (counts / tokens * self.probabilities.mean(0)).sum()

    def dense(self) -> Tensor:
        """Return the weight of every expert, [T, X] float32, 0 for those not chosen."""
        return torch.zeros_like(self.probabilities).scatter(1, self.experts, self.weights)


class Router(nn.Linear):
    """The linear map that scores the experts.

    Engines exchange other linear layers for faster ones but not this one, as rounding could change
    which experts are chosen.
    """


class MixtureOfExperts(nn.Module):
    """A router and its experts, in the place of one feed-forward network.

    Args:
        width: model width D.
        spec: spec of each expert, whose `experts` are set.
    """

    adds_penalty = True

    def __init__(self, width: int, spec: FeedForwardSpec) -> None:
        super().__init__()
        experts = spec.experts
        assert experts is not None
        self.per_token = experts.per_token
        self.renormalize = experts.renormalize
        self.balance_weight = experts.balance_weight
        self.scale = experts.scale
        self.num_groups, self.groups_per_token = experts.num_groups, experts.groups_per_token
        self.router = Router(width, experts.num_experts, bias=False)
        nn.init.xavier_uniform_(self.router.weight)
        # A buffer: it balances the loads without a gradient (DeepSeek V3, section 2.1.2).
        by_sigmoid = experts.scoring == "sigmoid"
        self.choice_bias = nn.Buffer(torch.zeros(experts.num_experts)) if by_sigmoid else None
        self.shared = None
        if experts.shared_width is not None:
            inner = {"width": experts.shared_width, "experts": None}
            self.shared = FeedForward(width, spec.model_copy(update=inner))
        self.experts = nn.ModuleList(FeedForward(width, spec) for _ in range(experts.num_experts))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Transform every token by its experts.

        Args:
            x: [B, L, D].
            context: positions of x, −1 for padding; its capture may ask for the addresses at the
                top of this file.

        Returns:
            [B, L, D]; zeros for padding.
        """
        positions = context.positions.query.reshape(x.shape[:2])
        # The host reads the number of real tokens and the loads of the experts, so layers with
        # experts stay out of CUDA graphs.
        real = (positions >= 0).flatten().nonzero().squeeze(1)
        tokens = x.flatten(0, 1).index_select(0, real)
        routes = self.route(tokens)
        mixed = self._mix(tokens, routes)
        if self.shared is not None:
            mixed = mixed + self.shared(tokens)
        if context.capture is not None:
            self._capture(routes, real, positions, context)
        result = mixed.new_zeros(positions.numel(), x.shape[-1]).index_copy(0, real, mixed)
        return result.view_as(x)

    def route(self, tokens: Tensor) -> Routes:
        """Choose the experts of tokens [T, D], in float32, as rounding could decide a near tie."""
        with full_precision(tokens):
            logits = F.linear(tokens.float(), self.router.weight.float())
        scores = logits.softmax(-1) if self.choice_bias is None else logits.sigmoid()
        experts = self._choice(scores).topk(self.per_token, dim=-1).indices
        weights = scores.gather(-1, experts)
        # As in Mixtral (Jiang 2024). Switch keeps the probability: with a single expert it gives
        # the router its only gradient (Fedus 2021).
        if self.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        shares = scores if self.choice_bias is None else scores / scores.sum(-1, keepdim=True)
        return Routes(shares, experts, weights * self.scale)

    def _choice(self, scores: Tensor) -> Tensor:
        """Return scores [T, X] by which experts are chosen, −∞ outside of the best groups."""
        if self.choice_bias is not None:
            scores = scores + self.choice_bias
        if self.num_groups == 1:
            return scores
        groups = scores.unflatten(-1, (self.num_groups, -1))
        # DeepSeek V2 ranks groups by their best expert, V3 by the sum of the best two.
        count = 1 if self.choice_bias is None else min(2, groups.shape[-1])
        ranks = groups.topk(count, dim=-1).values.sum(-1)
        best = ranks.topk(self.groups_per_token, dim=-1).indices
        hidden = torch.ones_like(ranks, dtype=torch.bool).scatter(-1, best, False)
        choice: Tensor = groups.masked_fill(hidden[..., None], -math.inf)
        return choice.flatten(-2)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens in the router and in the experts of each."""
        expert = self._expert.work(queries, keys).times(self.per_token)
        if self.shared is not None:
            expert = expert + self.shared.work(queries, keys)
        return expert + Work(weights=queries * weight_work(self.router))

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements kept by one expert; see `Costed`."""
        kept = self._expert.saved(length, mixed=mixed, shared_bias=shared_bias)
        if self.shared is None:
            return kept
        return kept.plus(self.shared.saved(length, mixed=mixed, shared_bias=shared_bias))

    @property
    def peak_numbers(self) -> int:
        """The largest number of elements of a token that one expert has in memory at once."""
        return self._expert.peak_numbers

    @property
    def _expert(self) -> FeedForward:
        return cast("FeedForward", self.experts[0])

    def _mix(self, tokens: Tensor, routes: Routes) -> Tensor:
        """Return the weighted sum [T, D] of the outputs of each token's experts."""
        # Entries of [T · A], sorted by expert, so that each expert is one matmul of its tokens;
        # entry i belongs to token i // A.
        order = routes.experts.flatten().argsort(stable=True)
        counts = torch.bincount(routes.experts.flatten(), minlength=len(self.experts)).tolist()
        grouped = tokens.index_select(0, order // self.per_token).split(counts)
        # In training an idle expert processes an empty batch, so that it has a gradient of zeros
        # and every process of a distributed run has the same set of gradients.
        parts = [
            expert(part)
            for expert, part in zip(self.experts, grouped, strict=True)
            if len(part) or self.training
        ]
        if not parts:
            return torch.zeros_like(tokens)
        # The argsort of a permutation is its inverse: back to the order of [T · A].
        outputs = torch.cat(parts).index_select(0, order.argsort())
        outputs = outputs.view(*routes.weights.shape, tokens.shape[-1])
        return (outputs * routes.weights[..., None].to(outputs.dtype)).sum(1)

    def _capture(self, routes: Routes, real: Tensor, positions: Tensor, context: Context) -> None:
        if context.wants("balance"):
            context.keep("balance", routes.balance())
        if context.wants("penalty"):
            context.keep("penalty", self.balance_weight * routes.balance())
        if context.wants("routing"):
            dense = routes.dense()
            routing = dense.new_zeros(positions.numel(), dense.shape[-1])
            shape = (*positions.shape, dense.shape[-1])
            context.keep("routing", routing.index_copy(0, real, dense).view(shape))
