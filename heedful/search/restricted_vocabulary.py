"""Search over a part of the vocabulary: each sentence of a batch has tokens of its own.

A batch multiplies by the rows of the output weight that any of its sentences may use. A token that
is not on a sentence's own list has probability 0 for it, so its result is the same in any batch.

The rows are gathered and packed once per batch: 0.9 ms for 500 rows of 512 numbers, less than one
product by the whole weight; 11 ms for 4,500, a sixth of one at 350 rows (one thread, float32).
Panels of the packed weight cannot be picked instead: each holds dozens of rows, and the union of a
batch has one in nearly all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor

from heedful.models.translator import Translator, TranslatorState
from heedful.nn.attention.beam_cache import chosen_sentences
from heedful.search.search_settings import Hypothesis, Specials
from heedful.search.step_model import Ensemble, StepModel


@dataclass(frozen=True, eq=False)
class RestrictedVocabulary:
    """The tokens that each sentence of a batch may be made of, as a list for each.

    A search knows a token by its index in its sentence's list. Special tokens come first, at the
    same indices for all; the others ascend. Lists are padded to the longest one.

    Args:
        union: [V'] int64, ascending: every token that is on any list.
        ids: [B, K] int64, the lists.
        columns: [B, K] int64, where their tokens stand in the union.
        mask: [B, K] float32, 0 for tokens and −∞ for padding, which is never chosen.
    """

    union: Tensor
    ids: Tensor
    columns: Tensor
    mask: Tensor

    def specials(self, specials: Specials) -> Specials:
        """Return the indices of the special tokens."""
        index = {token: index for index, token in enumerate(sorted(specials.ids))}
        return Specials(index[specials.pad], index[specials.bos], index[specials.eos])

    def indices(self, targets: Sequence[Sequence[int]]) -> list[list[int]]:
        """Turn tokens of each sentence into indices in its list."""
        rows: list[list[int]] = []
        for ids, target in zip(self.ids, targets, strict=True):
            # The token that pads a list stands at its first index as well.
            listed = ids.tolist() if target else []
            rows.append([listed.index(token) for token in target])
        return rows

    def with_ids(self, results: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        """Turn the indices of each sentence's hypotheses into token ids."""
        lists = self.ids.tolist()
        return [
            [replace(h, tokens=tuple(ids[index] for index in h.tokens)) for h in hypotheses]
            for ids, hypotheses in zip(lists, results, strict=True)
        ]

    def select(self, sentences: Tensor) -> RestrictedVocabulary:
        """Select sentences ([B'] int64)."""
        ids, columns, mask = (
            t.index_select(0, sentences) for t in (self.ids, self.columns, self.mask)
        )
        return RestrictedVocabulary(self.union, ids, columns, mask)


@dataclass(frozen=True)
class RestrictedState:
    """A translator's state and the tokens of the sentences that are left.

    Args:
        inner: the translator's own state.
        vocabulary: of the sentences.
        width: sequences of each.
    """

    inner: TranslatorState
    vocabulary: RestrictedVocabulary
    width: int = 1


class RestrictedTranslator:
    """A `StepModel` of one batch, whose tokens are indices in its sentences' lists.

    The rows of the output weight are gathered once, when it is made.

    Args:
        model: the translator.
        vocabulary: of the batch.
        begun: the result of the translator's `start` for these sources, where there is one.
    """

    def __init__(
        self, model: Translator, vocabulary: RestrictedVocabulary, begun: TranslatorState | None
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.begun = begun
        self.output = model.output_over(vocabulary.union)

    def start(self, source: Tensor, source_positions: Tensor) -> RestrictedState:
        """See `StepModel`."""
        begun = self.begun
        if begun is None:
            begun = self.model.start(source, source_positions)
        return RestrictedState(begun, self.vocabulary)

    def step(self, state: RestrictedState, tokens: Tensor) -> tuple[Tensor, RestrictedState]:
        """See `StepModel`."""
        vocabulary = state.vocabulary
        ids = vocabulary.ids.gather(1, tokens)
        union_logits, inner = self.model.step(state.inner, ids, self.output)
        columns = vocabulary.columns[:, None].expand(-1, tokens.shape[1], -1)
        logits = union_logits.gather(2, columns)
        logits += vocabulary.mask[:, None]
        return logits, replace(state, inner=inner)

    def reorder(self, state: RestrictedState, rows: Tensor) -> RestrictedState:
        """See `StepModel`."""
        inner = self.model.reorder(state.inner, rows)
        vocabulary = state.vocabulary
        sentences = chosen_sentences(rows, state.width, len(vocabulary.ids))
        if sentences is not None:
            vocabulary = vocabulary.select(sentences)
        return RestrictedState(inner, vocabulary, rows.shape[1])


def restrict(
    model: StepModel[Any], vocabulary: RestrictedVocabulary, begun: Any = None
) -> StepModel[Any]:
    """Restrict a translator, or each member of an ensemble, to the tokens of one batch.

    Each member's probabilities are normalised over a sentence's own tokens before the mean.

    Args:
        model: over the whole vocabulary.
        vocabulary: of the batch.
        begun: the result of its `start` for these sources, where there is one.
    """
    if isinstance(model, Ensemble):
        states = [None] * len(model.members) if begun is None else begun
        pairs = zip(model.members, states, strict=True)
        return Ensemble([restrict(member, vocabulary, state) for member, state in pairs])
    return RestrictedTranslator(cast("Translator", model), vocabulary, begun)
