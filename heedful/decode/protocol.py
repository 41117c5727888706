"""What search asks of a model, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

from heedful.errors import ModelError

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
class JoinableModel(StepModel[State], Protocol[State]):
    """A model whose sentences need not be equally far."""

    def join(self, state: State, other: State) -> State:
        """The sentences of both states, those of the first before those of the other.

        Args:
            state: of width W, at least one step from its start.
            other: the same, of other sentences.
        """


@runtime_checkable
class AttentiveModel(Protocol):
    """A model whose attention over the source can be recomputed for a finished target."""

    def cross_attention(
        self, source: Tensor, source_positions: Tensor, target: Tensor, target_positions: Tensor
    ) -> Tensor:
        """Attention [N, B, H, T, S] of all layers and heads; row t predicts target t + 1."""


@dataclass(frozen=True)
class Specials:
    """The ids of the tokens that stand for no text."""

    pad: int
    bos: int
    eos: int

    @property
    def ids(self) -> frozenset[int]:
        """All of them."""
        return frozenset((self.pad, self.bos, self.eos))


@dataclass(frozen=True)
class Hypothesis:
    """A target sequence and what the model thinks of it.

    Args:
        tokens: ids, without beginning- and end-of-sequence tokens.
        score: natural-log probability, summed over the tokens and the end token.
        normalized_score: what hypotheses are ranked by.
        token_scores: log-probability of each token and of the end token, len(tokens) + 1 of them.
        finished: False when it was cut at its longest length, where the model would rather have
            gone on. The end token is then forced, and its log-probability counted all the same.
    """

    tokens: tuple[int, ...]
    score: float
    normalized_score: float
    token_scores: tuple[float, ...]
    finished: bool


def not_numbers() -> ModelError:
    """What to raise when a model's scores are none."""
    return ModelError(
        "The model's probabilities are not numbers (NaN)",
        remedy="Its weights are damaged or its training diverged: use an earlier checkpoint",
    )
