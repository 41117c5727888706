"""Beam search over a batch of sentences; greedy search is the beam of width 1.

Every step ranks the 2 W best continuations of a sentence's W live hypotheses. Those that end are
finished hypotheses, of which the best by normalised score are kept; the W best of the others live
on. With a beam of 1 only the single best continuation is ranked, so that the search ends at the
first end token, as greedy search does.

When a sentence is done: let s be the summed log-probability of its best live hypothesis, M the most
tokens it may have with its end token, and norm(n) = ((5 + n) / 6)^α the length norm. Continuing a
hypothesis only adds log-probabilities, which are at most 0, and norm grows with n because α ≥ 0. So
no hypothesis that is still to come can rank above s / norm(M). As soon as the worst hypothesis that
would be returned reaches that bound, going on cannot change the result, and the sentence leaves the
batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

from heedful.search.constraints import Moment
from heedful.search.search_settings import Hypothesis, length_norm
from heedful.search.step_model import (
    Beam,
    Candidates,
    SearchTask,
    Selection,
    State,
    best_candidates,
    index_on,
    row_logsumexp,
)

if TYPE_CHECKING:
    from heedful.search.search_trace import SearchTrace


@dataclass(frozen=True)
class BestContinuations:
    """A `Selection` of the 2 W best continuations, of which those that do not end live on.

    Args:
        width: number W of live hypotheses; with 1 only the single best continuation is ranked.
        eos: id of the end token.
    """

    width: int
    eos: int

    def choose(self, logits: Tensor, logsumexp: Tensor, log_probs: Tensor, moment: Moment) -> Beam:
        candidates = best_candidates(logits, logsumexp, log_probs, num_ranked(self.width))
        ends = candidates.token == self.eos
        if ends.device.type != "cpu" or ends.any():  # reading `ends` on a GPU makes the host wait
            return Beam(candidates, ends, live_candidates(candidates, ends, self.width), None, self)
        live = Candidates(*(t[:, : self.width] for t in candidates))
        return Beam(candidates, None, live, None, self)

    def keep(self, sentences: Tensor) -> BestContinuations:
        return self


def num_ranked(width: int) -> int:
    """Return the number of continuations of a sentence that a step ranks for a beam's width."""
    return 2 * width if width > 1 else 1


def live_candidates(candidates: Candidates, ends: Tensor, width: int) -> Candidates:
    """Select the best candidates that do not end, in order; others have log-probability −∞."""
    # A stable sort of the flags moves those that end behind the others, and keeps both in order.
    order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :width]
    log_prob = candidates.log_prob.masked_fill(ends, -math.inf)
    return Candidates(*(t.gather(1, order) for t in candidates._replace(log_prob=log_prob)))


def beam_search(
    task: SearchTask[State], selection: Selection, trace: SearchTrace | None = None
) -> list[list[Hypothesis]]:
    """Search for the best hypotheses of each sentence of a batch.

    Args:
        task: batch of sentences, with its model, settings and constraints.
        selection: choice of the continuations of a step that end or live on.
        trace: record of every step; it changes nothing.

    Returns:
        The hypotheses of each sentence, best first: `n_best` of them, or all of the beam where a
        coverage penalty is still to rank them.
    """
    model, state, settings, specials, rules, limits = task
    width, alpha, device = settings.beam, settings.length_penalty, limits.device
    most = width if settings.coverage_penalty else settings.n_best
    cut_steps = frozenset(limits.tolist())
    # Computed in Python, like the norm of each step: PyTorch's powers may differ in the last bit.
    norms = [length_norm(limit + 1.0, alpha) for limit in limits.tolist()]
    longest_norms = torch.tensor(norms, dtype=torch.float64, device=device)

    sentences = torch.arange(len(limits), device=device)  # [B] rows that are still searched
    tokens = torch.full((len(limits), 1), specials.bos, dtype=torch.int64, device=device)
    log_probs = torch.zeros(tokens.shape, dtype=torch.float64, device=device)
    history = tokens.new_empty((*tokens.shape, 0)) if rules.needs_history else None
    best = FinishedHypotheses.empty(len(limits), most, device)
    trellis = Trellis(len(limits), width)
    done: list[tuple[Tensor, FinishedHypotheses]] = []
    for step in itertools.count():
        logits, state = model.step(state, tokens)
        logsumexp = row_logsumexp(logits)
        ends_freely: Tensor | None = None
        if step in cut_steps:
            ends_freely = (limits > step)[:, None] | (logits.argmax(-1) == specials.eos)
        moment = Moment(step, sentences, history)
        # Applied after the logsumexp: constraints forbid tokens and make no others likelier.
        rules.apply(logits, moment)
        beam = selection.choose(logits, logsumexp, log_probs, moment)
        live, norm, selection = beam.live, length_norm(step + 1.0, alpha), beam.selection
        # Checked on a processor only, as reading `ends` on a GPU would make the host wait.
        if beam.ends is not None and (device.type != "cpu" or beam.ends.any()):
            # A tensor: GPUs multiply by a Python number's reciprocal, which changes the last bit.
            divisor = torch.full((), norm, dtype=torch.float64, device=device)
            best = best.merged(beam, step, divisor, ends_freely)
        bound, worst = live.log_prob[:, 0] / longest_norms, best.rank[:, -1]
        if trace is not None:
            trace.add(sentences, beam, norm=norm, bound=bound, worst=worst)
        trellis.add(sentences, live)
        # Flat numbers of the rows of the state before this step, sentence · W + hypothesis.
        first = torch.arange(len(live.parent), device=device) * tokens.shape[1]
        rows = first[:, None] + live.parent
        previous_rows = tokens.numel()  # B · W rows of the state before this step
        tokens, log_probs = live.token, live.log_prob
        if history is not None:
            past = history.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, step)
            history = torch.cat([past, tokens[..., None]], -1)
        staying = worst < bound
        kept = staying.tolist()  # the only place in a step where the host waits for a GPU
        if not all(kept):
            over, going = (_indices(kept, value, device) for value in (False, True))
            done.append((sentences[over], best.select(over)))
            if not any(kept):
                break
            sentences, tokens, log_probs = sentences[going], tokens[going], log_probs[going]
            limits, longest_norms = limits[going], longest_norms[going]
            history = None if history is None else history[going]
            rows, best, selection = rows[going], best.select(going), selection.keep(staying)
        # Greedy search, and many steps of a beam, keep the order: nothing has to be copied then.
        if not _are_all_in_order(rows, previous_rows):
            state = model.reorder(state, rows)
    order = torch.cat([rows for rows, _ in done]).argsort()
    best = FinishedHypotheses(*map(torch.cat, zip(*(each for _, each in done), strict=True)))
    return trellis.hypotheses(best.select(order))


class FinishedHypotheses(NamedTuple):
    """The best finished hypotheses of each sentence [B, K], best first.

    Args:
        rank: normalised score float64; −∞ where there is no hypothesis.
        log_prob: summed log-probability float64.
        length: number of tokens int64, the end token not counted.
        beam: index of the live hypothesis of that length that ended, int64.
        end_score: log-probability of the end token float32.
        ended_freely: flag bool; False where the end was forced at the longest length.
    """

    rank: Tensor
    log_prob: Tensor
    length: Tensor
    beam: Tensor
    end_score: Tensor
    ended_freely: Tensor

    @classmethod
    def empty(cls, count: int, most: int, device: torch.device) -> Self:
        """Return places for `most` hypotheses of each of `count` sentences, none of them taken."""
        nothing = torch.full((count, most), -math.inf, dtype=torch.float64, device=device)
        zeros = torch.zeros((count, most), dtype=torch.int64, device=device)
        return cls(nothing, nothing.clone(), zeros, zeros, nothing.float(), zeros.bool())

    def merged(
        self, beam: Beam, length: Tensor | int, norm: Tensor, ends_freely: Tensor | None
    ) -> FinishedHypotheses:
        """Add the candidates of a step that end, and keep the best.

        Args:
            beam: outcome of a step in which some end.
            length: number of tokens of each, the end token not counted; as a tensor [1] int64.
            norm: length norm of hypotheses of that length, [] or [1] float64.
            ends_freely: flag of each parent [B, W], False where its end is forced; None if none is.
        """
        assert beam.ends is not None
        candidates = beam.candidates
        log_prob = candidates.log_prob.masked_fill(~beam.ends, -math.inf)
        rank = log_prob / norm
        new = FinishedHypotheses(
            rank=rank if beam.handicap is None else rank - beam.handicap,
            log_prob=log_prob,
            length=torch.zeros_like(candidates.parent) + length,
            beam=candidates.parent,
            end_score=candidates.token_score,
            ended_freely=torch.ones_like(candidates.parent, dtype=torch.bool)
            if ends_freely is None
            else ends_freely.gather(1, candidates.parent),
        )
        both = [torch.cat(pair, 1) for pair in zip(self, new, strict=True)]
        order = both[0].topk(self.rank.shape[1], -1).indices
        return FinishedHypotheses(*(values.gather(1, order) for values in both))

    def select(self, rows: Tensor) -> FinishedHypotheses:
        """Select sentences by their rows [B']."""
        return FinishedHypotheses(*(values[rows] for values in self))


@dataclass
class Trellis:
    """Back pointers of all live hypotheses: histories are read once, at the end.

    To copy the tokens of every hypothesis in every step would take time quadratic in the length.

    Args:
        count: number B of sentences.
        width: most live hypotheses W of each.
    """

    count: int
    width: int
    steps: list[tuple[Tensor, Candidates]] = field(default_factory=list)

    def add(self, sentences: Tensor, live: Candidates) -> None:
        """Add the live hypotheses [B, W] of a step; `sentences` are rows [B] of the full batch."""
        self.steps.append((sentences, live))

    def hypotheses(self, best: FinishedHypotheses) -> list[list[Hypothesis]]:
        """Return the hypotheses of all sentences from the finished ones [B, K], in order."""
        tokens, scores = self._histories(best.beam, best.length)
        plain = [t.tolist() for t in (*best, tokens, scores)]
        return [
            [
                Hypothesis(
                    tokens=tuple(ids[:length]),
                    score=log_prob,
                    normalized_score=rank,
                    token_scores=(*each[:length], end_score),
                    finished=freely,
                )
                for rank, log_prob, length, _, end_score, freely, ids, each in zip(
                    *rows, strict=True
                )
                if rank > -math.inf
            ]
            for rows in zip(*plain, strict=True)
        ]

    def _histories(self, beams: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Follow the back pointers of hypotheses [B, K] from their live hypotheses and lengths.

        Returns:
            Tokens and their log-probabilities [B, K, T], zero past a hypothesis's end.
        """
        longest = int(lengths.max())
        tokens = torch.zeros((*beams.shape, longest), dtype=torch.int64, device=beams.device)
        scores = torch.zeros((*beams.shape, longest), device=beams.device)
        for step in reversed(range(longest)):
            sentences, live = self.steps[step]
            parents, ids, each = (
                self._spread(sentences, values)
                for values in (live.parent, live.token, live.token_score)
            )
            tokens[..., step] = ids.gather(1, beams)
            scores[..., step] = each.gather(1, beams)
            # Pointers of a hypothesis that is shorter than this step are not followed yet.
            beams = torch.where(step < lengths, parents.gather(1, beams), beams)
        return tokens, scores

    def _spread(self, sentences: Tensor, values: Tensor) -> Tensor:
        """Scatter the rows of sentences that are searched into one row for each sentence."""
        if len(sentences) == self.count:
            return values
        full = values.new_zeros((self.count, self.width))
        full[sentences] = values
        return full


def _are_all_in_order(rows: Tensor, count: int) -> bool:
    """Return whether rows [B, W] are all `count` rows in order."""
    # A comparison would wait for a GPU, where the shape decides: single hypotheses are in order if
    # no sentence has left, and several hypotheses of a sentence count as moved.
    if rows.device.type != "cpu":
        return rows.shape[1] == 1 and len(rows) == count
    return torch.equal(rows.flatten(), torch.arange(count))


def _indices(flags: Sequence[bool], value: bool, device: torch.device) -> Tensor:
    return index_on([at for at, each in enumerate(flags) if each is value], device)
