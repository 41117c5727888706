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
from heedful.search.fixed_rules import FixedRules, RuleRows
from heedful.search.sampling import draw, hypotheses_of, random_numbers_on
from heedful.search.search_settings import Hypothesis, SearchSettings, Specials


class SamplingJob:
    """Samples of a batch; see `BatchSearch`.

    Args:
        settings: settings of sampling.
        specials: special ids; the end token fills samples that have ended.
        rules: constraints of the search.
        limits: [B] int64, most tokens of each sentence, the end token not counted.
        names: [B] int64, key of each sentence in the generator of random numbers.
    """

    def __init__(
        self,
        settings: SearchSettings,
        specials: Specials,
        rules: FixedRules,
        limits: Tensor,
        names: Tensor,
    ) -> None:
        self.settings, self.specials, self.rules = settings, specials, rules
        self.limits, self.names = limits, names
        self.width = settings.n_best
        self.steps = max(limits.tolist()) + 1

    @property
    def key(self) -> Hashable:
        """See `BatchSearch`."""
        s = self.settings
        # Plain numbers in `draw`, so the graph holds them; seed, names and limits are tensors.
        return "sample", s.temperature, s.top_k, s.top_p, s.min_p, s.epsilon, self.rules.key

    def board(self, shape: Shape) -> SamplingBoard:
        """See `BatchSearch`."""
        return SamplingBoard(self, shape)

    def begin(self, board: SamplingBoard, first: Tensor) -> None:
        """See `BatchSearch`."""
        count = len(first)
        board.clear()
        board.tokens[:count] = first
        board.ended[:count] = False
        self.resume(board, torch.arange(count, device=first.device))

    def resume(self, board: SamplingBoard, sentences: Tensor) -> None:
        """See `BatchSearch`."""
        board.rules.load(self.rules, self.limits, sentences)
        board.names[: len(sentences)] = self.names.index_select(0, sentences)
        board.seed.fill_(self.settings.seed)

    def hypotheses(self, parts: Sequence[tuple[list[int], int, Any]]) -> list[list[Hypothesis]]:
        """Return the samples of all sentences from the parts of a search."""
        # Sentences that end early are in no later part: their rest is end tokens of score 0.
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


class SamplingBoard:
    """Samples of the sentences of a graph; see `Board`. Reports end with the R · W drawn tokens.

    Args:
        job: search of the kind that the graph serves.
        shape: shape of the graph.

    Attributes:
        ended: [R, W] bool, flags of samples that have ended; True in rows without a sentence.
        wanted: [R, W] bool, False for samples whose end was forced.
        names: [R] int64, key of each sentence in the generator of random numbers.
        seed: [1] int64, seed of the generator.
        rules: rules of the sentences.
    """

    def __init__(self, job: SamplingJob, shape: Shape) -> None:
        self._settings, self._eos = job.settings, job.specials.eos
        rows, width, device = shape.rows, job.width, job.limits.device
        steps = shape.slots // shape.tokens
        self.tokens = torch.zeros((rows, width), dtype=torch.int64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.report = torch.zeros(1 + rows + rows * width, dtype=torch.int64, device=device)
        self.ended = torch.ones((rows, width), dtype=torch.bool, device=device)
        self.wanted = torch.ones_like(self.ended)
        self.names = torch.zeros(rows, dtype=torch.int64, device=device)
        self.seed = torch.zeros_like(self.step)
        self.rules = RuleRows(job.rules, (rows, width, steps), device)
        self._drawn = torch.zeros((steps, rows, width), dtype=torch.int64, device=device)
        self._scores = torch.zeros((steps, rows, width), device=device)

    def clear(self) -> None:
        """Reset the board to no sentences."""
        for values in (self.tokens, self.step, self.report):
            values.zero_()
        self.rules.clear()
        self.ended.fill_(True)
        self.wanted.fill_(True)

    def take(self, other: SamplingBoard, rows: Tensor, sentences: Tensor) -> None:
        """See `Board`."""
        self.clear()
        count = len(rows)
        self.step.copy_(other.step)
        self.rules.take(other.rules, rows)
        pairs = ((self.tokens, other.tokens), (self.ended, other.ended))
        for mine, its in (*pairs, (self.wanted, other.wanted)):
            mine[:count] = its.index_select(0, rows)

    def saved(self, count: int, first: int, stop: int) -> tuple[Tensor, list[Tensor]]:
        """See `Board`."""
        drawn = [values[first:stop, :count].clone() for values in (self._drawn, self._scores)]
        return self.wanted[:count].clone(), drawn

    def update(self, logits: Tensor) -> None:
        """See `Board`, and `draws`."""
        step, ended = self.step, self.ended
        rows, width = ended.shape
        scores = torch.log_softmax(logits, -1)
        fails = (scores[..., 0].isnan() & ~ended.all(1, keepdim=True)).any()
        # A draw by NaN gives an index past V, an assertion after which a GPU cannot be used.
        scores.nan_to_num_(0.0, posinf=math.inf, neginf=-math.inf)
        # Before the rules: at the limit the model may have wanted the end anyway.
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
        # For a stream of text, whose reader gets each token without another copy.
        self.report[1 + rows :] = tokens.flatten()
