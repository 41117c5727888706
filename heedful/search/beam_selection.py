"""Selection of a beam search: the continuations of a step that end, and those that live on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from heedful.search.constraints import Moment
from heedful.search.step_model import Candidates, best_candidates


class Beam(NamedTuple):
    """The outcome of a step.

    Args:
        candidates: continuations that were ranked [B, C].
        ends: mask of the finished hypotheses among these [B, C] bool; None where none ends.
        live: continuations that live on [B, W], best first; log-probability −∞ fills up.
        handicap: reduction of the rank of those that end [B, C] float64; None for nothing.
        selection: selection of the next step, for the same sentences.
    """

    candidates: Candidates
    ends: Tensor | None
    live: Candidates
    handicap: Tensor | None
    selection: Selection


class Selection(Protocol):
    """Chooses among the continuations of a step; a value, like the state of a model."""

    def choose(self, logits: Tensor, logsumexp: Tensor, log_probs: Tensor, moment: Moment) -> Beam:
        """Choose the continuations that end and those that live on.

        Args:
            logits: logits of the next token [B, W, V] float32; −∞ where it is forbidden.
            logsumexp: logsumexp of the logits [B, W] float64, from before any was forbidden.
            log_probs: summed log-probabilities of the hypotheses [B, W] float64.
            moment: the step and its sentences.
        """

    def keep(self, sentences: Tensor) -> Selection:
        """Keep the sentences of a mask [B], for the next step."""


@dataclass(frozen=True)
class BestContinuations:
    """The 2 W best continuations of a sentence: those that end do, and the W best others live on.

    Args:
        width: number W of live hypotheses; with 1 only the single best continuation is ranked.
        eos: id of the end token.
    """

    width: int
    eos: int

    def choose(self, logits: Tensor, logsumexp: Tensor, log_probs: Tensor, moment: Moment) -> Beam:
        """See `Selection`."""
        candidates = best_candidates(logits, logsumexp, log_probs, looked_at(self.width))
        ends = candidates.token == self.eos
        if ends.device.type != "cpu" or ends.any():  # to ask would wait for a GPU
            return Beam(candidates, ends, live_candidates(candidates, ends, self.width), None, self)
        live = Candidates(*(t[:, : self.width] for t in candidates))
        return Beam(candidates, None, live, None, self)

    def keep(self, sentences: Tensor) -> BestContinuations:
        """See `Selection`."""
        return self


def looked_at(width: int) -> int:
    """Return how many of the best continuations of a sentence decide, for a beam's width."""
    return 2 * width if width > 1 else 1


def live_candidates(candidates: Candidates, ends: Tensor, width: int) -> Candidates:
    """Select the best candidates that do not end, in order; others have log-probability −∞."""
    # A stable sort of the flags moves those that end behind the others, and keeps both in order.
    order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :width]
    log_prob = candidates.log_prob.masked_fill(ends, -math.inf)
    return Candidates(*(t.gather(1, order) for t in candidates._replace(log_prob=log_prob)))
