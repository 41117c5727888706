"""Search over a part of the vocabulary: each sentence of a batch has its own list of tokens.

The logits of a batch are a matmul by the rows of the output weight that are on any list. A token
that is not on a sentence's own list has probability 0, so the result is the same in any batch.

Rows are gathered and packed once for each batch: 0.9 ms for 500 rows of width 512, less than one
matmul by the whole weight; 11 ms for 4,500 rows, a sixth of such a matmul for 350 hypotheses (one
thread, float32). Panels of the packed weight cannot be selected instead: each has dozens of rows,
and the union of a batch has a token in nearly every panel.
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
    """A list of allowed tokens for each sentence of a batch.

    In a search a token is its index in the list of the sentence. Special tokens come first, at the
    same indices in all lists; the others ascend. Lists are padded to the longest one.

    Args:
        union: [V'] int64, tokens that are on any list, ascending.
        ids: [B, K] int64, lists of token ids.
        columns: [B, K] int64, indices of these tokens in the union.
        mask: [B, K] float32, 0 for tokens and −∞ for padding.
    """

    union: Tensor
    ids: Tensor
    columns: Tensor
    mask: Tensor

    def specials(self, specials: Specials) -> Specials:
        """Return the indices of the special tokens."""
        # Sorted as `Shortlist.restrict` puts them at the beginning of every list.
        index = {token: index for index, token in enumerate(sorted(specials.ids))}
        return Specials(index[specials.pad], index[specials.bos], index[specials.eos])

    def indices(self, targets: Sequence[Sequence[int]]) -> list[list[int]]:
        """Convert the token ids of each sentence to indices in its list."""
        rows: list[list[int]] = []
        for ids, target in zip(self.ids, targets, strict=True):
            # `index` finds the first place; places of padding repeat a token that comes earlier.
            listed = ids.tolist() if target else []
            rows.append([listed.index(token) for token in target])
        return rows

    def with_ids(self, results: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        """Convert the indices in each sentence's hypotheses to token ids."""
        lists = self.ids.tolist()
        return [
            [replace(h, tokens=tuple(ids[index] for index in h.tokens)) for h in hypotheses]
            for ids, hypotheses in zip(lists, results, strict=True)
        ]

    def select(self, sentences: Tensor) -> RestrictedVocabulary:
        """Select sentences by their indices [B'] int64."""
        ids, columns, mask = (
            t.index_select(0, sentences) for t in (self.ids, self.columns, self.mask)
        )
        # The union stays, as the rows of the output weight are packed for it.
        return RestrictedVocabulary(self.union, ids, columns, mask)


@dataclass(frozen=True)
class RestrictedState:
    """A translator's state and the lists of the sentences that are still searched.

    Args:
        inner: state of the translator.
        vocabulary: lists of the sentences.
        width: number of hypotheses of each sentence.
    """

    inner: TranslatorState
    vocabulary: RestrictedVocabulary
    width: int = 1


class RestrictedTranslator:
    """A `StepModel` for one batch, whose tokens are indices in the lists of its sentences.

    The rows of the output weight are gathered once, by the constructor.

    Args:
        model: translator over the whole vocabulary.
        vocabulary: lists of the batch.
        begun: result of the translator's `start` for these sources, if any.
    """

    def __init__(
        self, model: Translator, vocabulary: RestrictedVocabulary, begun: TranslatorState | None
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.begun = begun
        self.output = model.output_over(vocabulary.union)

    def start(self, source: Tensor, source_positions: Tensor) -> RestrictedState:
        begun = self.begun
        if begun is None:
            begun = self.model.start(source, source_positions)
        return RestrictedState(begun, self.vocabulary)

    def step(self, state: RestrictedState, tokens: Tensor) -> tuple[Tensor, RestrictedState]:
        vocabulary = state.vocabulary
        ids = vocabulary.ids.gather(1, tokens)
        union_logits, inner = self.model.step(state.inner, ids, self.output)
        # Each sentence takes its own columns: with the whole union, results would depend
        # on the batch.
        columns = vocabulary.columns[:, None].expand(-1, tokens.shape[1], -1)
        logits = union_logits.gather(2, columns)
        # Added in place, as `gather` returns a new tensor.
        logits += vocabulary.mask[:, None]
        return logits, replace(state, inner=inner)

    def reorder(self, state: RestrictedState, rows: Tensor) -> RestrictedState:
        inner = self.model.reorder(state.inner, rows)
        vocabulary = state.vocabulary
        sentences = chosen_sentences(rows, state.width, len(vocabulary.ids))
        # None means all sentences in their order.
        if sentences is not None:
            vocabulary = vocabulary.select(sentences)
        return RestrictedState(inner, vocabulary, rows.shape[1])


def restrict(
    model: StepModel[Any], vocabulary: RestrictedVocabulary, begun: Any = None
) -> StepModel[Any]:
    """Restrict a translator, or each member of an ensemble, to the tokens of one batch.

    Each member's probabilities are normalised over a sentence's own tokens before the mean.
    """
    if isinstance(model, Ensemble):
        states = [None] * len(model.members) if begun is None else begun
        pairs = zip(model.members, states, strict=True)
        return Ensemble([restrict(member, vocabulary, state) for member, state in pairs])
    return RestrictedTranslator(cast("Translator", model), vocabulary, begun)
