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
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.decode.candidates import Candidates, best_candidates, log_totals
from heedful.decode.constraints import Constraints, Moment
from heedful.decode.protocol import Hypothesis, Specials, State, StepModel
from heedful.decode.scoring import length_norm
from heedful.decode.settings import SearchSettings
from heedful.decode.trace import SearchTrace


def beam_search(
    model: StepModel[State],
    source: Tensor,
    source_positions: Tensor,
    settings: SearchSettings,
    specials: Specials,
    rules: Constraints,
    limits: Tensor,
    trace: SearchTrace | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first.

    Args:
        model: to search in.
        source: [B, S] int64.
        source_positions: [B, S] int64, −1 for padding.
        settings: of the search.
        specials: ids of the beginning and the end of a sequence.
        rules: what may be generated.
        limits: [B] int64, most tokens of a sentence, end token not counted.
        trace: told of every step.

    Returns:
        For each sentence up to `n_best` hypotheses, or up to `beam` of them when they are to be
        ranked anew by coverage. Fewer only where fewer exist.
    """
    width = settings.beam
    kept = width if settings.coverage_penalty else settings.n_best
    count, device = source.shape[0], source.device
    finished = _Finished(count, kept, settings.length_penalty, device)
    trellis = _Trellis(count, width)
    cuts = set(limits.tolist())

    longest_norm = length_norm(limits + 1.0, settings.length_penalty)
    state = model.start(source, source_positions)
    sentences = torch.arange(count, device=device)
    tokens = torch.full((count, 1), specials.bos, dtype=torch.int64, device=device)
    totals = torch.zeros((count, 1), dtype=torch.float64, device=device)
    history = tokens[..., None][..., :0] if rules.needs_history else None
    for step in range(max(cuts) + 1):
        logits, state = model.step(state, tokens)
        excess = log_totals(logits)
        wanted: Tensor | None = None
        if step in cuts:
            free = (limits[sentences] > step)[:, None]
            wanted = free | (logits.argmax(-1) == specials.eos)
        rules.apply(logits, Moment(step, sentences, history))
        candidates = best_candidates(logits, excess, totals, 2 * width if width > 1 else 1)
        ends = candidates.token == specials.eos
        if ends.any():
            finished.add(sentences, candidates, ends, step, wanted)
            live = _live(candidates, ends, width)
        else:
            live = Candidates(*(t[:, :width] for t in candidates))
        trellis.add(sentences, live)
        bound = live.total[:, 0] / longest_norm[sentences]
        worst = finished.worst(sentences)
        if trace is not None:
            norm = float(length_norm(step + 1.0, settings.length_penalty))
            trace.add(sentences, candidates, ends, live, norm=norm, bound=bound, worst=worst)
        going_on = worst < bound
        if not going_on.any():
            break
        rows = _rows(live.parent, totals.shape[1])[going_on]
        if not torch.equal(rows.flatten(), torch.arange(totals.numel(), device=device)):
            state = model.reorder(state, rows)
        if history is not None:
            past = history.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, step)
            history = torch.cat([past, live.token[going_on, :, None]], -1)
        sentences, tokens, totals = sentences[going_on], live.token[going_on], live.total[going_on]
    return finished.hypotheses(trellis)


def _live(candidates: Candidates, ends: Tensor, width: int) -> Candidates:
    """The best candidates that do not end, in their order; dead ones (−∞) fill the rest."""
    order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :width]
    total = candidates.total.masked_fill(ends, -math.inf)
    return Candidates(*(t.gather(1, order) for t in candidates._replace(total=total)))


def _rows(parent: Tensor, width: int) -> Tensor:
    """Flat row numbers of hypotheses [B, W'] of a state of that width."""
    first = torch.arange(parent.shape[0], device=parent.device) * width
    return first[:, None] + parent


@dataclass
class _Trellis:
    """Where every live hypothesis came from, so that histories are read once, at the end.

    Each list holds a tensor [B, W] a step, of the full batch.
    """

    count: int
    width: int
    parents: list[Tensor] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    token_scores: list[Tensor] = field(default_factory=list)

    def add(self, sentences: Tensor, live: Candidates) -> None:
        pairs = (
            (self.parents, live.parent),
            (self.tokens, live.token),
            (self.token_scores, live.token_score),
        )
        whole = len(sentences) == self.count
        for steps, values in pairs:
            full = values
            if not whole:
                full = values.new_zeros((self.count, self.width))
                full[sentences] = values
            steps.append(full)

    def read(self, beams: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and their scores [B, K, T] of the hypotheses at `beams` [B, K] after `lengths`."""
        longest = int(lengths.max())
        tokens = torch.zeros((*beams.shape, longest), dtype=torch.int64, device=beams.device)
        scores = torch.zeros((*beams.shape, longest), device=beams.device)
        for step in reversed(range(longest)):
            tokens[..., step] = self.tokens[step].gather(1, beams)
            scores[..., step] = self.token_scores[step].gather(1, beams)
            before = self.parents[step].gather(1, beams)
            beams = torch.where(step < lengths, before, beams)
        return tokens, scores


class _Ending(NamedTuple):
    """Finished hypotheses [B, K], best first.

    Args:
        rank: normalised score float64; −∞ where there is none.
        total: summed log-probability float64.
        length: tokens, the end token not counted.
        beam: which live hypothesis of that length ended.
        end_score: log-probability of the end token.
        wanted: whether the model itself would have ended there.
    """

    rank: Tensor
    total: Tensor
    length: Tensor
    beam: Tensor
    end_score: Tensor
    wanted: Tensor


class _Finished:
    """The best finished hypotheses of every sentence of the batch."""

    def __init__(self, count: int, kept: int, alpha: float, device: torch.device) -> None:
        self.alpha = alpha
        nothing = torch.full((count, kept), -math.inf, dtype=torch.float64, device=device)
        zeros = torch.zeros((count, kept), dtype=torch.int64, device=device)
        self.best = _Ending(nothing, nothing.clone(), zeros, zeros, nothing.float(), zeros.bool())

    def worst(self, sentences: Tensor) -> Tensor:
        """Normalised score of the last one kept [B]; −∞ while there are too few."""
        return self.best.rank[sentences, -1]

    def add(
        self,
        sentences: Tensor,
        candidates: Candidates,
        ends: Tensor,
        step: int,
        wanted: Tensor | None,
    ) -> None:
        """Take the candidates that end, if they are good enough.

        Args:
            sentences: rows of the full batch.
            candidates: [B, C] each.
            ends: which of them end [B, C] bool.
            step: their length without the end token.
            wanted: of each parent [B, W], False where its end was forced; None if none was.
        """
        total = candidates.total.masked_fill(~ends, -math.inf)
        if (total == -math.inf).all():
            return
        new = _Ending(
            rank=total / length_norm(step + 1.0, self.alpha),
            total=total,
            length=torch.full_like(candidates.token, step),
            beam=candidates.parent,
            end_score=candidates.token_score,
            wanted=torch.ones_like(ends) if wanted is None else wanted.gather(1, candidates.parent),
        )
        both = _Ending(
            *(torch.cat([old[sentences], n], 1) for old, n in zip(self.best, new, strict=True))
        )
        order = both.rank.topk(self.best.rank.shape[1], -1).indices
        self.best = _Ending(
            *(
                old.index_copy(0, sentences, values.gather(1, order))
                for old, values in zip(self.best, both, strict=True)
            )
        )

    def hypotheses(self, trellis: _Trellis) -> list[list[Hypothesis]]:
        """Read the kept ones off the trellis."""
        tokens, scores = trellis.read(self.best.beam, self.best.length)
        plain = [t.tolist() for t in (*self.best, tokens, scores)]
        return [
            [
                Hypothesis(
                    tokens=tuple(ids[:length]),
                    score=total,
                    normalized_score=rank,
                    token_scores=(*each[:length], end_score),
                    finished=wanted,
                )
                for rank, total, length, _, end_score, wanted, ids, each in zip(*rows, strict=True)
                if rank > -math.inf
            ]
            for rows in zip(*plain, strict=True)
        ]
