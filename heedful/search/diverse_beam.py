"""Diverse beam search (Vijayakumar et al. 2018): groups of hypotheses that avoid each other.

Each group is searched as a sentence of its own. At a step the groups choose one after the other,
and a token that earlier groups of the same sentence chose at this step costs a group the strength
of the penalty for each hypothesis that has it. The first group is a plain beam search. Only the
choice is penalised: a hypothesis has the probability that the model gives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.search.beam_selection import Beam, live_candidates, looked_at
from heedful.search.constraints import Moment
from heedful.search.search_settings import Hypothesis
from heedful.search.step_model import Candidates, best_candidates


@dataclass(frozen=True)
class DiverseGroups:
    """The selection of a batch whose rows are the groups of each sentence, one after the other.

    Args:
        width: hypotheses of a group.
        eos: the end token, which costs nothing: only those that live on cost others.
        groups: of each sentence.
        strength: of the penalty, a difference of log-probabilities.
    """

    width: int
    eos: int
    groups: int
    strength: float

    def choose(self, logits: Tensor, excess: Tensor, totals: Tensor, moment: Moment) -> Beam:
        """See `Selection`."""
        sentences = moment.sentences // self.groups
        size = (int(sentences.max()) + 1, logits.shape[-1])
        penalty = torch.zeros(size, dtype=logits.dtype, device=logits.device)
        rows, chosen, alive = [], [], []
        for group in range(self.groups):
            own = (moment.sentences % self.groups == group).nonzero()[:, 0]
            if not len(own):
                continue
            own_penalty = penalty[sentences[own]]
            scores = logits[own] - own_penalty[:, None]
            found = best_candidates(scores, excess[own], totals[own], looked_at(self.width))
            cost = own_penalty.gather(1, found.token)
            live = live_candidates(found, found.token == self.eos, self.width)
            live_cost = own_penalty.gather(1, live.token)
            rows.append(own)
            chosen.append(_without_penalty(found, cost))
            alive.append(_best_first(_without_penalty(live, live_cost)))
            index = sentences[own][:, None].expand_as(live.token)
            amount = torch.where(live.total > -math.inf, self.strength, 0.0).to(penalty.dtype)
            penalty.index_put_((index, live.token), amount, accumulate=True)
        order = torch.cat(rows).argsort()
        candidates, living = (
            Candidates(*(torch.cat(parts)[order] for parts in zip(*each, strict=True)))
            for each in (chosen, alive)
        )
        return Beam(candidates, candidates.token == self.eos, living, None, self)

    def keep(self, sentences: Tensor) -> DiverseGroups:
        """See `Selection`."""
        return self


def _without_penalty(candidates: Candidates, cost: Tensor) -> Candidates:
    return candidates._replace(
        total=candidates.total + cost, token_score=candidates.token_score + cost
    )


def _best_first(candidates: Candidates) -> Candidates:
    """The search takes the first of those that live on for the most probable."""
    order = candidates.total.argsort(dim=1, descending=True, stable=True)
    return Candidates(*(values.gather(1, order) for values in candidates))


def merged_groups(results: Sequence[Sequence[Hypothesis]], groups: int) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence: the best of every group, then the next of every group.

    Args:
        results: of each group of each sentence, best first.
        groups: of each sentence.

    Returns:
        For each sentence; those of one rank best first, each sequence of tokens once.
    """
    merged: list[list[Hypothesis]] = []
    for first in range(0, len(results), groups):
        own = results[first : first + groups]
        distinct: dict[tuple[int, ...], Hypothesis] = {}
        for rank in range(max(map(len, own))):
            ranked = [hypotheses[rank] for hypotheses in own if rank < len(hypotheses)]
            for hypothesis in sorted(ranked, key=lambda h: -h.normalized_score):
                distinct.setdefault(hypothesis.tokens, hypothesis)
        merged.append(list(distinct.values()))
    return merged
