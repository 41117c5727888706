"""Constraints on the next token: small rules on its scores.

A ban sets some tokens of a row to −∞. A demand leaves one token of a sentence's rows and wins over
every ban. Scores are never renormalised: a constrained hypothesis has the probability the model
gives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from heedful.search.search_settings import SearchSettings, Specials


@dataclass(frozen=True)
class Moment:
    """The step of a search, its sentences and their history.

    Args:
        step: tokens every hypothesis has so far.
        sentences: [B] int64, row numbers of the sentences still searched in the full batch.
        history: ids so far [B, W, step] int64, when a rule needs them.
    """

    step: int
    sentences: Tensor
    history: Tensor | None


class Ban(Protocol):
    """Forbids tokens."""

    def most(self) -> float:
        """The most tokens of a row that the rule forbids."""

    def apply(self, scores: Tensor, moment: Moment) -> None:
        """Set forbidden entries of scores [B, W, V] to −∞, in place."""


class Demand(Protocol):
    """Leaves no choice."""

    def demanded(self, moment: Moment) -> Tensor | None:
        """The one token allowed for each sentence [B] int64, −1 where all are; None for all."""


@dataclass(frozen=True)
class Never:
    """Bans tokens for good."""

    tokens: tuple[int, ...]

    def most(self) -> float:
        """See `Ban`."""
        return len(self.tokens)

    def apply(self, scores: Tensor, moment: Moment) -> None:
        """See `Ban`."""
        for token in self.tokens:
            scores[..., token] = -math.inf


@dataclass(frozen=True)
class NeverHere:
    """Bans tokens of its own for each sentence.

    Args:
        tokens: [B, n] int64 for the full batch, which may repeat.
    """

    tokens: Tensor

    @classmethod
    def of(cls, tokens: Sequence[Sequence[int]], banned: int, device: torch.device) -> NeverHere:
        """Build from lists, which one token that is banned in any case makes as long."""
        size = max(map(len, tokens), default=0)
        rows = [[*row, *[banned] * (size - len(row))] for row in tokens]
        return cls(torch.tensor(rows, dtype=torch.int64, device=device))

    def most(self) -> float:
        """See `Ban`."""
        return self.tokens.shape[1]

    def apply(self, scores: Tensor, moment: Moment) -> None:
        """See `Ban`."""
        tokens = self.tokens[moment.sentences][:, None].expand(-1, scores.shape[1], -1)
        scores.scatter_(-1, tokens, -math.inf)


@dataclass(frozen=True)
class MinimumLength:
    """Bans the end token before `length` tokens."""

    length: int
    eos: int

    def most(self) -> float:
        """See `Ban`."""
        return 1

    def apply(self, scores: Tensor, moment: Moment) -> None:
        """See `Ban`."""
        if moment.step < self.length:
            scores[..., self.eos] = -math.inf


@dataclass(frozen=True)
class NoRepeatNgram:
    """Bans every token that would complete an n-gram the hypothesis holds already."""

    size: int

    def most(self) -> float:
        """See `Ban`."""
        return math.inf

    def apply(self, scores: Tensor, moment: Moment) -> None:
        """See `Ban`."""
        history = moment.history
        assert history is not None
        if moment.step < self.size:
            return
        ngrams = history.unfold(-1, self.size, 1)  # [B, W, step − size + 1, size]
        recent = history[..., moment.step - self.size + 1 :].unsqueeze(-2)
        seen = (ngrams[..., :-1] == recent).all(-1)
        # A token may end several n-grams of which only one matches: the smallest decides.
        barrier = torch.full(seen.shape, math.inf, dtype=scores.dtype, device=scores.device)
        barrier.masked_fill_(seen, -math.inf)  # `torch.where` would wait for a GPU
        scores.scatter_reduce_(-1, ngrams[..., -1], barrier, "amin")


@dataclass(frozen=True)
class MaximumLength:
    """Demands the end token once a sentence's hypotheses have all the tokens they may have."""

    limits: Tensor
    eos: int
    shortest: int

    def demanded(self, moment: Moment) -> Tensor | None:
        """See `Demand`."""
        if moment.step < self.shortest:
            return None
        full = self.limits[moment.sentences] <= moment.step
        return torch.full_like(moment.sentences, -1).masked_fill_(full, self.eos)


@dataclass(frozen=True)
class ForcedPrefix:
    """Demands each sentence's first tokens.

    Args:
        tokens: [B, P] int64 for the full batch, −1 from the end of a sentence's prefix on.
    """

    tokens: Tensor

    def demanded(self, moment: Moment) -> Tensor | None:
        """See `Demand`."""
        if moment.step >= self.tokens.shape[1]:
            return None
        return self.tokens[moment.sentences, moment.step]


@dataclass(frozen=True)
class Constraints:
    """All the rules of a search."""

    bans: tuple[Ban, ...]
    demands: tuple[Demand, ...]
    needs_history: bool
    eos: int

    def apply(self, scores: Tensor, moment: Moment) -> None:
        """Constrain the scores [B, W, V] of the next token, in place.

        A hypothesis that may not be continued by any token may end, whatever its length.
        """
        demanded = self._demanded(moment)
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
        """Do the same for all rows alike: to find those of a demand would wait for a GPU."""
        index = demanded.clamp(min=0)[:, None, None].expand(-1, scores.shape[1], 1)
        values = scores.gather(2, index)
        self._ban(scores, moment)
        scores.masked_fill_((demanded >= 0)[:, None, None], -math.inf)
        free = (demanded < 0)[:, None, None]
        scores.scatter_(2, index, torch.where(free, scores.gather(2, index), values))

    def _ban(self, scores: Tensor, moment: Moment) -> None:
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
                result = tokens if result is None else torch.where(result >= 0, result, tokens)
        return result


def build_constraints(
    settings: SearchSettings,
    specials: Specials,
    limits: Tensor,
    prefixes: Sequence[Sequence[int]] | None,
    forbidden: Sequence[Sequence[int]] = (),
) -> Constraints:
    """The rules that settings and prefixes stand for.

    Args:
        settings: of the search.
        specials: pad and bos are never generated.
        limits: [B] int64, the most tokens of each sentence, end token not counted.
        prefixes: ids each sentence must begin with.
        forbidden: ids that each sentence may not contain; none have any if it is empty.
    """
    # A model may begin and end sequences with one and the same token.
    bans: list[Ban] = [Never(tuple({specials.pad, specials.bos} - {specials.eos}))]
    if any(forbidden):
        bans.append(NeverHere.of(forbidden, specials.pad, limits.device))
    if settings.min_length:
        bans.append(MinimumLength(settings.min_length, specials.eos))
    if settings.no_repeat_ngram:
        bans.append(NoRepeatNgram(settings.no_repeat_ngram))
    demands: list[Demand] = []
    if prefixes is not None and any(map(len, prefixes)):
        demands.append(ForcedPrefix(_padded(prefixes).to(limits.device)))
    demands.append(MaximumLength(limits, specials.eos, int(limits.min())))
    return Constraints(tuple(bans), tuple(demands), settings.no_repeat_ngram > 0, specials.eos)


def _padded(prefixes: Sequence[Sequence[int]]) -> Tensor:
    padded = torch.full((len(prefixes), max(map(len, prefixes))), -1, dtype=torch.int64)
    for row, prefix in zip(padded, prefixes, strict=True):
        row[: len(prefix)] = torch.tensor(prefix, dtype=torch.int64)
    return padded
