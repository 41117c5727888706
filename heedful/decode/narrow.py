"""A translator over a part of its vocabulary: what a search over shortlists steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from heedful.decode.ensemble import Ensemble
from heedful.decode.protocol import StepModel
from heedful.decode.shortlist import Lists
from heedful.models.translator import Translator, TranslatorState
from heedful.nn.beam_cache import chosen_sentences


@dataclass(frozen=True)
class NarrowState:
    """Where decoding stands.

    Args:
        inner: the translator's own state.
        lists: of the sentences that are left.
        width: sequences of each.
    """

    inner: TranslatorState
    lists: Lists
    width: int = 1


class NarrowTranslator:
    """A `StepModel` of one batch, whose tokens are places in its sentences' lists.

    The rows of the output weight are gathered once, when it is made.

    Args:
        model: the translator.
        lists: of the batch.
        begun: what the translator's `start` gave for these sources, where it has read them.
    """

    def __init__(self, model: Translator, lists: Lists, begun: TranslatorState | None) -> None:
        self.model = model
        self.lists = lists
        self.begun = begun
        self.output = model.output_over(lists.union)

    def start(self, source: Tensor, source_positions: Tensor) -> NarrowState:
        """See `StepModel`."""
        begun = self.begun
        if begun is None:
            begun = self.model.start(source, source_positions)
        return NarrowState(begun, self.lists)

    def step(self, state: NarrowState, tokens: Tensor) -> tuple[Tensor, NarrowState]:
        """See `StepModel`."""
        lists = state.lists
        ids = lists.own.gather(1, tokens)
        among, inner = self.model.step(state.inner, ids, self.output)
        logits = among.gather(2, lists.columns[:, None].expand(-1, tokens.shape[1], -1))
        logits += lists.barrier[:, None]
        return logits, replace(state, inner=inner)

    def reorder(self, state: NarrowState, rows: Tensor) -> NarrowState:
        """See `StepModel`."""
        inner = self.model.reorder(state.inner, rows)
        chosen = chosen_sentences(rows, state.width, len(state.lists.own))
        lists = state.lists if chosen is None else state.lists.select(chosen)
        return NarrowState(inner, lists, rows.shape[1])


def narrow(model: StepModel[Any], lists: Lists, begun: Any = None) -> StepModel[Any]:
    """A translator, or an ensemble of some, for one batch.

    Each member's probabilities are those of a sentence's own list before they are averaged.

    Args:
        model: over the whole vocabulary.
        lists: of the batch.
        begun: what its `start` gave for these sources, where it has read them.
    """
    if isinstance(model, Ensemble):
        states: Sequence[Any] = [None] * len(model.members) if begun is None else begun
        pairs = zip(model.members, states, strict=True)
        return Ensemble([narrow(member, lists, state) for member, state in pairs])
    assert isinstance(model, Translator)
    return NarrowTranslator(model, lists, begun)
