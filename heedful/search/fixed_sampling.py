"""Sampling on fixed memory: a step of `sampling` as a function that updates tensors in place.

Shapes: B sentences of the batch, R rows of a graph, W samples of each, T steps that fit into a
graph, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.engines.inference.cuda_graphs import Shape
from heedful.search.fixed_rules import FixedRules
from heedful.search.fixed_run import BatchSearch, Board
from heedful.search.sampling import draw, hypotheses_of, random_numbers_on
from heedful.search.search_settings import Hypothesis, SearchSettings, Specials


class SamplingJob(BatchSearch):
    """Samples of a batch on fixed memory; those that have ended repeat the end token."""

    def __init__(
        self,
        settings: SearchSettings,
        specials: Specials,
        rules: FixedRules,
        limits: Tensor,
        names: Tensor,
    ) -> None:
        super().__init__(settings.n_best, rules, limits)
        self.settings, self.specials, self.names = settings, specials, names

    @property
    def key(self) -> Hashable:
        s = self.settings
        # These settings are plain numbers in `draw`, so a graph holds them; seed, names and limits
        # are data.
        return "sample", s.temperature, s.top_k, s.top_p, s.min_p, s.epsilon, self.rules.key

    def board(self, shape: Shape) -> SamplingBoard:
        return SamplingBoard(self, shape)

    def begin(self, board: SamplingBoard, first: Tensor) -> None:
        super().begin(board, first)
        board.ended[: len(first)] = False

    def resume(self, board: SamplingBoard, sentences: Tensor) -> None:
        super().resume(board, sentences)
        board.names[: len(sentences)] = self.names.index_select(0, sentences)
        board.seed.fill_(self.settings.seed)

    def hypotheses(self, parts: Sequence[tuple[list[int], int, Any]]) -> list[list[Hypothesis]]:
        """Return the samples of all sentences from the parts of a search."""
        # Sentences that ended before a later part are filled up with end tokens of score 0.
        stop = max(first + drawn[0].shape[0] for _, first, (_, drawn) in parts)
        shape = (len(self.limits), self.width, stop)
        tokens, scores = torch.full(shape, self.specials.eos), torch.zeros(shape)
        wanted = torch.ones(shape[:2], dtype=torch.bool)
        for sentences, first, (of_part, drawn) in parts:
            rows = torch.tensor(sentences)
            wanted[rows] = of_part.cpu()
            for whole, part in zip((tokens, scores), drawn, strict=True):
                columns = torch.arange(first, first + part.shape[0])
                # Indices on both sides of a slice put their dimensions first: [B', T, W].
                whole[rows[:, None], :, columns] = part.cpu().transpose(0, 1)
        return hypotheses_of(tokens, scores, wanted, self.settings, self.specials)


class SamplingBoard(Board):
    """Samples of the sentences of a graph, whose reports end with the R · W drawn tokens.

    Attributes:
        ended: [R, W] bool, flags of samples that have ended; True in rows without a sentence.
        wanted: [R, W] bool, False for samples whose end was forced.
        names: [R] int64, key of each sentence in the generator of random numbers.
        seed: [1] int64, seed of the generator.
    """

    def __init__(self, job: SamplingJob, shape: Shape) -> None:
        self._settings, self._eos = job.settings, job.specials.eos
        rows, width, device = shape.rows, job.width, job.limits.device
        super().__init__(job, shape, reported=rows * width)
        self.ended = torch.ones((rows, width), dtype=torch.bool, device=device)
        self.wanted = torch.ones_like(self.ended)
        self.names = torch.zeros(rows, dtype=torch.int64, device=device)
        self.seed = torch.zeros_like(self.step)
        self._drawn = torch.zeros((self.steps, rows, width), dtype=torch.int64, device=device)
        self._scores = torch.zeros(self._drawn.shape, device=device)

    def clear(self) -> None:
        super().clear()
        self.ended.fill_(True)
        self.wanted.fill_(True)

    def moving(self) -> Sequence[Tensor]:
        return self.tokens, self.ended, self.wanted

    def saved(self, count: int, first: int, stop: int) -> tuple[Tensor, list[Tensor]]:
        drawn = [values[first:stop, :count].clone() for values in (self._drawn, self._scores)]
        return self.wanted[:count].clone(), drawn

    def update(self, logits: Tensor) -> None:
        """Draw a token of every sample, as `draws` does."""
        step, ended = self.step, self.ended
        rows, width = ended.shape
        scores = torch.log_softmax(logits, -1)
        fails = (scores[..., 0].isnan() & ~ended.all(1, keepdim=True)).any()
        # A draw by NaN gives an index past V, an assertion after which a GPU cannot be used.
        scores.nan_to_num_(0.0, posinf=math.inf, neginf=-math.inf)
        # Compared before the rules apply: at the limit the model may have wanted the end anyway.
        at_limit = (self.rules.limits == step)[:, None] & ~ended
        self.wanted &= ~at_limit | (scores.argmax(-1) == self._eos)
        self.rules.apply(scores, step)
        uniforms = random_numbers_on(self.seed, self.names, width, step)
        tokens = draw(scores, uniforms, self._settings).masked_fill(ended, self._eos)
        value = scores.gather(-1, tokens[..., None])[..., 0]
        self._drawn.index_copy_(0, step, tokens[None])
        self._scores.index_copy_(0, step, value[None])
        ended |= tokens == self._eos
        self.tokens.copy_(tokens)
        self.rules.remember(tokens, None, step)  # samples keep their rows
        step += 1
        self.report[:1] |= fails
        self.report[1 : 1 + rows] = ~ended.all(1)
        # The report includes the tokens, so that a reader of a stream gets them without another
        # copy.
        self.report[1 + rows :] = tokens.flatten()
