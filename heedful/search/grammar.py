"""Grammars of token sequences: at each place of a sequence only some tokens are possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

import torch
from torch import Tensor

from heedful.search.step_model import State, StepModel
from heedful.text.field_tokenizer import TokenState


@dataclass(frozen=True)
class Ruled(Generic[State]):
    """Sequences and their places in a grammar.

    Args:
        inner: state of the model.
        places: [B, W] int64, place of each sequence in the grammar; 0 before its first token.
    """

    inner: State
    places: Tensor


class TokenRules(Protocol):
    """Rules by which tokens lead from place to place, and some are impossible at a place."""

    def after(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return the places [...] to which tokens [...] lead."""

    def apply(self, logits: Tensor, places: Tensor) -> Tensor:
        """Return logits [B, W, V] with −∞ for tokens that are impossible at places [B, W]."""


class Grammar:
    """The tokens that are possible at each place.

    Args:
        states: places of a sequence after its begin token, in their order.
        vocabulary: vocabulary size V.
        begin: id of the begin token.
        device: device of the search.
    """

    def __init__(
        self, states: Sequence[TokenState], vocabulary: int, begin: int, device: torch.device
    ) -> None:
        self._begin = begin
        impossible = torch.ones(len(states), vocabulary, dtype=torch.bool)
        for place, state in enumerate(states):
            for first, last in state.allowed:
                impossible[place, first:last] = False
        # −1 is no id: a place without an end token is left after every token.
        ends = torch.tensor([-1 if state.end is None else state.end for state in states])
        self._impossible, self._ends = impossible.to(device), ends.to(device)

    def after(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return the places [...] to which tokens [...] lead."""
        ends = self._ends[places]
        leaves = ((ends < 0) | (tokens == ends)) & (tokens != self._begin)
        # The last place is the end of a sequence, which nothing leaves.
        return (places + leaves.long()).clamp_(max=len(self._ends) - 1)

    def apply(self, logits: Tensor, places: Tensor) -> Tensor:
        """Return logits [B, W, V] with −∞ for tokens that are impossible at places [B, W]."""
        return logits.masked_fill(self._impossible[places], -math.inf)


class RuledModel(Generic[State]):
    """A `StepModel` whose sequences follow a grammar; its probabilities are those of what is left.

    Args:
        model: model of the sequences, which begin with a begin token.
        grammar: grammar after the begin token.
    """

    def __init__(self, model: StepModel[State], grammar: TokenRules) -> None:
        self.model = model
        self.grammar = grammar

    def start(self, source: Tensor, source_positions: Tensor) -> Ruled[State]:
        """Run the model over beginnings of sequences [B, L]; see `StepModel`."""
        places = source.new_zeros((len(source), 1))
        for column, positions in zip(source.T, source_positions.T, strict=True):
            moved = self.grammar.after(places, column[:, None])
            places = torch.where(positions[:, None] >= 0, moved, places)
        return Ruled(self.model.start(source, source_positions), places)

    def step(self, state: Ruled[State], tokens: Tensor) -> tuple[Tensor, Ruled[State]]:
        """See `StepModel`."""
        places = self.grammar.after(state.places, tokens)
        logits, inner = self.model.step(state.inner, tokens)
        return self.grammar.apply(logits, places), Ruled(inner, places)

    def reorder(self, state: Ruled[State], rows: Tensor) -> Ruled[State]:
        return Ruled(self.model.reorder(state.inner, rows), state.places.flatten()[rows])
