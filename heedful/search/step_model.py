"""The protocols of a step: of models, and of the selection of the best continuations."""

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
from heedful.search.constraints import Constraints, Moment
from heedful.search.search_settings import SearchSettings, Specials, not_numbers

_BLOCKS = 128
_WORTH_IT = 16
"""Columns per block below which a row is sorted as a whole: `_BLOCKS` times as many in all."""


class Candidates(NamedTuple):
    """Continuations of each sentence, best first.

    Args:
        log_prob: summed log-probabilities [B, C] float64; −∞ where there is no candidate.
        parent: index of the hypothesis that is continued [B, C] int64.
        token: token that continues it [B, C] int64.
        token_score: log-probability of that token [B, C] float32.
    """

    log_prob: Tensor
    parent: Tensor
    token: Tensor
    token_score: Tensor


class Beam(NamedTuple):
    """The outcome of a step.

    Args:
        candidates: continuations that were ranked [B, C].
        ends: mask of the finished hypotheses among these [B, C] bool; None where none ends.
        live: continuations that live on [B, W], best first; missing ones have log-probability −∞.
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


def log_probabilities(logits: Tensor) -> Tensor:
    """Return the log-probabilities of logits [..., V] float32, computed in place.

    Raises:
        ModelError: when a logit is NaN, as after training that diverged.
    """
    # Computed in place: with new memory of this size it takes half as long again.
    scores = torch.log_softmax(logits, -1, out=logits)
    _check(not scores[..., 0].isnan().any())  # one NaN among the logits makes its whole row NaN
    return scores


def row_logsumexp(logits: Tensor) -> Tensor:
    """Return the logsumexp of logits [..., V] as [...] float64.

    It is the difference between logits and log-probabilities. In float32 it would be as inexact as
    the largest logit.

    Raises:
        ModelError: when a logit is NaN.
    """
    if topk.supports(logits):
        logsumexp, are_numbers = topk.logsumexp(logits)
    else:
        logsumexp = unchecked_logsumexp(logits)
        are_numbers = not logsumexp.isnan().any()
    _check(are_numbers)
    return logsumexp


def unchecked_logsumexp(logits: Tensor) -> Tensor:
    """Return the same as `row_logsumexp` by PyTorch; NaN where a logit is NaN."""
    top = logits.amax(-1, keepdim=True)
    # The row's largest logit is added in float64, so that the rest is a small float32 number.
    return top[..., 0].double() + torch.logsumexp(logits - top, -1).double()


def _check(are_numbers: bool) -> None:
    if not are_numbers:
        raise not_numbers()


def best_candidates(logits: Tensor, logsumexp: Tensor, log_probs: Tensor, count: int) -> Candidates:
    """Return the `count` best continuations of a sentence's hypotheses.

    Args:
        logits: logits of the next token [B, W, V] float32; −∞ where it is forbidden.
        logsumexp: logsumexp of the logits [B, W] float64, from before any was forbidden.
        log_probs: summed log-probabilities of the hypotheses [B, W] float64.
        count: number C of candidates; where fewer exist, the rest has log-probability −∞.
    """
    if topk.supports(logits):
        return Candidates(*topk.best_continuations(logits, logsumexp, log_probs, count))
    return candidates_by_sorting(logits, logsumexp, log_probs, count)


def candidates_by_sorting(
    logits: Tensor, logsumexp: Tensor, log_probs: Tensor, count: int
) -> Candidates:
    """Return the same as `best_candidates` by PyTorch's operations, which a graph can hold."""
    # No hypothesis can have more than `count` children among the `count` best of all.
    largest, tokens = _largest(logits, min(count, logits.shape[-1]))
    values = largest.double() - logsumexp[..., None]
    each = values.shape[-1]
    sums = (log_probs[..., None] + values).flatten(1)
    log_prob, flat = sums.topk(min(count, sums.shape[1]), -1)
    chosen = Candidates(
        log_prob,
        flat // each,
        tokens.flatten(1).gather(1, flat),
        values.flatten(1).gather(1, flat).float(),
    )
    missing = count - log_prob.shape[1]
    if missing == 0:
        return chosen
    fill = (-math.inf, 0, 0, -math.inf)
    padded = (functional.pad(t, (0, missing), value=v) for t, v in zip(chosen, fill, strict=True))
    return Candidates(*padded)


def _largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of each row [..., V] and their columns, largest first.

    It gives the result of `topk` and sorts less. Column i belongs to block i modulo `_BLOCKS`. The
    `count` largest of a row are all in the `count` blocks with the largest maxima.
    """
    size = scores.shape[-1]
    # If nearly all blocks are chosen, nothing is saved; GPUs have their own sorts.
    if size < _BLOCKS * max(count, _WORTH_IT) or scores.device.type != "cpu":
        return scores.topk(count, -1)
    deals = size // _BLOCKS
    rows = scores.flatten(0, -2)
    # Strided blocks, whose maxima are vector operations. Ten of 10,000 columns in 160 rows take
    # 1.1 ms, and 2.2 ms by `topk` alone.
    dealt = rows[:, : deals * _BLOCKS].unflatten(1, (deals, _BLOCKS))
    blocks = dealt.amax(1).topk(count, 1).indices
    chosen = torch.arange(0, deals * _BLOCKS, _BLOCKS) + blocks[..., None]  # [rows, count, deals]
    # The last columns, fewer than a block has, are candidates in any case.
    rest = torch.arange(deals * _BLOCKS, size).expand(len(rows), -1)
    columns = torch.cat([chosen.flatten(1), rest], 1)
    values, among = rows.gather(1, columns).topk(count, 1)
    shape = (*scores.shape[:-1], count)
    return values.view(shape), columns.gather(1, among).view(shape)


def index_on(numbers: list[int], device: torch.device) -> Tensor:
    """Return numbers as an index [n] int64 on a device.

    A GPU gets them from pinned memory: a copy from other memory would wait for all of its work.
    """
    index = torch.tensor(numbers, dtype=torch.int64)
    if device.type != "cuda":
        return index.to(device)
    return index.pin_memory().to(device, non_blocking=True)


State = TypeVar("State")


class StepModel(Protocol[State]):
    """A model that continues target sequences, one token a step.

    A state is a value: B sentences of W sequences each. It is never changed in place, so that a
    search may step twice from one state.
    """

    def start(self, source: Tensor, source_positions: Tensor) -> State:
        """Return the state before any target token, of width 1.

        Args:
            source: token ids [B, S] int64.
            source_positions: [B, S] int64, −1 for padding, on any side.
        """

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """Append a token to every sequence.

        Args:
            state: state of B sentences and width W.
            tokens: ids [B, W] int64; the beginning-of-sequence token first.

        Returns:
            The logits of the next token [B, W, V] float32, which the search may overwrite, and the
            next state.
        """

    def reorder(self, state: State, rows: Tensor) -> State:
        """Choose, repeat and drop sequences.

        Args:
            state: state of B sentences and width W.
            rows: indices [B', W'] int64, sentence · W + sequence, of the old state. All of a row
                belong to one old sentence; B' and W' may differ from B and W.
        """


class SearchTask(NamedTuple, Generic[State]):
    """A batch of sentences to search in, after a model has read their sources.

    Args:
        model: model to search with.
        state: its state after the sources were read, from `start`.
        settings: settings of the search.
        specials: ids of the beginning and the end of a sequence.
        rules: constraints on the tokens of hypotheses.
        limits: [B] int64, maximum number of tokens of each sentence without the end token.
    """

    model: StepModel[State]
    state: State
    settings: SearchSettings
    specials: Specials
    rules: Constraints
    limits: Tensor


@runtime_checkable
class AttentiveModel(Protocol):
    """A model whose attention over the source can be recomputed for a finished target."""

    def cross_attention(
        self, source: Tensor, source_positions: Tensor, target: Tensor, target_positions: Tensor
    ) -> Tensor:
        """Return attention [N, B, H, T, S] of all layers and heads; row t predicts target t + 1."""


class Ensemble:
    """A `StepModel` whose next-token probabilities are the mean of its members'.

    Args:
        members: models, at least one, all with the same vocabularies.
    """

    def __init__(self, members: Sequence[StepModel[Any]]) -> None:
        assert members
        self.members = tuple(members)

    def start(self, source: Tensor, source_positions: Tensor) -> tuple[Any, ...]:
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
        # Probabilities are averaged, not their logarithms: log Σ p − log M.
        mean = scores.logsumexp(0) - math.log(len(results))
        return mean, tuple(state for _, state in results)

    def reorder(self, state: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
        return tuple(m.reorder(s, rows) for m, s in zip(self.members, state, strict=True))

    def cross_attention(
        self, source: Tensor, source_positions: Tensor, target: Tensor, target_positions: Tensor
    ) -> Tensor:
        """Return attention [M, B, 1, T, S] of the M members, the mean over layers and heads."""
        # Members may have different numbers of layers and heads.
        means = []
        for member in self.members:
            assert isinstance(member, AttentiveModel)
            weights = member.cross_attention(source, source_positions, target, target_positions)
            means.append(weights.mean((0, 2))[None, :, None])
        return torch.cat(means)


def end_merged(logits: Tensor, ends: Tensor) -> Tensor:
    """Move the probability of the tokens `ends` that end a text to one more token: [..., V + 1]."""
    end = logits[..., ends].logsumexp(-1, keepdim=True)  # −∞ where no token ends a text
    return torch.cat([logits.index_fill(-1, ends, -math.inf), end], -1)


Stopped = Callable[[int, Sequence[int]], bool]
"""Function of a prompt's row in the batch and its new tokens: True where the text may stop."""


@dataclass(frozen=True)
class Continued(Generic[State]):
    """B prompts with W continuations each.

    Args:
        inner: state of the model.
        first: [B, W] int64, last tokens of the prompts; None after the first step.
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
    prompt's last token takes the place of the begin token, and the end token is an id past the
    vocabulary. Its probability is the sum for all tokens that end a text. It is 1 where a text is
    cut, at its longest length or after a stop string, so that a cut does not change the score.

    Args:
        model: model of the prompts.
        vocabulary: vocabulary size V of the model.
        ends: tokens that end a text; none for a model that never ends one.
        limit: most tokens of a continuation.
        stopped: further test of whether a continuation stops.
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
        """The end token as all three ids: no token of the vocabulary is forbidden."""
        return Specials(pad=self.end, bos=self.end, eos=self.end)

    def start(self, source: Tensor, source_positions: Tensor) -> Continued[State]:
        """Run the model over prompts [B, L], of at least one token each; see `StepModel`."""
        # The last tokens are left out, as their logits are those of the first step.
        last = source_positions == source_positions.amax(1, keepdim=True)
        before = source_positions.masked_fill(last, -1)
        # Columns that hold only padding without these tokens are dropped.
        columns = (before >= 0).any(0)
        inner = self.model.start(source[:, columns], before[:, columns])
        rows = torch.arange(len(source), device=source.device)
        return Continued(inner, source[last][:, None], rows, source.new_empty((len(source), 1, 0)))

    def step(self, state: Continued[State], tokens: Tensor) -> tuple[Tensor, Continued[State]]:
        """See `StepModel`. In the first step the prompts' last tokens replace the given ones."""
        if state.first is not None:
            tokens, state = state.first, replace(state, first=None)
        else:
            state = replace(state, tokens=torch.cat([state.tokens, tokens[..., None]], -1))
        certain = torch.full((self.end + 1,), -math.inf, device=tokens.device)
        certain[self.end] = 0.0
        # Once all are cut, the model need not run.
        if state.tokens.shape[-1] >= self.limit:
            return certain.expand(*tokens.shape, -1).clone(), state
        # Samples that have ended get their end token, which is not in the model's table.
        readable = tokens.masked_fill(tokens == self.end, 0)
        logits, inner = self.model.step(state.inner, readable)
        cut = self._cut(state)
        return torch.where(cut[..., None], certain, self._with_end(logits)), replace(
            state, inner=inner
        )

    def reorder(self, state: Continued[State], rows: Tensor) -> Continued[State]:
        width = state.tokens.shape[1]
        return Continued(
            self.model.reorder(state.inner, rows),
            None if state.first is None else state.first.flatten()[rows],
            state.prompts[rows[:, 0] // width],
            state.tokens.flatten(0, 1)[rows],
        )

    def _with_end(self, logits: Tensor) -> Tensor:
        device = logits.device
        # The index is kept, as each copy of it would wait for the GPU.
        if self._index is None or self._index.device != device:
            self._index = torch.tensor(self.ends, dtype=torch.int64, device=device)
        return end_merged(logits, self._index)

    def _cut(self, state: Continued[State]) -> Tensor:
        """Return flags [B, W] of continuations that must end here."""
        cut = (state.tokens == self.end).any(-1)  # samples that ended before
        if self.stopped is not None and state.tokens.shape[-1]:
            pairs = zip(state.prompts.tolist(), state.tokens.tolist(), cut.tolist(), strict=True)
            stopped = [
                [done or self.stopped(prompt, ids) for ids, done in zip(rows, ended, strict=True)]
                for prompt, rows, ended in pairs
            ]
            cut = torch.tensor(stopped, device=cut.device)
        return cut
