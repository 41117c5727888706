"""Rows for tokens that a model's vocabulary did not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from heedful.models.family import CausalLMSpec, EncoderSpec
from heedful.models.spec import TranslatorSpec

if TYPE_CHECKING:
    from heedful.text.pair import TokenizerPair
    from heedful.text.protocol import TextTokenizer

Side = Literal["source", "target"]

_TABLES: Mapping[str, Side] = {
    "source_embedding.weight": "source",
    "target_embedding.weight": "target",
    "embedding.weight": "target",
    "output_projection.weight": "target",
    "output_bias": "target",
    "heads.masked_lm.projection.weight": "target",
    "heads.masked_lm.bias": "target",
}
"""Tensors with a row for every token, and of which vocabulary."""


@dataclass(frozen=True)
class NewTokens:
    """Tokens that one tokenizer has and the one before it had not.

    Args:
        first: id of the first; the others follow.
        pieces: for each, the ids of the pieces it was made of before.
    """

    first: int
    pieces: tuple[tuple[int, ...], ...]

    @classmethod
    def between(cls, before: TextTokenizer, now: TextTokenizer) -> NewTokens:
        """Those that `now` has more."""
        tokens = [now.decode([id]) for id in range(before.size, now.size)]
        known = [tuple(id for id in ids if id != before.unk) for ids in before.encode_batch(tokens)]
        return cls(before.size, tuple(known))


def with_room(
    spec: TranslatorSpec | CausalLMSpec | EncoderSpec, tokenizers: TokenizerPair
) -> TranslatorSpec | CausalLMSpec | EncoderSpec:
    """A spec with at least as many rows as there are tokens.

    Args:
        spec: of a model.
        tokenizers: it is to have.
    """
    if isinstance(spec, TranslatorSpec):
        rows = {
            "source_vocabulary": max(spec.source_vocabulary, tokenizers.source.size),
            "target_vocabulary": max(spec.target_vocabulary, tokenizers.target.size),
        }
    else:
        rows = {"vocabulary": max(spec.vocabulary, tokenizers.target.size)}
    return spec.model_copy(update=rows)


def extended_weights(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], new: Mapping[Side, NewTokens]
) -> dict[str, Tensor]:
    """Weights with a row for each new token: the mean of the rows of the pieces it was made of.

    A token that was made of unknown pieces only gets the mean of all rows. Rows of tokens that
    there were keep every bit.

    Args:
        weights: of the model before, under canonical names.
        wanted: of the model with room for the new tokens; only the shapes are used.
        new: by vocabulary.
    """
    extended = dict(weights)
    for name, side in tables(weights):
        if name not in wanted:
            continue
        old, tokens = weights[name], new[side]
        count = len(tokens.pieces)
        if not count:
            continue
        table = old.new_zeros(wanted[name].shape)
        table[: len(old)] = old
        every = old[: tokens.first].double().mean(0)
        for place, pieces in enumerate(tokens.pieces):
            mean = old[list(pieces)].double().mean(0) if pieces else every
            table[tokens.first + place] = mean.to(old.dtype)
        extended[name] = table
    return extended


def tables(names: Iterable[str]) -> Iterator[tuple[str, Side]]:
    """Those among some tensors' names that have a row for every token, and of which vocabulary."""
    for name in names:
        if name in _TABLES:
            yield name, _TABLES[name]


def new_tokens(before: TokenizerPair, now: TokenizerPair) -> dict[Side, NewTokens]:
    """The tokens that were added on either side."""
    return {
        "source": NewTokens.between(before.source, now.source),
        "target": NewTokens.between(before.target, now.target),
    }
