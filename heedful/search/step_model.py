"""Models as a search sees them, one step at a time, and the best continuations of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from heedful.errors import ModelError
from heedful.kernels import topk
from heedful.search.search_settings import Specials, not_numbers

_BLOCKS = 128
_WORTH_IT = 16
"""Fewer columns than so many times as many as blocks are sorted at once."""


class Candidates(NamedTuple):
    """Continuations of each sentence, best first.

    Args:
        total: summed log-probabilities [B, C] float64; −∞ where there is no candidate.
        parent: which hypothesis is continued [B, C] int64.
        token: with which token [B, C] int64.
        token_score: that token's log-probability [B, C] float32.
    """

    total: Tensor
    parent: Tensor
    token: Tensor
    token_score: Tensor


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-probabilities of logits [..., V], float32, in their place.

    Raises:
        ModelError: when the model gives no numbers, as after a diverged training.
    """
    # Fresh memory of this size would cost half as much again as what is computed in it.
    scores = torch.log_softmax(logits, -1, out=logits)
    _check(not scores[..., 0].isnan().any())  # one NaN among the logits makes its whole row NaN
    return scores


def log_totals(logits: Tensor) -> Tensor:
    """log Σ exp of logits [..., V], which they exceed their log-probabilities by: [...] float64.

    In float32 the differences would be as inexact as the largest logit.

    Raises:
        ModelError: when the model gives no numbers.
    """
    if topk.supports(logits):
        totals, are_numbers = topk.logsumexp(logits)
    else:
        totals = unchecked_totals(logits)
        are_numbers = not totals.isnan().any()
    _check(are_numbers)
    return totals


def unchecked_totals(logits: Tensor) -> Tensor:
    """The same by PyTorch's operations, NaN where the model gives no numbers: [...] float64."""
    top = logits.amax(-1, keepdim=True)
    return top[..., 0].double() + torch.logsumexp(logits - top, -1).double()


def _check(are_numbers: bool) -> None:
    if not are_numbers:
        raise not_numbers()


def best_candidates(logits: Tensor, excess: Tensor, totals: Tensor, count: int) -> Candidates:
    """The `count` best continuations of a sentence's hypotheses.

    Args:
        logits: of the next token [B, W, V] float32; −∞ where it is forbidden.
        excess: [B, W] float64, what they exceed the tokens' log-probabilities by.
        totals: summed log-probabilities so far [B, W] float64.
        count: C; when fewer exist, the rest is filled up with candidates of total −∞.
    """
    if topk.supports(logits):
        return Candidates(*topk.best_continuations(logits, excess, totals, count))
    return candidates_by_sorting(logits, excess, totals, count)


def candidates_by_sorting(logits: Tensor, excess: Tensor, totals: Tensor, count: int) -> Candidates:
    """The same by PyTorch's operations, which a graph can hold."""
    # No hypothesis can have more than `count` children among the `count` best of all.
    largest, tokens = _largest(logits, min(count, logits.shape[-1]))
    values = largest.double() - excess[..., None]
    each = values.shape[-1]
    sums = (totals[..., None] + values).flatten(1)
    total, flat = sums.topk(min(count, sums.shape[1]), -1)
    chosen = Candidates(
        total,
        flat // each,
        tokens.flatten(1).gather(1, flat),
        values.flatten(1).gather(1, flat).float(),
    )
    missing = count - total.shape[1]
    if missing == 0:
        return chosen
    fill = (-math.inf, 0, 0, -math.inf)
    padded = (functional.pad(t, (0, missing), value=v) for t, v in zip(chosen, fill, strict=True))
    return Candidates(*padded)


def _largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row [..., V], largest first: as `topk`, but without sorting much.

    The columns are dealt into blocks, as cards are. What is among the `count` largest of a row lies
    in one of the `count` blocks with the largest maxima.
    """
    size = scores.shape[-1]
    if size < _BLOCKS * max(count, _WORTH_IT) or scores.device.type != "cpu":
        return scores.topk(count, -1)
    deals = size // _BLOCKS
    rows = scores.flatten(0, -2)
    dealt = rows[:, : deals * _BLOCKS].unflatten(1, (deals, _BLOCKS))
    blocks = dealt.amax(1).topk(count, 1).indices
    chosen = torch.arange(0, deals * _BLOCKS, _BLOCKS) + blocks[..., None]  # [rows, count, deals]
    rest = torch.arange(deals * _BLOCKS, size).expand(len(rows), -1)
    columns = torch.cat([chosen.flatten(1), rest], 1)
    values, among = rows.gather(1, columns).topk(count, 1)
    shape = (*scores.shape[:-1], count)
    return values.view(shape), columns.gather(1, among).view(shape)


State = TypeVar("State")


class StepModel(Protocol[State]):
    """A model that continues target sequences, one token a step.

    A state is a value: B sentences of W sequences each. It is never changed in place, so that a
    search may step twice from one state.
    """

    def start(self, source: Tensor, source_positions: Tensor) -> State:
        """The state before any target token, of width 1.

        Args:
            source: token ids [B, S] int64.
            source_positions: [B, S] int64, −1 where there is only padding, on any side.
        """

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """Append a token to every sequence.

        Args:
            state: of B sentences and width W.
            tokens: ids [B, W] int64; the beginning-of-sequence token first.

        Returns:
            The logits of the next token [B, W, V] float32, which the search may overwrite, and the
            next state.
        """

    def reorder(self, state: State, rows: Tensor) -> State:
        """Choose, repeat and drop sequences.

        Args:
            state: of B sentences and width W.
            rows: [B', W'] int64, sentence · W + sequence of the old state. A row of it draws on
                one old sentence only; B' and W' may differ from B and W.
        """


@runtime_checkable
class AttentiveModel(Protocol):
    """A model whose attention over the source can be recomputed for a finished target."""

    def cross_attention(
        self, source: Tensor, source_positions: Tensor, target: Tensor, target_positions: Tensor
    ) -> Tensor:
        """Attention [N, B, H, T, S] of all layers and heads; row t predicts target t + 1."""


class Ensemble:
    """A `StepModel` whose next-token probabilities are the mean of its members'.

    Args:
        members: at least one model; all read and write the same vocabularies.
    """

    def __init__(self, members: Sequence[StepModel[Any]]) -> None:
        assert members
        self.members = tuple(members)

    def start(self, source: Tensor, source_positions: Tensor) -> tuple[Any, ...]:
        """See `StepModel`."""
        return tuple(member.start(source, source_positions) for member in self.members)

    def step(self, state: tuple[Any, ...], tokens: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """See `StepModel`; the logits are log-probabilities.

        Raises:
            ModelError: when members have target vocabularies of different sizes.
        """
        results = [m.step(s, tokens) for m, s in zip(self.members, state, strict=True)]
        sizes = {logits.shape[-1] for logits, _ in results}
        if len(sizes) > 1:
            raise ModelError(
                f"Models with target vocabularies of {sorted(sizes)} tokens cannot be averaged",
                remedy="Give models trained with the same tokenizer",
            )
        scores = torch.stack([log_probabilities(logits) for logits, _ in results])
        mean = scores.logsumexp(0) - math.log(len(results))
        return mean, tuple(state for _, state in results)

    def reorder(self, state: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
        """See `StepModel`."""
        return tuple(m.reorder(s, rows) for m, s in zip(self.members, state, strict=True))

    def cross_attention(
        self, source: Tensor, source_positions: Tensor, target: Tensor, target_positions: Tensor
    ) -> Tensor:
        """Attention [M, B, 1, T, S] of the M members, the mean over each one's layers and heads."""
        means = []
        for member in self.members:
            assert isinstance(member, AttentiveModel)
            weights = member.cross_attention(source, source_positions, target, target_positions)
            means.append(weights.mean((0, 2))[None, :, None])
        return torch.cat(means)


Stopped = Callable[[int, Sequence[int]], bool]
"""Whether a prompt of the batch, given by its row, is continued far enough by these tokens."""


@dataclass(frozen=True)
class Continued(Generic[State]):
    """B prompts with W continuations each.

    Args:
        inner: the model's state.
        first: [B, W] int64, the tokens to read first; None once they are read.
        prompts: [B] int64, rows of the prompts in the full batch.
        tokens: [B, W, t] int64, the continuations so far.
    """

    inner: State
    first: Tensor | None
    prompts: Tensor
    tokens: Tensor


class Continuation(Generic[State]):
    """A `StepModel` over whole prompts, for searches with the special ids `specials`.

    A search starts every sequence with one begin token and ends it with one end token. Here the
    first is the prompt's own last token, and the second is a token past the vocabulary. It has the
    probability of all tokens that end a text together, and is certain where a text is cut: at its
    longest length, and once it holds a stop string. Being cut costs a continuation nothing.

    Args:
        model: reads all of a prompt but its last token, then token by token.
        vocabulary: its number of tokens V.
        ends: tokens that end a text; none for a model that never ends one.
        limit: most tokens of a continuation.
        stopped: where to stop besides.
    """

    def __init__(
        self,
        model: StepModel[State],
        *,
        vocabulary: int,
        ends: Sequence[int],
        limit: int,
        stopped: Stopped | None = None,
    ) -> None:
        self.model = model
        self.end = vocabulary
        self.ends = tuple(ends)
        self.limit = limit
        self.stopped = stopped
        self._index: Tensor | None = None

    @property
    def specials(self) -> Specials:
        """The end token stands for all three: nothing else is kept from being generated."""
        return Specials(pad=self.end, bos=self.end, eos=self.end)

    def start(self, source: Tensor, source_positions: Tensor) -> Continued[State]:
        """Read prompts [B, L], each of at least one token; see `StepModel`."""
        last = source_positions == source_positions.amax(1, keepdim=True)
        before = source_positions.masked_fill(last, -1)
        columns = (before >= 0).any(0)
        inner = self.model.start(source[:, columns], before[:, columns])
        rows = torch.arange(len(source), device=source.device)
        return Continued(inner, source[last][:, None], rows, source.new_empty((len(source), 1, 0)))

    def step(self, state: Continued[State], tokens: Tensor) -> tuple[Tensor, Continued[State]]:
        """See `StepModel`. The first tokens given are not read, but the prompts' last ones."""
        if state.first is not None:
            tokens, state = state.first, replace(state, first=None)
        else:
            state = replace(state, tokens=torch.cat([state.tokens, tokens[..., None]], -1))
        certain = torch.full((self.end + 1,), -math.inf, device=tokens.device)
        certain[self.end] = 0.0
        if state.tokens.shape[-1] >= self.limit:
            return certain.expand(*tokens.shape, -1).clone(), state
        # Samples that have ended are fed their end until their prompt's others have ended too.
        readable = tokens.masked_fill(tokens == self.end, 0)
        logits, inner = self.model.step(state.inner, readable)
        cut = self._cut(state)
        return torch.where(cut[..., None], certain, self._with_end(logits)), replace(
            state, inner=inner
        )

    def reorder(self, state: Continued[State], rows: Tensor) -> Continued[State]:
        """See `StepModel`."""
        width = state.tokens.shape[1]
        return Continued(
            self.model.reorder(state.inner, rows),
            None if state.first is None else state.first.flatten()[rows],
            state.prompts[rows[:, 0] // width],
            state.tokens.flatten(0, 1)[rows],
        )

    def _with_end(self, logits: Tensor) -> Tensor:
        """[B, W, V] to [B, W, V + 1]: what ends a text counts as the end, and as nothing else."""
        index = self._ends_on(logits.device)
        end = logits[..., index].logsumexp(-1, keepdim=True)  # of none: −∞
        return torch.cat([logits.index_fill(-1, index, -math.inf), end], -1)

    def _ends_on(self, device: torch.device) -> Tensor:
        """Its ends as an index; to bring it to a GPU in every step would wait each time."""
        if self._index is None or self._index.device != device:
            self._index = torch.tensor(self.ends, dtype=torch.int64, device=device)
        return self._index

    def _cut(self, state: Continued[State]) -> Tensor:
        """[B, W] bool: continuations that must end here."""
        cut = (state.tokens == self.end).any(-1)
        if self.stopped is not None and state.tokens.shape[-1]:
            pairs = zip(state.prompts.tolist(), state.tokens.tolist(), cut.tolist(), strict=True)
            stopped = [
                [done or self.stopped(prompt, ids) for ids, done in zip(rows, ended, strict=True)]
                for prompt, rows, ended in pairs
            ]
            cut = torch.tensor(stopped, device=cut.device)
        return cut
