"""Beam search on fixed memory: a step of `beam` as a function that updates tensors in place.

Shapes: B sentences of the batch, R rows of a graph, W hypotheses of each, C candidates, K finished
hypotheses, T steps that fit into a graph, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.engines.inference.cuda_graphs import Shape
from heedful.search.beam import (
    BestContinuations,
    FinishedHypotheses,
    Trellis,
    live_candidates,
    num_ranked,
)
from heedful.search.fixed_rules import FixedRules
from heedful.search.fixed_run import BatchSearch, Board
from heedful.search.search_settings import Hypothesis, SearchSettings, length_norm
from heedful.search.step_model import Beam, Candidates, candidates_by_sorting, unchecked_logsumexp


class BeamJob(BatchSearch):
    """A beam search over a batch."""

    def __init__(self, settings: SearchSettings, rules: FixedRules, limits: Tensor) -> None:
        super().__init__(settings.beam, rules, limits)
        # The coverage penalty ranks all finished hypotheses anew, so it needs the whole beam.
        self.most = self.width if settings.coverage_penalty else settings.n_best
        # Computed in Python, as in `beam`: PyTorch's powers may differ in the last bit.
        norms = [length_norm(step + 1.0, settings.length_penalty) for step in range(self.steps)]
        self.norms = torch.tensor(norms, dtype=torch.float64, device=limits.device)
        self.longest_norms = self.norms.index_select(0, limits)

    @property
    def key(self) -> Hashable:
        # W is part of the shape, and the length penalty is in `norms`, which are data.
        return "beam", self.most, self.rules.key

    def board(self, shape: Shape) -> BeamBoard:
        return BeamBoard(self, shape)

    def begin(self, board: BeamBoard, first: Tensor) -> None:
        super().begin(board, first)
        board.log_probs[: len(first), 0] = 0.0
        # Rows past these are padding of the graph.
        board.running[: len(first)] = True

    def resume(self, board: BeamBoard, sentences: Tensor) -> None:
        super().resume(board, sentences)
        board.longest_norms[: len(sentences)] = self.longest_norms.index_select(0, sentences)
        # A graph has room for a rounded number of steps, more or fewer than this search takes.
        length = min(len(board.norms), self.steps)
        board.norms[:length] = self.norms[:length]

    def hypotheses(self, parts: Sequence[tuple[list[int], int, Any]]) -> list[list[Hypothesis]]:
        """Return the hypotheses of all sentences from the parts of a search."""
        count = len(self.limits)
        best = _empty(count, self.most, torch.device("cpu"))
        trellis = Trellis(count, self.width)
        for sentences, _, (of_part, live) in parts:
            rows, steps = torch.tensor(sentences), [values.cpu() for values in live]
            for whole, part in zip(best, of_part, strict=True):
                # A later part has all finished hypotheses so far, so it replaces an earlier one.
                whole[rows] = part.cpu()
            for parent, token, score in zip(*steps, strict=True):
                trellis.add(rows, Candidates(score.double(), parent, token, score))
        return trellis.hypotheses(best)


class BeamBoard(Board):
    """Hypotheses of the sentences of a graph.

    Attributes:
        log_probs: [R, W] float64, summed log-probabilities; −∞ where there is no hypothesis.
        running: [R] bool, flags of sentences that are still searched.
        best: finished hypotheses, [R, K] each.
        norms: [T] float64, length norms by the step.
        longest_norms: [R] float64, length norms of the longest hypotheses.
    """

    def __init__(self, job: BeamJob, shape: Shape) -> None:
        super().__init__(job, shape)
        rows, self.width, self.eos = shape.rows, job.width, job.rules.eos
        device, steps = job.limits.device, self.steps
        self.log_probs = torch.zeros(self.tokens.shape, dtype=torch.float64, device=device)
        self.running = torch.zeros(rows, dtype=torch.bool, device=device)
        self.best, self._empty = (_empty(rows, job.most, device) for _ in range(2))
        self.norms = torch.ones(steps, dtype=torch.float64, device=device)
        self.longest_norms = torch.ones(rows, dtype=torch.float64, device=device)
        shape_of_steps = (steps, rows, self.width)
        # The trellis: a step is written at its index, and read only when all is done.
        self._parents, self._tokens = (
            torch.zeros(shape_of_steps, dtype=torch.int64, device=device) for _ in range(2)
        )
        self._scores = torch.zeros(shape_of_steps, device=device)

    def clear(self) -> None:
        super().clear()
        self.log_probs.fill_(-math.inf)
        self.running.fill_(False)
        for mine, nothing in zip(self.best, self._empty, strict=True):
            mine.copy_(nothing)

    def moving(self) -> Sequence[Tensor]:
        # The trellis stays behind: `saved` has copied it for the sentences of the old graph.
        return self.tokens, self.log_probs, self.running, *self.best

    def saved(self, count: int, first: int, stop: int) -> tuple[list[Tensor], list[Tensor]]:
        live = (self._parents, self._tokens, self._scores)
        return (
            [values[:count].clone() for values in self.best],
            [values[first:stop, :count].clone() for values in live],
        )

    def update(self, logits: Tensor) -> Tensor:
        """Choose the best continuations, as `beam_search` does."""
        step, limits = self.step, self.rules.limits
        logsumexp = unchecked_logsumexp(logits)
        # Rows that are done or empty may well have NaN, which must not fail the search.
        fails = (logsumexp.isnan().any(1) & self.running).any()
        ends_freely = (limits > step)[:, None] | (logits.argmax(-1) == self.eos)
        self.rules.apply(logits, step)
        found = candidates_by_sorting(logits, logsumexp, self.log_probs, num_ranked(self.width))
        ends = found.token == self.eos
        live = live_candidates(found, ends, self.width)
        beam = Beam(found, ends, live, None, BestContinuations(self.width, self.eos))
        norm = self.norms.index_select(0, step)
        best = self.best.merged(beam, step, norm, ends_freely)
        for mine, new in zip(self.best, best, strict=True):  # done sentences do not change
            mine.copy_(torch.where(self.running[:, None], new, mine))
        # As in `beam_search`: log-probabilities only fall, so no live hypothesis passes its bound.
        bound, worst = live.log_prob[:, 0] / self.longest_norms, self.best.rank[:, -1]
        self.running &= worst < bound
        chosen = (live.parent, live.token, live.token_score)
        for steps, values in zip((self._parents, self._tokens, self._scores), chosen, strict=True):
            steps.index_copy_(0, step, values[None])
        self.tokens.copy_(live.token)
        self.log_probs.copy_(live.log_prob)
        self.rules.remember(live.token, live.parent, step)
        step += 1
        self.report[:1] |= fails  # never reset, as the host reads it some steps late
        self.report[1:] = self.running
        return live.parent


def _empty(count: int, most: int, device: torch.device) -> FinishedHypotheses:
    """Return empty finished hypotheses; their tensors share no memory, as they are written to."""
    empty = FinishedHypotheses.empty(count, most, device)
    return FinishedHypotheses(*(values.clone() for values in empty))
