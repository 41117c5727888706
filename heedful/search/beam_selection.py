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
        candidates: the continuations that were looked at [B, C].
        ends: [B, C] bool, those that are finished hypotheses; None where none is.
        live: those that live on [B, W], best first; of total −∞ where there is none.
        handicap: [B, C] float64, taken off the rank of those that end; None for nothing.
        selection: for the next step, of the same sentences.
    """

    candidates: Candidates
    ends: Tensor | None
    live: Candidates
    handicap: Tensor | None
    selection: Selection


class Selection(Protocol):
    """Chooses among the continuations of a step; a value, like the state of a model."""

    def choose(self, logits: Tensor, excess: Tensor, totals: Tensor, moment: Moment) -> Beam:
        """Choose the continuations that end and those that live on.

        Args:
            logits: of the next token [B, W, V] float32; −∞ where it is forbidden.
            excess: [B, W] float64, what they exceed the tokens' log-probabilities by.
            totals: summed log-probabilities so far [B, W] float64.
            moment: the step and its sentences.
        """

    def keep(self, sentences: Tensor) -> Selection:
        """Keep the sentences of a mask [B], for the next step."""


@dataclass(frozen=True)
class BestContinuations:
    """The 2 W best continuations of a sentence: those that end do, and the W best others live on.

    Args:
        width: W; with 1 only the single best continuation is looked at.
        eos: the end token.
    """

    width: int
    eos: int

    def choose(self, logits: Tensor, excess: Tensor, totals: Tensor, moment: Moment) -> Beam:
        """See `Selection`."""
        candidates = best_candidates(logits, excess, totals, looked_at(self.width))
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
    """Select the best candidates that do not end, in order; the rest is filled up with total −∞."""
    order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :width]
    total = candidates.total.masked_fill(ends, -math.inf)
    return Candidates(*(t.gather(1, order) for t in candidates._replace(total=total)))
