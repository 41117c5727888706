"""What search asks of a model, and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.search.candidates import log_probabilities

if TYPE_CHECKING:
    from torch import Tensor


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
