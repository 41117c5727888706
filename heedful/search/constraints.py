"""Constraints on the next token: small rules on its scores.

A ban sets the scores of some tokens to −∞. A demand leaves a single token to all hypotheses of a
sentence and overrides every ban. Scores are never renormalised: a constrained hypothesis keeps the
probability that the model gives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heedful.search.search_settings import SearchSettings, Specials


@dataclass(frozen=True)
class Moment:
    """The step of a search, its sentences and their history.

    Args:
        step: number of tokens of every hypothesis so far.
        sentences: [B] int64, rows in the full batch of the sentences that are still searched.
        history: ids so far [B, W, step] int64; None where no rule needs them.
    """

    step: int
    sentences: Tensor
    history: Tensor | None


class Ban(Protocol):
    """A rule that forbids tokens."""

    def most(self) -> float:
        """Return the most tokens of a row that the rule may forbid."""

    def apply(self, scores: Tensor, moment: Moment) -> None:
        """Set forbidden entries of scores [B, W, V] to −∞, in place."""


class Demand(Protocol):
    """A rule that leaves no choice."""

    def demanded(self, moment: Moment) -> Tensor | None:
        """Return the demanded token of each sentence [B] int64, −1 or None for no demand."""


@dataclass(frozen=True)
class Never:
    """A `Ban` of tokens in every step."""

    tokens: tuple[int, ...]

    def most(self) -> float:
        return len(self.tokens)

    def apply(self, scores: Tensor, moment: Moment) -> None:
        for token in self.tokens:
            scores[..., token] = -math.inf


@dataclass(frozen=True)
class NeverHere:
    """A `Ban` of other tokens for each sentence, in every step.

    Args:
        tokens: banned tokens [B, n] int64 for the full batch, with repetitions.
    """

    tokens: Tensor

    @classmethod
    def of(cls, tokens: Sequence[Sequence[int]], banned: int, device: torch.device) -> NeverHere:
        """Build from lists of tokens, padded with `banned`, which is banned in any case."""
        size = max(map(len, tokens), default=0)
        rows = [[*row, *[banned] * (size - len(row))] for row in tokens]
        return cls(torch.tensor(rows, dtype=torch.int64, device=device))

    def most(self) -> float:
        return self.tokens.shape[1]

    def apply(self, scores: Tensor, moment: Moment) -> None:
        tokens = self.tokens[moment.sentences][:, None].expand(-1, scores.shape[1], -1)
        scores.scatter_(-1, tokens, -math.inf)


@dataclass(frozen=True)
class MinimumLength:
    """A `Ban` of the end token before `length` tokens.

    A hypothesis that can do nothing but end may do so: a stop string was found, or its grammar is
    at an end.
    """

    length: int
    eos: int

    def most(self) -> float:
        return 1

    def apply(self, scores: Tensor, moment: Moment) -> None:
        if moment.step < self.length:
            ending = scores[..., self.eos].clone()
            scores[..., self.eos] = -math.inf
            only = scores.amax(-1) == -math.inf
            scores[..., self.eos] = ending.masked_fill_(~only, -math.inf)


@dataclass(frozen=True)
class NoRepeatNgram:
    """A `Ban` of every token that would complete an n-gram which the hypothesis already has."""

    size: int

    def most(self) -> float:
        # There is no bound: a long history may have n-grams that end in any token.
        return math.inf

    def apply(self, scores: Tensor, moment: Moment) -> None:
        history = moment.history
        assert history is not None
        if moment.step < self.size:
            return
        ngrams = history.unfold(-1, self.size, 1)  # [B, W, step − size + 1, size]
        recent = history[..., moment.step - self.size + 1 :].unsqueeze(-2)  # [B, W, 1, size − 1]
        seen = (ngrams[..., :-1] == recent).all(-1)
        # A token may end several n-grams of which only one matches: the smallest decides.
        barrier = torch.full(seen.shape, math.inf, dtype=scores.dtype, device=scores.device)
        barrier.masked_fill_(seen, -math.inf)  # `torch.where` would wait for a GPU
        scores.scatter_reduce_(-1, ngrams[..., -1], barrier, "amin")


@dataclass(frozen=True)
class MaximumLength:
    """A `Demand` of the end token once hypotheses of a sentence have the most tokens allowed."""

    limits: Tensor
    eos: int
    shortest: int

    def demanded(self, moment: Moment) -> Tensor | None:
        # In most steps no sentence is at its limit, and `None` saves the work for all.
        if moment.step < self.shortest:
            return None
        full = self.limits[moment.sentences] <= moment.step
        return torch.full_like(moment.sentences, -1).masked_fill_(full, self.eos)


@dataclass(frozen=True)
class ForcedPrefix:
    """A `Demand` of the first tokens of each sentence.

    Args:
        tokens: prefixes [B, P] int64 for the full batch, −1 after the end of each.
    """

    tokens: Tensor

    def demanded(self, moment: Moment) -> Tensor | None:
        if moment.step >= self.tokens.shape[1]:
            return None
        return self.tokens[moment.sentences, moment.step]


@dataclass(frozen=True)
class Constraints:
    """The bans and demands of a search."""

    bans: tuple[Ban, ...]
    demands: tuple[Demand, ...]
    needs_history: bool
    eos: int

    def apply(self, scores: Tensor, moment: Moment) -> None:
        """Constrain the scores [B, W, V] of the next token, in place.

        A hypothesis whose tokens are all forbidden may end, whatever its length.
        """
        demanded = self._demanded(moment)
        # On a processor only rows with a demand are copied, which few sentences have in a step.
        if demanded is not None and scores.device.type != "cpu":
            self._apply_on_device(scores, moment, demanded)
            return
        exceptions: list[tuple[Tensor, Tensor, Tensor]] = []
        if demanded is not None:
            rows = (demanded >= 0).nonzero()[:, 0]
            tokens = demanded[rows]
            exceptions.append((rows, tokens, scores[rows, :, tokens]))  # before the bans touch them
        self._ban(scores, moment)
        for rows, tokens, values in exceptions:
            scores[rows] = -math.inf
            scores[rows, :, tokens] = values

    def _apply_on_device(self, scores: Tensor, moment: Moment, demanded: Tensor) -> None:
        """Constrain all rows alike: to select the rows of a demand would wait for a GPU."""
        # −1 is no index: such rows use token 0, whose own score is put back below.
        index = demanded.clamp(min=0)[:, None, None].expand(-1, scores.shape[1], 1)
        values = scores.gather(2, index)
        self._ban(scores, moment)
        scores.masked_fill_((demanded >= 0)[:, None, None], -math.inf)
        free = (demanded < 0)[:, None, None]
        scores.scatter_(2, index, torch.where(free, scores.gather(2, index), values))

    def _ban(self, scores: Tensor, moment: Moment) -> None:
        # Bans of fewer tokens than V cannot forbid all of them: nothing has to be copied then.
        may_be_stuck = sum(ban.most() for ban in self.bans) >= scores.shape[-1]
        ending = scores[..., self.eos].clone() if may_be_stuck else None
        for ban in self.bans:
            ban.apply(scores, moment)
        if ending is not None:
            stuck = scores.amax(-1) == -math.inf
            scores[..., self.eos] = torch.where(stuck, ending, scores[..., self.eos])

    def _demanded(self, moment: Moment) -> Tensor | None:
        result: Tensor | None = None
        for demand in self.demands:
            tokens = demand.demanded(moment)
            if tokens is not None:
                # Earlier demands win: a prefix may be longer than the limit.
                result = tokens if result is None else torch.where(result >= 0, result, tokens)
        return result


def build_constraints(
    settings: SearchSettings,
    specials: Specials,
    limits: Tensor,
    prefixes: Sequence[Sequence[int]] | None,
    forbidden: Sequence[Sequence[int]] = (),
) -> Constraints:
    """Return the rules of a search by its settings and prefixes.

    Args:
        settings: settings of the search.
        specials: special ids, of which pad and bos are never generated.
        limits: [B] int64, most tokens of each sentence, the end token not counted.
        prefixes: ids that each sentence must begin with.
        forbidden: ids that each sentence may not contain; empty if there are none.
    """
    # Minus eos: a model may begin and end sequences with the same token.
    bans: list[Ban] = [Never(tuple({specials.pad, specials.bos} - {specials.eos}))]
    if any(forbidden):
        bans.append(NeverHere.of(forbidden, specials.pad, limits.device))
    if settings.min_length:
        bans.append(MinimumLength(settings.min_length, specials.eos))
    if settings.no_repeat_ngram:
        bans.append(NoRepeatNgram(settings.no_repeat_ngram))
    demands: list[Demand] = []
    if prefixes is not None and any(map(len, prefixes)):
        rows = [torch.tensor(prefix, dtype=torch.int64) for prefix in prefixes]
        padded = pad_sequence(rows, batch_first=True, padding_value=-1)
        demands.append(ForcedPrefix(padded.to(limits.device)))
    # Added last, so that a forced prefix has precedence.
    demands.append(MaximumLength(limits, specials.eos, int(limits.min())))
    return Constraints(tuple(bans), tuple(demands), settings.no_repeat_ngram > 0, specials.eos)
