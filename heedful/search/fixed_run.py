"""Searches on fixed memory: a step is one graph, and the host never waits for the one it started.

A step of a search is a function on tensors that stay where they are: it reads a token of every
hypothesis, computes logits, chooses, and notes what it chose. The host only starts it again and
again. A few steps later it learns which sentences are done. They go on beside the others, without
any effect on their results, until so many are done that a smaller graph serves those that are left.

Shapes: R rows of a graph, W hypotheses of each, T steps that it has room for, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from heedful.engines.inference.cuda_graphs import Replay, Shape
from heedful.engines.inference.fixed_decoder import (
    DecoderState,
    FixedDecoder,
    FixedSteps,
    slots_of,
)
from heedful.models.causal_lm import CachedLM
from heedful.search.lookahead import STEPS_AHEAD, Lookahead, index_on
from heedful.search.search_settings import not_numbers
from heedful.search.step_model import Continuation

_FIRST_STEPS = 16
"""Steps that a first graph has room for; a longer search moves to one with twice as many slots."""

_WORTH_MOVING = 0.5
"""Largest share of rows left for which sentences move to a smaller graph: it costs a copy of all
keys, and a recording where there is no such graph yet."""

_FEWEST_ROWS = 4
"""Graphs of fewer rows are as slow: a step of few rows is the time of starting its kernels."""


class Board(Protocol):
    """A search's knowledge of the sentences of a graph, and its choice by logits.

    Attributes:
        tokens: [R, W] int64, to be read next.
        step: [1] int64, tokens of every hypothesis so far.
        report: [1 + R, …] int64: whether the model gave something else than numbers, which
            sentences go on, and more that the search asks for.
    """

    tokens: Tensor
    step: Tensor
    report: Tensor

    def update(self, logits: Tensor) -> Tensor | None:
        """Choose by logits [R, W, V], in place; return the parents [R, W] of those that go on."""

    def take(self, other: Any, rows: Tensor, sentences: Tensor) -> None:
        """Take over some rows [B'] of another board, of these sentences of the full batch."""

    def saved(self, count: int, first: int, stop: int) -> Any:
        """Copy what the search needs of the first rows, and of steps from `first` to `stop`."""


class BatchSearch(Protocol):
    """A search over a batch.

    Attributes:
        width: W.
        steps: the most it takes.
    """

    width: int
    steps: int

    @property
    def key(self) -> Hashable:
        """All that a graph has of the search; the rest is data."""

    def board(self, shape: Shape) -> Board:
        """Make an empty board."""

    def begin(self, board: Any, first: Tensor) -> None:
        """Set a board to the beginning of the search, with tokens [B, 1] to read first."""

    def resume(self, board: Any, sentences: Tensor) -> None:
        """Give a board the data of its sentences, numbers [B'] in the full batch."""


@dataclass(frozen=True)
class Ending:
    """The end of texts by a language model; see `Continuation`.

    Args:
        ends: tokens that end a text.
        end: the token past the vocabulary that stands for them all.
        limit: most tokens of a continuation, after which the end is certain.
    """

    ends: tuple[int, ...]
    end: int
    limit: int


@dataclass(frozen=True)
class FixedModel:
    """A model that decodes on fixed memory, and where a search begins.

    Args:
        steps: the engine's.
        state: from the model's `start`.
        first: [B, 1] int64, the tokens to read first; the begin token if None.
        ending: how texts end, where a prompt is continued.
    """

    steps: FixedSteps
    state: DecoderState
    first: Tensor | None = None
    ending: Ending | None = None

    @classmethod
    def of(cls, model: object, state: Any) -> FixedModel | None:
        """Find the fixed memory of a search's model; None where it has none."""
        first = ending = None
        if isinstance(model, Continuation):
            if model.stopped is not None:  # only the host can tell what text tokens spell
                return None
            first, ending = state.first, Ending(model.ends, model.end, model.limit)
            model, state = model.model, state.inner
        if isinstance(model, CachedLM):
            model = model.model
        steps: FixedSteps | None = getattr(model, "fixed_steps", None)
        if steps is None or steps.model is not model:  # a copy of an engine has another's
            return None
        return cls(steps, state, first, ending)


class _Program:
    """A step of a search on a decoder and a board, and its graph once it has run.

    Args:
        model: decodes.
        shape: of the memory.
        board: of the search.
    """

    def __init__(self, model: FixedModel, shape: Shape, board: Board) -> None:
        self.decoder = FixedDecoder(model.steps, shape, model.state)
        self.board = board
        self.cut_at = torch.zeros_like(board.step)
        self._end = -1 if model.ending is None else model.ending.end
        ends = () if model.ending is None else model.ending.ends
        self._ends = index_on(list(ends), board.step.device)
        self._ran = False
        self._replay: Replay | None = None

    @property
    def bytes(self) -> int:
        """Bytes of its keys and values."""
        return self.decoder.bytes

    def run(self, steps: FixedSteps) -> None:
        """Do the step: as it is the first time, then as a graph, which is recorded before."""
        if self._ran and self._replay is None:
            self._replay = steps.recorded(self._compute)
        (self._replay or self._compute)()
        self._ran = True

    def _compute(self) -> Tensor:
        parents = self.board.update(self._logits())
        if parents is not None:
            self.decoder.choose(parents)
        return self.board.report

    def _logits(self) -> Tensor:
        """See `Continuation.step`: one more token, which stands for all that end a text."""
        tokens = self.board.tokens
        if self._end < 0:
            return self.decoder.advance(tokens)
        logits = self.decoder.advance(tokens.masked_fill(tokens == self._end, 0))
        end = logits[..., self._ends].logsumexp(-1, keepdim=True)  # of none: −∞
        logits = torch.cat([logits.index_fill(-1, self._ends, -math.inf), end], -1)
        certain = torch.full_like(logits[:1, :1], -math.inf)
        certain[..., self._end].fill_(0.0)
        return torch.where(self.board.step >= self.cut_at, certain, logits)


class FixedRun:
    """One search on fixed memory.

    Args:
        model: decodes.
        job: the search.
        first: [B, 1] int64, the tokens to read first.
        ahead: steps that the device may be behind.

    Attributes:
        parts: once it is done, the sentences of each graph, its first step, and what it saved.
    """

    def __init__(
        self, model: FixedModel, job: BatchSearch, first: Tensor, ahead: int = STEPS_AHEAD
    ) -> None:
        self.parts: list[tuple[list[int], int, Any]] = []
        self._model, self._job = model, job
        self._ahead: Lookahead[list[int]] = Lookahead(ahead)
        self._sentences = list(range(len(first)))
        self._running = set(self._sentences)
        self._used, self._step, self._since = slots_of(model.state), 0, 0
        slots = self._used + job.width * min(job.steps, _FIRST_STEPS)
        self._shape = self._shape_for(len(first), slots)
        self._program = self._borrow(self._shape)
        self._program.decoder.load(model.state)
        job.begin(self._program.board, first)

    def reports(self) -> Iterator[tuple[list[int], list[int]]]:
        """Search to the end; yield the sentences and the report of each step, some steps later.

        Raises:
            ModelError: when the model gives no numbers.
        """
        try:
            while self._step < self._job.steps and self._running:
                self._make_room()
                self._program.run(self._model.steps)
                self._used += self._job.width
                self._step += 1
                self._ahead.send(self._sentences, self._program.board.report)
                for landed in self._ahead.arrived():
                    self._look(*landed)
                    yield landed
            for landed in self._ahead.arrived(all_of_them=True):
                self._look(*landed)
                yield landed
            self._save()
        finally:
            self._give_back(self._shape, self._program)

    def _look(self, sentences: Sequence[int], report: Sequence[int]) -> None:
        if report[0]:
            raise not_numbers()
        going_on = report[1 : 1 + len(sentences)]
        self._running.difference_update(
            each for each, runs in zip(sentences, going_on, strict=True) if not runs
        )

    def _make_room(self) -> None:
        """Move to a graph with more slots, or to one with fewer rows, where it is time to."""
        shape, needed = self._shape, self._used + self._job.width
        rows_left = min(max(len(self._running), _FEWEST_ROWS), shape.rows)
        left = self._shape_for(rows_left, max(needed, shape.slots))
        if shape.slots >= needed and left.rows > _WORTH_MOVING * shape.rows:
            return
        places = [at for at, each in enumerate(self._sentences) if each in self._running]
        self._save()
        program, device = self._borrow(left), self._model.steps.device
        self._sentences = [self._sentences[at] for at in places]
        rows, sentences = index_on(places, device), index_on(self._sentences, device)
        program.decoder.take(self._program.decoder, rows, self._used)
        program.board.take(self._program.board, rows, sentences)
        self._job.resume(program.board, sentences)
        self._give_back(shape, self._program)
        self._shape, self._program, self._since = left, program, self._step

    def _save(self) -> None:
        saved = self._program.board.saved(len(self._sentences), self._since, self._step)
        self.parts.append((self._sentences, self._since, saved))

    def _shape_for(self, rows: int, slots: int) -> Shape:
        return self._model.steps.shape(self._model.state, rows, self._job.width, slots)

    def _key(self, shape: Shape) -> Hashable:
        ending = self._model.ending
        return shape, self._job.key, None if ending is None else (ending.ends, ending.end)

    def _borrow(self, shape: Shape) -> _Program:
        def build() -> _Program:
            return _Program(self._model, shape, self._job.board(shape))

        program = self._model.steps.borrow(self._key(shape), build)
        if self._model.ending is not None:
            program.cut_at.fill_(self._model.ending.limit)
        return program

    def _give_back(self, shape: Shape, program: _Program) -> None:
        self._model.steps.give_back(self._key(shape), program)
