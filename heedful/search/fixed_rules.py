"""Constraints for a search that runs as a graph, whose step is a tensor on the device.

They have the same results as `constraints`. The step and the data of the sentences are tensors at
fixed addresses; everything else is part of the graph. `torch.where` gets tensors only: it would
copy a Python number to the GPU and wait.

Shapes: R rows of a graph, W hypotheses of each, T steps that fit into it, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.search.constraints import (
    Constraints,
    ForcedPrefix,
    MaximumLength,
    MinimumLength,
    Never,
    NeverHere,
    NoRepeatNgram,
)


@dataclass(frozen=True)
class FixedRules:
    """The rules of a search that a graph can hold.

    Args:
        eos: the end token.
        never: tokens that are banned in every step.
        min_length: number of tokens before the end token is allowed.
        ngram: size of the n-grams that no hypothesis repeats; 0 without such a rule.
        never_here: banned tokens of each sentence [B, n] int64; None without such a rule.
        prefix: first tokens of each sentence, then −1, [B, P] int64; None without such a rule.
    """

    eos: int
    never: tuple[int, ...]
    min_length: int
    ngram: int
    never_here: Tensor | None
    prefix: Tensor | None

    @classmethod
    def of(cls, rules: Constraints) -> FixedRules | None:
        """Build from the rules of a search; None if a graph cannot hold one of them."""
        never: tuple[int, ...] = ()
        min_length, ngram, never_here, prefix = 0, 0, None, None
        for ban in rules.bans:
            # Rules are recognised by class: an unknown rule is never dropped, but sends the search
            # to the host.
            if isinstance(ban, Never):
                never += ban.tokens
            elif isinstance(ban, MinimumLength):
                min_length = max(min_length, ban.length)
            elif isinstance(ban, NoRepeatNgram) and not ngram:
                ngram = ban.size
            elif isinstance(ban, NeverHere) and never_here is None:
                never_here = ban.tokens
            else:
                return None
        for demand in rules.demands:
            if isinstance(demand, ForcedPrefix):
                prefix = demand.tokens
            elif not isinstance(demand, MaximumLength):  # every search has it, as `limits`
                return None
        return cls(rules.eos, never, min_length, ngram, never_here, prefix)

    @property
    def key(self) -> Hashable:
        """The part of the rules that is fixed in a graph; tensors are data of each search."""
        here = 0 if self.never_here is None else self.never_here.shape[1]
        return self.eos, self.never, self.min_length, self.ngram, here, self.prefix is not None


class RuleRows:
    """The rules of the sentences in a graph of sizes R, W and T.

    Attributes:
        limits: [R] int64, most tokens of each sentence, the end token not counted.
    """

    def __init__(
        self, rules: FixedRules, shape: tuple[int, int, int], device: torch.device
    ) -> None:
        rows, _, steps = shape
        self._eos, self._never, self._min_length = rules.eos, rules.never, rules.min_length
        self.limits = torch.zeros(rows, dtype=torch.int64, device=device)
        self._here: Tensor | None = None
        self._prefix: Tensor | None = None
        if rules.never_here is not None:
            count = rules.never_here.shape[1]
            self._here = torch.zeros((rows, count), dtype=torch.int64, device=device)
        if rules.prefix is not None:
            self._prefix = torch.full((rows, steps), -1, dtype=torch.int64, device=device)
        # `unfold` refuses a size larger than the history, in which nothing can repeat.
        self._ngram = min(rules.ngram, steps)
        self._history: Tensor | None = None
        if rules.ngram:
            self._history = torch.full(shape, -1, dtype=torch.int64, device=device)
        # The most tokens that bans can forbid: below V no hypothesis can be stuck.
        banned = len(rules.never) + (rules.min_length > 0)
        banned += 0 if self._here is None else self._here.shape[1]
        self._most = math.inf if rules.ngram else banned

    def load(self, rules: FixedRules, limits: Tensor, sentences: Tensor) -> None:
        """Copy limits and data of at most R sentences [B'], by their indices in the full batch."""
        count = len(sentences)
        # Empty rows have a limit of 0, so they end in every step.
        self.limits.zero_()
        self.limits[:count] = limits.index_select(0, sentences)
        if self._here is not None and rules.never_here is not None:
            self._here[:count] = rules.never_here.index_select(0, sentences)
        if self._prefix is not None and rules.prefix is not None:
            self._prefix.fill_(-1)
            length = min(self._prefix.shape[1], rules.prefix.shape[1])
            self._prefix[:count, :length] = rules.prefix[:, :length].index_select(0, sentences)

    def clear(self) -> None:
        """Reset the history of all hypotheses."""
        if self._history is not None:
            self._history.fill_(-1)

    def take(self, other: RuleRows, rows: Tensor) -> None:
        """Copy the history of some rows [B'] of another graph."""
        mine, its = self._history, other._history
        if mine is None or its is None:
            return
        steps = min(mine.shape[2], its.shape[2])
        mine[: len(rows), :, :steps] = its[..., :steps].index_select(0, rows)

    def remember(self, tokens: Tensor, parents: Tensor | None, step: Tensor) -> None:
        """Append the tokens of this step [R, W] to the hypotheses [R, W] that they continue."""
        if self._history is None:
            return
        if parents is not None:
            index = parents[..., None].expand_as(self._history)
            self._history.copy_(self._history.gather(1, index))
        self._history.index_copy_(2, step, tokens[..., None])

    def apply(self, scores: Tensor, step: Tensor) -> None:
        """Constrain logits or log-probabilities [R, W, V] in place; see `Constraints.apply`."""
        # −1: no demand. The prefix comes second, as it has precedence over the limit.
        demanded = torch.full_like(self.limits, -1)
        demanded.masked_fill_(self.limits <= step, self._eos)
        if self._prefix is not None:
            # Past the prefix there is −1 up to T, so the index is always inside.
            first = self._prefix.index_select(1, step)[:, 0]
            demanded = torch.where(first >= 0, first, demanded)
        # Score of the demanded token from before the bans, which a demand overrides.
        index = demanded.clamp(min=0)[:, None, None].expand(-1, scores.shape[1], 1)
        value = scores.gather(2, index)
        self._ban(scores, step)
        forced = (demanded >= 0)[:, None, None]
        scores.masked_fill_(forced, -math.inf)
        scores.scatter_(2, index, torch.where(forced, value, scores.gather(2, index)))

    def _ban(self, scores: Tensor, step: Tensor) -> None:
        # The end token is kept apart: bans of it and its return are decided on the device.
        before = scores[..., self._eos].clone()
        for token in self._never:
            scores[..., token].fill_(-math.inf)
        if self._here is not None:
            here = self._here[:, None].expand(-1, scores.shape[1], -1)
            scores.scatter_(2, here, -math.inf)
        if self._history is not None:
            self._ban_ngrams(scores, self._history, step)
        end = scores[..., self._eos].clone()
        if self._min_length:
            end.masked_fill_(step < self._min_length, -math.inf)
        if self._most >= scores.shape[2]:  # a hypothesis that is stuck may end
            scores[..., self._eos] = end
            end = torch.where(scores.amax(-1) == -math.inf, before, end)
        scores[..., self._eos] = end

    def _ban_ngrams(self, scores: Tensor, history: Tensor, step: Tensor) -> None:
        """See `NoRepeatNgram`; past the step there are no tokens, and no n-grams."""
        size = self._ngram
        ngrams = history.unfold(-1, size, 1)  # [R, W, T − size + 1, size]
        # In the first steps these places are negative; `first <= step - size` drops the result.
        latest = step - (size - 1) + torch.arange(size - 1, device=step.device)
        recent = history.index_select(2, latest.clamp(min=0)).unsqueeze(-2)
        # Places after the step hold −1 or an older history, so matches there do not count.
        first = torch.arange(ngrams.shape[2], device=step.device)
        seen = (ngrams[..., :-1] == recent).all(-1) & (first <= step - size)
        barrier = torch.full(seen.shape, math.inf, dtype=scores.dtype, device=scores.device)
        barrier.masked_fill_(seen, -math.inf)
        scores.scatter_reduce_(-1, ngrams[..., -1].clamp(min=0), barrier, "amin")
