"""Beam search over a batch of sentences; greedy search is the beam of width 1.

Every step looks at the 2 W best continuations of a sentence's W live hypotheses. Those that end are
finished hypotheses, of which the best by normalised score are kept; the W best of the others live
on. With a beam of 1 only the single best continuation is looked at, so that the search ends at the
first end token, which is what greedy means.

When a sentence is done: let s be the summed log-probability of its best live hypothesis, M the most
tokens it may have with its end token, and norm(n) = ((5 + n) / 6)^α the length norm. Continuing a
hypothesis only adds log-probabilities, which are at most 0, and norm grows with n because α ≥ 0. So
no hypothesis that is still to come can rank above s / norm(M). As soon as the worst hypothesis that
would be returned reaches that bound, going on cannot change the result, and the sentence leaves the
batch.

Others may join: sentences that begin later make their first step by themselves and then stand under
those that are searched already. They are as far as they are, each with its own length, so that what
is found for a sentence does not depend on whose steps it shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Generic, cast

import torch
from torch import Tensor

from heedful.decode.candidates import Candidates, best_candidates, log_totals
from heedful.decode.constraints import Constraints, Moment
from heedful.decode.endings import Endings, Trellis
from heedful.decode.length_norm import length_norm
from heedful.decode.protocol import Hypothesis, JoinableModel, Specials, State, StepModel
from heedful.decode.settings import SearchSettings
from heedful.decode.trace import SearchTrace


class Cohort:
    """Sentences that begin together, and what is known of them alone.

    Args:
        rules: what may be generated.
        limits: most tokens of each sentence, end token not counted.
        width: the most live hypotheses of each.
        device: of the search.
    """

    def __init__(
        self, rules: Constraints, limits: Sequence[int], width: int, device: torch.device
    ) -> None:
        self.rules = rules
        self.cuts = frozenset(limits)
        self.sentences = torch.arange(len(limits), device=device)
        self.age = 0
        self.history: Tensor | None = None
        if rules.needs_history:
            self.history = self.sentences.new_empty((len(limits), 1, 0))
        self.trellis = Trellis(len(limits), width)
        self._left: list[tuple[Tensor, Endings]] = []

    @property
    def alive(self) -> int:
        """How many sentences are still searched."""
        return len(self.sentences)

    def grow(self, live: Candidates) -> None:
        """One more token of each hypothesis that goes on ([B, W] each)."""
        self.trellis.add(self.sentences, live)
        if self.history is not None:
            rows = _rows(live.parent, self.history.shape[1])
            past = self.history.flatten(0, 1).index_select(0, rows.flatten())
            past = past.view(*rows.shape, self.age)
            self.history = torch.cat([past, live.token[..., None]], -1)
        self.age += 1

    def leave(self, staying: Tensor, best: Endings) -> None:
        """Some sentences are done.

        Args:
            staying: [B] bool, those that are not.
            best: [B, K], what of each has ended.
        """
        gone = ~staying
        self._left.append((self.sentences[gone], best.of(gone)))
        self.sentences = self.sentences[staying]
        self.history = None if self.history is None else self.history[staying]

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Of each sentence, best first, once none is alive."""
        order = torch.cat([sentences for sentences, _ in self._left]).argsort()
        best = Endings(*map(torch.cat, zip(*(each for _, each in self._left), strict=True)))
        return self.trellis.read(best.of(order))


@dataclass(frozen=True)
class _Live(Generic[State]):
    """The sentences that are searched, those of each cohort together.

    Args:
        state: of the model.
        cohorts: whose they are.
        tokens: [B, W] int64, the latest of each hypothesis.
        totals: [B, W] float64, summed log-probabilities.
        lengths: [B] int64, tokens of each hypothesis.
        limits: [B] int64, the most there may be.
        longest_norms: [B] float64, the length norm of so many.
        best: [B, K], what has ended.
    """

    state: State
    cohorts: tuple[Cohort, ...]
    tokens: Tensor
    totals: Tensor
    lengths: Tensor
    limits: Tensor
    longest_norms: Tensor
    best: Endings

    def slices(self) -> list[tuple[Cohort, slice]]:
        """Each cohort with its rows."""
        edges = accumulate((cohort.alive for cohort in self.cohorts), initial=0)
        return [
            (cohort, slice(*pair))
            for cohort, pair in zip(self.cohorts, pairwise(edges), strict=True)
        ]


class BeamSearch(Generic[State]):
    """A search that sentences leave when they are done and that others may join.

    Args:
        model: to search in; a `JoinableModel` if some are to join others.
        settings: of the search.
        specials: ids of the beginning and the end of a sequence.
        trace: told of every step of a search that nobody joins.
    """

    def __init__(
        self,
        model: StepModel[State],
        settings: SearchSettings,
        specials: Specials,
        trace: SearchTrace | None = None,
    ) -> None:
        self.model = model
        self.width = settings.beam
        self.kept = self.width if settings.coverage_penalty else settings.n_best
        self.alpha = settings.length_penalty
        self.specials = specials
        self.trace = trace
        self._live: _Live[State] | None = None
        self._done: list[Cohort] = []

    @property
    def alive(self) -> int:
        """Sentences that are searched at present."""
        return 0 if self._live is None else len(self._live.tokens)

    def add(
        self,
        source: Tensor,
        source_positions: Tensor,
        rules: Constraints,
        limits: Sequence[int],
        begun: State | None = None,
    ) -> Cohort:
        """Begin to search for more sentences.

        Args:
            source: [B, S] int64.
            source_positions: [B, S] int64, −1 for padding.
            rules: what may be generated.
            limits: most tokens of each sentence, end token not counted.
            begun: what the model's `start` gave for these sources, if it has read them already.
        """
        state = self.model.start(source, source_positions) if begun is None else begun
        count, device = len(limits), source.device
        cohort = Cohort(rules, limits, self.width, device)
        tokens = torch.full((count, 1), self.specials.bos, dtype=torch.int64, device=device)
        norms = [length_norm(limit + 1.0, self.alpha) for limit in limits]
        live = _Live(
            state,
            (cohort,),
            tokens,
            totals=torch.zeros((count, 1), dtype=torch.float64, device=device),
            lengths=torch.zeros(count, dtype=torch.int64, device=device),
            limits=torch.tensor(limits, dtype=torch.int64, device=device),
            longest_norms=torch.tensor(norms, dtype=torch.float64, device=device),
            best=Endings.none(count, self.kept, device),
        )
        ahead, self._live = self._live, self._advance(live)  # of as many hypotheses as the others
        if ahead is not None:
            self._live = ahead if self._live is None else self._together(ahead, self._live)
        return cohort

    def step(self) -> list[Cohort]:
        """One more token of every hypothesis.

        Returns:
            The cohorts of which the last sentences are done, by this step or by their first.
        """
        if self._live is not None:
            self._live = self._advance(self._live)
        done, self._done = self._done, []
        return done

    def _advance(self, live: _Live[State]) -> _Live[State] | None:
        """What is left to search after a step; None if nothing is."""
        logits, state = self.model.step(live.state, live.tokens)
        excess = log_totals(logits)
        slices, wanted = live.slices(), self._wanted(live, logits)
        for cohort, part in slices:
            moment = Moment(cohort.age, cohort.sentences, cohort.history)
            cohort.rules.apply(logits[part], moment)
        looked = 2 * self.width if self.width > 1 else 1
        candidates = best_candidates(logits, excess, live.totals, looked)
        ends, best = candidates.token == self.specials.eos, live.best
        if ends.any():
            best = best.with_ended(candidates, ends, live.lengths, self._norms(live), wanted)
            chosen = _going_on(candidates, ends, self.width)
        else:
            chosen = Candidates(*(t[:, : self.width] for t in candidates))
        bound, worst = chosen.total[:, 0] / live.longest_norms, best.rank[:, -1]
        if self.trace is not None:
            (cohort,) = live.cohorts
            norm, who = length_norm(cohort.age + 1.0, self.alpha), cohort.sentences
            self.trace.add(who, candidates, ends, chosen, norm=norm, bound=bound, worst=worst)
        staying = worst < bound
        for cohort, part in slices:
            alone = len(slices) == 1
            cohort.grow(chosen if alone else Candidates(*(t[part] for t in chosen)))
        rows = _rows(chosen.parent, live.tokens.shape[1])
        after = replace(
            live,
            state=state,
            tokens=chosen.token,
            totals=chosen.total,
            lengths=live.lengths + 1,
            best=best,
        )
        if not staying.all():
            rows, after = rows[staying], self._without(after, slices, staying)
        if not after.cohorts:
            return None
        same = torch.arange(live.tokens.numel(), device=rows.device)
        if torch.equal(rows.flatten(), same):
            return after
        return replace(after, state=self.model.reorder(state, rows))

    def _without(
        self, live: _Live[State], slices: Sequence[tuple[Cohort, slice]], staying: Tensor
    ) -> _Live[State]:
        """Those that stay; their states are yet to be chosen."""
        for cohort, part in slices:
            if not staying[part].all():
                cohort.leave(staying[part], live.best.of(part))
        self._done += [cohort for cohort in live.cohorts if not cohort.alive]
        return replace(
            live,
            cohorts=tuple(cohort for cohort in live.cohorts if cohort.alive),
            tokens=live.tokens[staying],
            totals=live.totals[staying],
            lengths=live.lengths[staying],
            limits=live.limits[staying],
            longest_norms=live.longest_norms[staying],
            best=live.best.of(staying),
        )

    def _together(self, live: _Live[State], new: _Live[State]) -> _Live[State]:
        model = cast("JoinableModel[State]", self.model)
        pairs = zip(live.best, new.best, strict=True)
        return _Live(
            model.join(live.state, new.state),
            live.cohorts + new.cohorts,
            tokens=torch.cat([live.tokens, new.tokens]),
            totals=torch.cat([live.totals, new.totals]),
            lengths=torch.cat([live.lengths, new.lengths]),
            limits=torch.cat([live.limits, new.limits]),
            longest_norms=torch.cat([live.longest_norms, new.longest_norms]),
            best=Endings(*map(torch.cat, pairs)),
        )

    def _wanted(self, live: _Live[State], logits: Tensor) -> Tensor | None:
        """Whether the model would end each hypothesis [B, W] itself; None if none must end."""
        if not any(cohort.age in cohort.cuts for cohort in live.cohorts):
            return None
        free = (live.limits > live.lengths)[:, None]
        return free | (logits.argmax(-1) == self.specials.eos)

    def _norms(self, live: _Live[State]) -> Tensor:
        """The length norm of hypotheses that end now [B]; the same number for the same length."""
        norms = [
            torch.full(
                (cohort.alive,),
                length_norm(cohort.age + 1.0, self.alpha),
                dtype=torch.float64,
                device=live.totals.device,
            )
            for cohort in live.cohorts
        ]
        return norms[0] if len(norms) == 1 else torch.cat(norms)


def _going_on(candidates: Candidates, ends: Tensor, width: int) -> Candidates:
    """The best candidates that do not end, in their order; dead ones (−∞) fill the rest."""
    order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :width]
    total = candidates.total.masked_fill(ends, -math.inf)
    return Candidates(*(t.gather(1, order) for t in candidates._replace(total=total)))


def _rows(parent: Tensor, width: int) -> Tensor:
    """Flat row numbers of hypotheses [B, W'] of a state of that width."""
    first = torch.arange(parent.shape[0], device=parent.device) * width
    return first[:, None] + parent
