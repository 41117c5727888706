"""Diverse beam search (Vijayakumar et al. 2018): groups of hypotheses that avoid each other.

Each group is searched like a sentence. In a step the groups of a sentence choose one after the
other. A token's score is reduced by the strength of the penalty for each hypothesis of an earlier
group that chose it in this step. The first group is a plain beam search. Only the choice is
penalised: a hypothesis keeps the probability that the model gives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.search.beam import live_candidates, num_ranked
from heedful.search.constraints import Moment
from heedful.search.search_settings import Hypothesis
from heedful.search.step_model import Beam, Candidates, best_candidates


@dataclass(frozen=True)
class DiverseGroups:
    """The `Selection` of a batch whose rows are the groups of each sentence, one after the other.

    Args:
        width: number of hypotheses of a group.
        eos: end token, which is never penalised: only hypotheses that live on penalise others.
        groups: number of groups of each sentence.
        strength: penalty, a difference of log-probabilities.
    """

    width: int
    eos: int
    groups: int
    strength: float

    def choose(self, logits: Tensor, logsumexp: Tensor, log_probs: Tensor, moment: Moment) -> Beam:
        # Rows are sentence · groups + group; some have left the search already.
        sentences = moment.sentences // self.groups
        size = (int(sentences.max()) + 1, logits.shape[-1])
        # Counted anew in each step: the Hamming diversity of the paper only compares equal
        # positions.
        penalty = torch.zeros(size, dtype=logits.dtype, device=logits.device)
        rows, chosen, alive = [], [], []
        for group in range(self.groups):
            own = (moment.sentences % self.groups == group).nonzero()[:, 0]
            if not len(own):  # all sentences of this group have left the search
                continue
            own_penalty = penalty[sentences[own]]
            scores = logits[own] - own_penalty[:, None]
            found = best_candidates(scores, logsumexp[own], log_probs[own], num_ranked(self.width))
            # The penalty only influences the choice: it is added back to the sums below.
            cost = own_penalty.gather(1, found.token)
            live = live_candidates(found, found.token == self.eos, self.width)
            live_cost = own_penalty.gather(1, live.token)
            rows.append(own)
            chosen.append(_without_penalty(found, cost))
            alive.append(_best_first(_without_penalty(live, live_cost)))
            # Entries that only fill up a beam have log-probability −∞, and penalise nothing.
            index = sentences[own][:, None].expand_as(live.token)
            amount = torch.where(live.log_prob > -math.inf, self.strength, 0.0).to(penalty.dtype)
            penalty.index_put_((index, live.token), amount, accumulate=True)
        # Results are in the order of groups, and the search wants them in the order of rows.
        order = torch.cat(rows).argsort()
        candidates, living = (
            Candidates(*(torch.cat(parts)[order] for parts in zip(*each, strict=True)))
            for each in (chosen, alive)
        )
        return Beam(candidates, candidates.token == self.eos, living, None, self)

    def keep(self, sentences: Tensor) -> DiverseGroups:
        return self


def _without_penalty(candidates: Candidates, cost: Tensor) -> Candidates:
    return candidates._replace(
        log_prob=candidates.log_prob + cost, token_score=candidates.token_score + cost
    )


def _best_first(candidates: Candidates) -> Candidates:
    """Sort candidates by log-probability, as the search expects of those that live on."""
    # The order differs without the penalty. The sort is stable, so that ties do not depend on the
    # device.
    order = candidates.log_prob.argsort(dim=1, descending=True, stable=True)
    return Candidates(*(values.gather(1, order) for values in candidates))


def merged_groups(results: Sequence[Sequence[Hypothesis]], groups: int) -> list[list[Hypothesis]]:
    """Merge the groups of each sentence: the best of every group, then the next of every group.

    Args:
        results: hypotheses of each group of each sentence, best first.
        groups: number of groups of each sentence.

    Returns:
        Hypotheses of each sentence, each sequence of tokens once; those of equal rank best first.
    """
    merged: list[list[Hypothesis]] = []
    for first in range(0, len(results), groups):
        own = results[first : first + groups]
        distinct: dict[tuple[int, ...], Hypothesis] = {}
        for rank in range(max(map(len, own))):
            ranked = [hypotheses[rank] for hypotheses in own if rank < len(hypotheses)]
            for hypothesis in sorted(ranked, key=lambda h: -h.normalized_score):
                # Of equal hypotheses the first has the best rank; a dictionary keeps it.
                distinct.setdefault(hypothesis.tokens, hypothesis)
        merged.append(list(distinct.values()))
    return merged
