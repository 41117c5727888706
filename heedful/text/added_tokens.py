"""Whole tokens that are added to a tokenizer which is trained already.

A text is searched for them before it is cut into pieces, so that everything else is cut as it was.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, normalizers

from heedful.errors import ConfigError
from heedful.text.tokenizers_library import Library


@dataclass(frozen=True)
class Added:
    """A token to add.

    Args:
        content: as the text spells it that the library sees.
        normalized: searched for in the text as it is after normalisation.
    """

    content: str
    normalized: bool

    @property
    def library(self) -> AddedToken:
        """As the library wants it."""
        return AddedToken(
            self.content, single_word=is_word(self.content), normalized=self.normalized
        )


def is_word(token: str) -> bool:
    """Return whether a token is only taken where it is a word: "art", but not in "party".

    That is so where it begins and ends with letters that have a case, or with digits. Scripts
    without case may write words together, and signs tell by themselves where a token ends.
    """
    ends = (token[0], token[-1])
    return all(end.isalnum() and unicodedata.category(end) != "Lo" for end in ends)


def with_tokens(
    state: Mapping[str, Any], tokens: Sequence[Added], *, first: int | None
) -> dict[str, Any]:
    """Return a library's serialisation with more tokens; those it has are left out.

    Args:
        state: the serialisation, as nested plain data.
        tokens: to add, in the order of their ids.
        first: the id the first one must get; None where ids are given elsewhere.

    Raises:
        ConfigError: when the ids of the tokenizer have gaps, so that it would get another.
    """
    library = tokenizers.Tokenizer.from_str(json.dumps(state))
    for token in tokens:
        if library.token_to_id(token.content) is not None:
            continue
        library.add_tokens([token.library])
        if first is None:
            continue
        if library.token_to_id(token.content) != first:
            raise ConfigError(
                "This tokenizer's ids have gaps, so that no token can be put after them",
                where="tokenizer.extend",
                remedy="Leave it empty",
            )
        first += 1
    return {**state, "added_tokens": json.loads(library.to_str())["added_tokens"]}


def adds_nothing_but_case(normalizer: normalizers.Normalizer | None, token: str) -> bool:
    """Return whether normalised text can be searched for a token, so that case does not matter.

    Some normalisers put a mark for a space before a text; with it a token would not be the same.
    """
    if normalizer is None:
        return False
    return str(normalizer.normalize_str(token)).casefold() == token.casefold()


def added_spans(library: Library, text: str, original: str) -> Iterator[str | int]:
    """Split a text into the ids of the added tokens in it and the parts between them.

    Args:
        library: that the tokens were added to.
        text: as the library sees it.
        original: as a person wrote it.
    """
    added = library.tokenizer.get_added_tokens_decoder()
    done = 0
    for id, (start, stop) in zip(*library.encode_spans(text, original), strict=True):
        if id in added:
            yield text[done:start]
            yield id
            done = stop
    yield text[done:]
