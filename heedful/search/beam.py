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
from typing import NamedTuple, Self

import torch
from torch import Tensor

from heedful.search.beam_selection import Beam, Selection
from heedful.search.constraints import Constraints, Moment
from heedful.search.lookahead import index_on
from heedful.search.search_settings import Hypothesis, SearchSettings, Specials, length_norm
from heedful.search.search_trace import SearchTrace
from heedful.search.step_model import Candidates, State, StepModel, log_totals


def beam_search(
    model: StepModel[State],
    state: State,
    settings: SearchSettings,
    specials: Specials,
    rules: Constraints,
    limits: Tensor,
    selection: Selection,
    trace: SearchTrace | None = None,
) -> list[list[Hypothesis]]:
    """Search for the best hypotheses of each sentence of a batch.

    Args:
        model: the model to search in.
        state: of the model after it has read the sources, from `start`.
        settings: of the search.
        specials: ids of the beginning and the end of a sequence.
        rules: constraints on the tokens of hypotheses.
        limits: [B] int64, most tokens of each sentence, end token not counted.
        selection: chooses the continuations of a step that end or live on.
        trace: records every step; it changes nothing.

    Returns:
        The hypotheses of each sentence, best first: `n_best` of them, or all of the beam where a
        coverage penalty is still to rank them.
    """
    width, alpha, device = settings.beam, settings.length_penalty, limits.device
    most = width if settings.coverage_penalty else settings.n_best
    cut_steps = frozenset(limits.tolist())
    # In Python's arithmetic, as the numbers at each step: PyTorch's powers may differ by a bit.
    norms = [length_norm(limit + 1.0, alpha) for limit in limits.tolist()]
    longest_norms = torch.tensor(norms, dtype=torch.float64, device=device)

    sentences = torch.arange(len(limits), device=device)  # [B] rows that are still searched
    tokens = torch.full((len(limits), 1), specials.bos, dtype=torch.int64, device=device)
    totals = torch.zeros(tokens.shape, dtype=torch.float64, device=device)
    history = tokens.new_empty((*tokens.shape, 0)) if rules.needs_history else None
    best = FinishedHypotheses.empty(len(limits), most, device)
    trellis = Trellis(len(limits), width)
    done: list[tuple[Tensor, FinishedHypotheses]] = []
    for step in itertools.count():
        logits, state = model.step(state, tokens)
        excess = log_totals(logits)
        ends_freely: Tensor | None = None
        if step in cut_steps:
            ends_freely = (limits > step)[:, None] | (logits.argmax(-1) == specials.eos)
        moment = Moment(step, sentences, history)
        rules.apply(logits, moment)
        beam = selection.choose(logits, excess, totals, moment)
        live, norm, selection = beam.live, length_norm(step + 1.0, alpha), beam.selection
        if beam.ends is not None:
            best = best.updated(beam, step, norm, ends_freely)
        bound, worst = live.total[:, 0] / longest_norms, best.rank[:, -1]
        if trace is not None:
            trace.add(sentences, beam, norm=norm, bound=bound, worst=worst)
        trellis.add(sentences, live)
        rows = _parent_rows(live.parent, tokens.shape[1])
        previous_rows = tokens.numel()
        tokens, totals = live.token, live.total
        if history is not None:
            past = history.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, step)
            history = torch.cat([past, tokens[..., None]], -1)
        staying = worst < bound
        kept = staying.tolist()  # a GPU is waited for once
        if not all(kept):
            over, going = (index_on(places, device) for places in _places(kept))
            done.append((sentences[over], best.select(over)))
            if not any(kept):
                break
            sentences, tokens, totals = sentences[going], tokens[going], totals[going]
            limits, longest_norms = limits[going], longest_norms[going]
            history = None if history is None else history[going]
            rows, best, selection = rows[going], best.select(going), selection.keep(staying)
        if not _are_all_in_order(rows, previous_rows):
            state = model.reorder(state, rows)
    order = torch.cat([rows for rows, _ in done]).argsort()
    best = FinishedHypotheses(*map(torch.cat, zip(*(each for _, each in done), strict=True)))
    return trellis.hypotheses(best.select(order))


class FinishedHypotheses(NamedTuple):
    """The best finished hypotheses of each sentence [B, K], best first.

    Args:
        rank: normalised score float64; −∞ where there is none.
        total: summed log-probability float64.
        length: tokens, the end token not counted.
        beam: index of the live hypothesis of that length that ended.
        end_score: log-probability of the end token.
        ended_freely: False where the end was forced at the longest length.
    """

    rank: Tensor
    total: Tensor
    length: Tensor
    beam: Tensor
    end_score: Tensor
    ended_freely: Tensor

    @classmethod
    def empty(cls, count: int, most: int, device: torch.device) -> Self:
        """Make room for `most` hypotheses of each of `count` sentences."""
        nothing = torch.full((count, most), -math.inf, dtype=torch.float64, device=device)
        zeros = torch.zeros((count, most), dtype=torch.int64, device=device)
        return cls(nothing, nothing.clone(), zeros, zeros, nothing.float(), zeros.bool())

    def updated(
        self, beam: Beam, length: int, norm: float, ends_freely: Tensor | None
    ) -> FinishedHypotheses:
        """Add the candidates that end, and keep the best.

        Args:
            beam: the outcome of a step in which some end.
            length: tokens of each, the end token not counted.
            norm: divisor of scores of hypotheses of that length.
            ends_freely: [B, W], False for parents whose end is forced; None if none is.
        """
        assert beam.ends is not None
        total = beam.candidates.total.masked_fill(~beam.ends, -math.inf)
        if total.device.type == "cpu" and (total == -math.inf).all():  # a GPU would be waited for
            return self
        # GPUs multiply by the inverse of a plain number.
        divisor = torch.full((), norm, dtype=total.dtype, device=total.device)
        lengths = torch.full_like(beam.candidates.parent, length)
        return self.merged(beam, total, lengths, divisor, ends_freely)

    def merged(
        self,
        beam: Beam,
        total: Tensor,
        length: Tensor,
        norm: Tensor,
        ends_freely: Tensor | None,
    ) -> FinishedHypotheses:
        """Add candidates [B, C] of these totals, −∞ for those that do not end, and keep the best.

        Args:
            beam: the outcome of the step.
            total: [B, C] float64.
            length: [B, C] int64, tokens of each, the end token not counted.
            norm: [] or [1] float64, the divisor of scores.
            ends_freely: [B, W], False for parents whose end is forced; None if none is.
        """
        candidates = beam.candidates
        rank = total / norm
        new = FinishedHypotheses(
            rank=rank if beam.handicap is None else rank - beam.handicap,
            total=total,
            length=length,
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
        """Select sentences by their numbers [B']."""
        return FinishedHypotheses(*(values[rows] for values in self))


@dataclass
class Trellis:
    """Back pointers of all live hypotheses: histories are read once, at the end.

    Args:
        count: sentences.
        width: the most live hypotheses of each.
    """

    count: int
    width: int
    steps: list[tuple[Tensor, Candidates]] = field(default_factory=list)

    def add(self, sentences: Tensor, live: Candidates) -> None:
        """Add a step.

        Args:
            sentences: [B] numbers of the sentences that are still searched.
            live: [B, W] each.
        """
        self.steps.append((sentences, live))

    def hypotheses(self, best: FinishedHypotheses) -> list[list[Hypothesis]]:
        """Read the hypotheses of all sentences.

        Args:
            best: [B, K], a row for each sentence, in order.
        """
        tokens, scores = self._histories(best.beam, best.length)
        plain = [t.tolist() for t in (*best, tokens, scores)]
        return [
            [
                Hypothesis(
                    tokens=tuple(ids[:length]),
                    score=total,
                    normalized_score=rank,
                    token_scores=(*each[:length], end_score),
                    finished=freely,
                )
                for rank, total, length, _, end_score, freely, ids, each in zip(*rows, strict=True)
                if rank > -math.inf
            ]
            for rows in zip(*plain, strict=True)
        ]

    def _histories(self, beams: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Follow the back pointers of hypotheses.

        Args:
            beams: [B, K] int64, where each stands among the live ones of its length.
            lengths: [B, K] int64.

        Returns:
            Their tokens and token scores [B, K, T].
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
            beams = torch.where(step < lengths, parents.gather(1, beams), beams)
        return tokens, scores

    def _spread(self, sentences: Tensor, values: Tensor) -> Tensor:
        """Scatter the rows of sentences that are searched into one row for each sentence."""
        if len(sentences) == self.count:
            return values
        full = values.new_zeros((self.count, self.width))
        full[sentences] = values
        return full


def _parent_rows(parent: Tensor, width: int) -> Tensor:
    """Return the flat row numbers of parents [B, W'] in a state of that width."""
    first = torch.arange(parent.shape[0], device=parent.device) * width
    return first[:, None] + parent


def _are_all_in_order(rows: Tensor, count: int) -> bool:
    """Return whether rows [B, W] are all of `count`; of several hypotheses a GPU is not asked."""
    if rows.device.type != "cpu":
        return rows.shape[1] == 1 and len(rows) == count
    return torch.equal(rows.flatten(), torch.arange(count))


def _places(kept: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Return the places of False, and those of True."""
    over, going = ([at for at, each in enumerate(kept) if each is so] for so in (False, True))
    return over, going
