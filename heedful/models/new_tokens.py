"""Rows of embedding tables for tokens that are added to a model's vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from heedful.models.model_spec import CommonSpec, Side

if TYPE_CHECKING:
    from heedful.text.tokenizer import TextTokenizer
    from heedful.text.tokenizer_pair import TokenizerPair

_Spec = TypeVar("_Spec", bound=CommonSpec)

_TABLES: Mapping[str, Side] = {
    "source_embedding.weight": "source",
    "target_embedding.weight": "target",
    "embedding.weight": "target",
    "output_projection.weight": "target",
    "output_bias": "target",
    "heads.masked_lm.projection.weight": "target",
    "heads.masked_lm.bias": "target",
}
"""Tensors with a row for every token, and the side of their vocabulary."""


@dataclass(frozen=True)
class NewTokens:
    """Tokens that were added to a tokenizer.

    Args:
        first: id of the first added token; the others follow it.
        pieces: ids of the old tokens that spell each added token.
    """

    first: int
    pieces: tuple[tuple[int, ...], ...]

    @classmethod
    def between(cls, before: TextTokenizer, now: TextTokenizer) -> NewTokens:
        """Return the tokens that only `now` has."""
        # Ids of old tokens stay, so the added ones are a range at the end.
        tokens = [now.decode([id]) for id in range(before.size, now.size)]
        # The vector of the unknown token says nothing about the text that it replaces.
        known = [tuple(id for id in ids if id != before.unk) for ids in before.encode_batch(tokens)]
        return cls(before.size, tuple(known))


def with_room(spec: _Spec, tokenizers: TokenizerPair) -> _Spec:
    """Return a spec with at least as many rows as there are tokens.

    Args:
        spec: spec of a model of text.
        tokenizers: extended tokenizers.
    """
    rows = spec.vocabularies()
    return spec.with_vocabularies(
        # Imported tables are often padded: their spare rows are used before new ones are added.
        source=max(rows["source"], tokenizers.source.size),
        target=max(rows["target"], tokenizers.target.size),
    )


def extended_weights(
    weights: Mapping[str, Tensor], shapes: Mapping[str, Tensor], new: Mapping[Side, NewTokens]
) -> dict[str, Tensor]:
    """Return weights with a row for each new token, the mean of the rows of its old tokens.

    A token that old tokens cannot spell gets the mean of all rows. The rows of old tokens stay the
    same to the bit.

    Args:
        weights: weights of the model before, by canonical name.
        shapes: weights of the model with the new rows, of which only shapes are used.
        new: added tokens of each side.
    """
    extended = dict(weights)
    for name, side in tables(weights):
        if name not in shapes:  # the table of a head that the new model lacks
            continue
        old, tokens = weights[name], new[side]
        count = len(tokens.pieces)
        if not count:
            continue
        table = old.new_zeros(shapes[name].shape)
        table[: len(old)] = old
        # Padding rows at the end are left out, as they were never trained.
        mean_row = old[: tokens.first].double().mean(0)
        for place, pieces in enumerate(tokens.pieces):
            mean = old[list(pieces)].double().mean(0) if pieces else mean_row
            # Overwrites a padding row where the table had one at this id.
            table[tokens.first + place] = mean.to(old.dtype)
        extended[name] = table
    return extended


def tables(names: Iterable[str]) -> Iterator[tuple[str, Side]]:
    """Yield the names of tensors that have a row for every token, each with its side."""
    for name in names:
        if name in _TABLES:
            yield name, _TABLES[name]


def new_tokens(before: TokenizerPair, now: TokenizerPair) -> dict[Side, NewTokens]:
    """Return the tokens that were added on either side."""
    return {
        "source": NewTokens.between(before.source, now.source),
        "target": NewTokens.between(before.target, now.target),
    }
