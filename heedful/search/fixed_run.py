"""Searches on fixed memory: a step is one graph, and the host never waits for the latest step.

A step is a function on tensors at fixed addresses: it computes logits for the latest token of every
hypothesis, chooses continuations and records them. The host only starts it again and again, and
learns a few steps later which sentences are done. These go on without effect on the results, until
so few are left that a smaller graph serves them.

Shapes: R rows of a graph, W hypotheses of each, T steps that fit into it, V vocabulary.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar

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
from heedful.search.fixed_rules import FixedRules, RuleRows
from heedful.search.search_settings import not_numbers
from heedful.search.step_model import Continuation, end_merged, index_on

_FIRST_STEPS = 16
"""Steps that fit into a first graph; a longer search moves to one with more slots."""

_WORTH_MOVING = 0.5
"""Largest share of remaining rows at which sentences move to a smaller graph. A move costs a copy
of all keys and values, and a recording where there is no such graph yet."""

_FEWEST_ROWS = 4
"""Rows of the smallest graph: with fewer a step takes as long, the time to start its kernels."""


class BatchSearch:
    """A search over a batch on fixed memory.

    Args:
        width: number W of hypotheses of a sentence.
        rules: constraints of the search.
        limits: [B] int64, most tokens of each sentence, the end token not counted.

    Attributes:
        steps: most steps of the search.
    """

    def __init__(self, width: int, rules: FixedRules, limits: Tensor) -> None:
        self.width, self.rules, self.limits = width, rules, limits
        self.steps = int(limits.max()) + 1

    @property
    def key(self) -> Hashable:
        """The part of the search that is fixed in a graph; the rest is data."""
        raise NotImplementedError

    def board(self, shape: Shape) -> Board:
        """Return an empty board."""
        raise NotImplementedError

    def begin(self, board: Any, first: Tensor) -> None:
        """Set a board to the beginning of the search, with the first tokens [B, 1]."""
        board.clear()
        board.tokens[: len(first)] = first
        self.resume(board, torch.arange(len(first), device=first.device))

    def resume(self, board: Any, sentences: Tensor) -> None:
        """Copy the data of sentences to a board, by their indices [B'] in the full batch."""
        board.rules.load(self.rules, self.limits, sentences)


class Board:
    """The state of a search for the sentences of a graph, and its choice of continuations.

    Args:
        job: search of the kind that the graph serves.
        shape: shape of the graph.
        reported: number of values that a report ends with.

    Attributes:
        tokens: [R, W] int64, latest token of each hypothesis.
        step: [1] int64, number of tokens of every hypothesis so far.
        steps: number T of steps that fit into the graph.
        report: [1 + R + …] int64: a flag for logits that are NaN, a flag for each sentence that
            goes on, and values that are particular to the search.
        rules: rules of the sentences.
    """

    def __init__(self, job: BatchSearch, shape: Shape, reported: int = 0) -> None:
        rows, device, self.steps = shape.rows, job.limits.device, shape.slots // shape.tokens
        self.tokens = torch.zeros((rows, job.width), dtype=torch.int64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.report = torch.zeros(1 + rows + reported, dtype=torch.int64, device=device)
        self.rules = RuleRows(job.rules, (rows, job.width, self.steps), device)

    def clear(self) -> None:
        """Reset the board to no sentences."""
        for values in (self.tokens, self.step, self.report):
            values.zero_()
        self.rules.clear()

    def moving(self) -> Sequence[Tensor]:
        """Return the tensors with a row for each sentence that go along to another graph."""
        return (self.tokens,)

    def take(self, other: Self, rows: Tensor) -> None:
        """Copy rows [B'] of another board."""
        self.clear()
        self.step.copy_(other.step)
        self.rules.take(other.rules, rows)
        for mine, its in zip(self.moving(), other.moving(), strict=True):
            mine[: len(rows)] = its.index_select(0, rows)

    def update(self, logits: Tensor) -> Tensor | None:
        """Choose continuations by logits [R, W, V], in place; return their parents [R, W]."""
        raise NotImplementedError

    def saved(self, count: int, first: int, stop: int) -> Any:
        """Copy the results of the first `count` rows, and of the steps from `first` to `stop`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ending:
    """The end of texts by a language model; see `Continuation`.

    Args:
        ends: tokens that end a text.
        end: token past the vocabulary that stands for all of them.
        limit: most tokens of a continuation, after which the end is certain.
    """

    ends: tuple[int, ...]
    end: int
    limit: int


@dataclass(frozen=True)
class FixedModel:
    """A model that decodes on fixed memory, and the beginning of a search.

    Args:
        steps: decoding steps of the engine.
        state: result of the model's `start`.
        first: first tokens [B, 1] int64; the begin token if None.
        ending: end of texts, for continuations of a prompt.
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
            if model.stopped is not None:  # stop strings are found in text, which only the host has
                return None
            first, ending = state.first, Ending(model.ends, model.end, model.limit)
            model, state = model.model, state.inner
        if isinstance(model, CachedLM):
            model = model.model
        steps: FixedSteps | None = getattr(model, "fixed_steps", None)
        if steps is None or steps.model is not model:  # a copied engine still has the original's
            return None
        return cls(steps, state, first, ending)


class _Program:
    """A step of a search on a decoder and a board, and its graph from the second step on."""

    def __init__(self, model: FixedModel, shape: Shape, board: Board) -> None:
        self.decoder = FixedDecoder(model.steps, shape, model.state)
        self.board = board
        # A tensor, as the limit differs from search to search and the graph is the same.
        self.cut_at = torch.zeros_like(board.step)
        self._end = -1 if model.ending is None else model.ending.end
        ends = () if model.ending is None else model.ending.ends
        self._ends = index_on(list(ends), board.step.device)
        self._ran = False
        self._replay: Replay | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values."""
        return self.decoder.bytes

    def run(self, steps: FixedSteps) -> None:
        """Run a step: directly at first, then as a graph, which the second call records."""
        # Libraries allocate their workspaces in the first call, which a recording forbids.
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
        """Return logits with one more token, the common end of texts; see `Continuation.step`."""
        tokens = self.board.tokens
        if self._end < 0:
            return self.decoder.advance(tokens)
        # No row of the table has the end token: hypotheses that have ended read token 0.
        logits = self.decoder.advance(tokens.masked_fill(tokens == self._end, 0))
        logits = end_merged(logits, self._ends)
        certain = torch.full_like(logits[:1, :1], -math.inf)
        certain[..., self._end].fill_(0.0)
        return torch.where(self.board.step >= self.cut_at, certain, logits)


STEPS_AHEAD = 2
"""Steps that a device has queued while the host waits for a result. One keeps it busy; the second
covers a host that is late. Each wastes one step after the end of a batch."""

Label = TypeVar("Label")


class _Copy(NamedTuple, Generic[Label]):
    label: Label
    values: Tensor
    arrived: torch.cuda.Event | None


class Lookahead(Generic[Label]):
    """A queue of small tensors on their way to the host, each read `steps` steps later.

    A host that asks a GPU after every step which sentences are done waits until the GPU has
    finished, and the GPU then waits for the host. So each copy is asynchronous.

    Args:
        steps: delay in steps; 0 waits for each tensor.
    """

    def __init__(self, steps: int = STEPS_AHEAD) -> None:
        self._steps = steps
        self._copies: deque[_Copy[Label]] = deque()

    def send(self, label: Label, values: Tensor) -> None:
        """Start the copy of a tensor, which may be overwritten at once, for `arrived`."""
        if values.device.type != "cuda":
            # Copied on a processor too, since the caller overwrites the tensor in place.
            self._copies.append(_Copy(label, values.to("cpu", copy=True), None))
            return
        # Only pinned memory is copied without waiting; pageable memory is staged by the driver.
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copy.copy_(values, non_blocking=True)
        # An event of this copy: to synchronise the stream would wait for later steps as well.
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(values.device))
        self._copies.append(_Copy(label, copy, arrived))

    def arrived(self, *, all_of_them: bool = False) -> Iterator[tuple[Label, list[int]]]:
        """Yield the tensors of `steps` steps ago, or all of them, and wait only for these."""
        while len(self._copies) > (0 if all_of_them else self._steps):
            copy = self._copies.popleft()
            if copy.arrived is not None:
                copy.arrived.synchronize()
            yield copy.label, copy.values.tolist()


class FixedRun:
    """One search on fixed memory.

    Args:
        model: model that decodes.
        job: search over the batch.
        first: first tokens [B, 1] int64.
        ahead: steps that the device may be behind the host.

    Attributes:
        parts: the sentences of each graph, its first step, and its results; complete after
            `reports`.
    """

    def __init__(
        self, model: FixedModel, job: BatchSearch, first: Tensor, ahead: int = STEPS_AHEAD
    ) -> None:
        self.parts: list[tuple[list[int], int, Any]] = []
        self._model, self._job = model, job
        self._ahead: Lookahead[list[int]] = Lookahead(ahead)
        self._sentences = list(range(len(first)))
        self._running = set(self._sentences)
        # Slots of keys in use (a prompt fills some), the step, and the first step of the graph.
        self._used, self._step, self._since = slots_of(model.state), 0, 0
        slots = self._used + job.width * min(job.steps, _FIRST_STEPS)
        self._shape = self._shape_for(len(first), slots)
        self._program = self._borrow(self._shape)
        self._program.decoder.load(model.state)
        job.begin(self._program.board, first)

    def reports(self) -> Iterator[tuple[list[int], list[int]]]:
        """Search to the end; yield the sentences and the report of each step, with a delay.

        Raises:
            ModelError: when the model's logits are NaN.
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
        # The graph is kept for later searches, even if this search was abandoned.
        finally:
            self._give_back(self._shape, self._program)

    def _look(self, sentences: Sequence[int], report: Sequence[int]) -> None:
        if report[0]:
            raise not_numbers()
        # Rows beyond the sentences are padding of the graph.
        going_on = report[1 : 1 + len(sentences)]
        self._running.difference_update(
            each for each, runs in zip(sentences, going_on, strict=True) if not runs
        )

    def _make_room(self) -> None:
        """Move to a graph with more slots if all are full, or with fewer rows if many are done."""
        shape, needed = self._shape, self._used + self._job.width
        rows_left = min(max(len(self._running), _FEWEST_ROWS), shape.rows)
        left = self._shape_for(rows_left, max(needed, shape.slots))
        if shape.slots >= needed and left.rows > _WORTH_MOVING * shape.rows:
            return
        # The host learns this some steps late: sentences that have ended since then are copied
        # too, without effect.
        places = [at for at, each in enumerate(self._sentences) if each in self._running]
        self._save()
        program, device = self._borrow(left), self._model.steps.device
        self._sentences = [self._sentences[at] for at in places]
        rows, sentences = index_on(places, device), index_on(self._sentences, device)
        program.decoder.take(self._program.decoder, rows, self._used)
        program.board.take(self._program.board, rows)
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
        # Everything that is recorded in a graph; a search with an equal key can use it.
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
