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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from heedful.search.beam_selection import Beam, Selection
from heedful.search.constraints import Constraints, Moment
from heedful.search.search_settings import Hypothesis, SearchSettings, Specials, length_norm
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
        if not staying.all():
            done.append((sentences[~staying], best.select(~staying)))
            if not staying.any():
                break
            sentences, tokens, totals = sentences[staying], tokens[staying], totals[staying]
            limits, longest_norms = limits[staying], longest_norms[staying]
            history = None if history is None else history[staying]
            rows, best, selection = rows[staying], best.select(staying), selection.keep(staying)
        if not torch.equal(rows.flatten(), torch.arange(previous_rows, device=device)):
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
        candidates, ends = beam.candidates, beam.ends
        assert ends is not None
        total = candidates.total.masked_fill(~ends, -math.inf)
        if (total == -math.inf).all():
            return self
        rank = total / total.new_tensor(norm)  # GPUs multiply by the inverse of a plain number
        new = FinishedHypotheses(
            rank=rank if beam.handicap is None else rank - beam.handicap,
            total=total,
            length=torch.full_like(candidates.parent, length),
            beam=candidates.parent,
            end_score=candidates.token_score,
            ended_freely=torch.ones_like(ends)
            if ends_freely is None
            else ends_freely.gather(1, candidates.parent),
        )
        both = [torch.cat(pair, 1) for pair in zip(self, new, strict=True)]
        order = both[0].topk(self.rank.shape[1], -1).indices
        return FinishedHypotheses(*(values.gather(1, order) for values in both))

    def select(self, rows: Tensor) -> FinishedHypotheses:
        """Select sentences by their numbers [B'] or a mask [B]."""
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


Fate = Literal["lived", "ended", "dropped"]
"""Went on to the next step; ended its hypothesis; was not good enough to live on."""


@dataclass(frozen=True)
class Looked:
    """A continuation that a step looked at.

    Args:
        parent: which live hypothesis of the step before it continues, from 0.
        token: with which token.
        token_score: that token's log-probability.
        score: summed log-probability of the hypothesis with it.
        fate: what became of it.
        beam: which live hypothesis it is from here on; None unless it lived.
        normalized_score: what it is ranked by among those that ended; None unless it ended.
        tokens: of the whole hypothesis, end token left out.
    """

    parent: int
    token: int
    token_score: float
    score: float
    fate: Fate
    beam: int | None
    normalized_score: float | None
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One step of the search for a sentence.

    Args:
        looked: the continuations it looked at, best first.
        bound: no hypothesis that is still to end can be ranked above this.
        worst: what the last of those that would be returned is ranked by; −∞ while there are too
            few. The search is done once this reaches the bound.
    """

    looked: tuple[Looked, ...]
    bound: float
    worst: float


@dataclass(frozen=True)
class _Seen:
    """Tensors of a step as the search hands them over, a row for each sentence still searched."""

    sentences: Tensor
    beam: Beam
    norm: float
    bound: Tensor
    worst: Tensor


class SearchTrace:
    """Watches a beam search that it is given to. It sees values and changes none.

    For example:

        trace = SearchTrace()
        found = search(model, source, positions, settings, specials=specials, trace=trace)
        steps = trace.steps(0)
        path = places(steps, found[0][0])
    """

    def __init__(self) -> None:
        self._seen: list[_Seen] = []

    def add(
        self, sentences: Tensor, beam: Beam, *, norm: float, bound: Tensor, worst: Tensor
    ) -> None:
        """Keep a step; called by the search.

        Args:
            sentences: [B] rows of the full batch.
            beam: the outcome of the step.
            norm: what the totals of those that end are divided by.
            bound: [B] float64; see `Step`.
            worst: [B] float64; see `Step`.
        """
        self._seen.append(_Seen(sentences, beam, norm, bound, worst))

    def steps(self, sentence: int) -> list[Step]:
        """All steps of one sentence.

        Args:
            sentence: its row in the batch.
        """
        results: list[Step] = []
        before: list[tuple[int, ...]] = [()]
        for seen in self._seen:
            rows = (seen.sentences == sentence).nonzero().flatten().tolist()
            if not rows:
                break
            looked = _looked(seen, rows[0], before)
            before = [each.tokens for each in looked if each.fate == "lived"]
            results.append(Step(looked, float(seen.bound[rows[0]]), float(seen.worst[rows[0]])))
        return results


def places(steps: Sequence[Step], hypothesis: Hypothesis) -> list[int]:
    """The place of a returned hypothesis among the continuations of each step.

    Args:
        steps: of its sentence.
        hypothesis: from the search.
    """
    tokens = hypothesis.tokens
    path = []
    for length, step in enumerate(steps[: len(tokens) + 1], start=1):
        fate = "lived" if length <= len(tokens) else "ended"
        path.append(
            next(
                place
                for place, each in enumerate(step.looked)
                if each.fate == fate and each.tokens == tokens[:length]
            )
        )
    return path


def _looked(seen: _Seen, row: int, before: Sequence[tuple[int, ...]]) -> tuple[Looked, ...]:
    """The continuations of a step.

    Args:
        seen: the step.
        row: the sentence's.
        before: the tokens of the hypotheses that are continued.
    """
    live = [
        (parent, token)
        for total, parent, token, _ in _rows(seen.beam.live, row)
        if total > -math.inf
    ]
    results: list[Looked] = []
    candidates, ends = seen.beam.candidates, seen.beam.ends
    ended = [False] * candidates.total.shape[1] if ends is None else ends[row].tolist()
    for end, (total, parent, token, token_score) in zip(ended, _rows(candidates, row), strict=True):
        if total == -math.inf:
            continue
        lives = not end and (parent, token) in live
        results.append(
            Looked(
                parent=parent,
                token=token,
                token_score=token_score,
                score=total,
                fate="ended" if end else "lived" if lives else "dropped",
                beam=live.index((parent, token)) if lives else None,
                normalized_score=total / seen.norm if end else None,
                tokens=before[parent] if end else (*before[parent], token),
            )
        )
    return tuple(results)


def _rows(candidates: Candidates, row: int) -> Iterator[tuple[float, int, int, float]]:
    """A sentence's candidates, one by one."""
    return zip(*(values[row].tolist() for values in candidates), strict=True)
