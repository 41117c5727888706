"""Prompts and their ends, put between a search and a causal model.

A search starts every sequence with one begin token and ends it with one end token. Here the first
is the prompt's own last token, and the second is a token past the vocabulary. It has the
probability of all tokens that end a text together, and is certain where a text is cut: at its
longest length, and once it holds a stop string. Being cut costs a continuation nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import torch
from torch import Tensor

from heedful.search.hypothesis import Specials
from heedful.search.step_model import State, StepModel

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
        index = torch.tensor(self.ends, dtype=torch.int64, device=logits.device)
        end = logits[..., index].logsumexp(-1, keepdim=True)  # of none: −∞
        return torch.cat([logits.index_fill(-1, index, -math.inf), end], -1)

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
