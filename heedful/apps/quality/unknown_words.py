"""Words that a model cannot write: those with unknown characters, and names that it misspells."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from heedful.apps.quality.name_check import names_not_copied
from heedful.apps.quality.respelling import Edit, Span
from heedful.text.pretokenization import is_spaceless
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

NAMES = (
    "Tom", "Maria", "Peter", "Anna", "David", "Daniel", "Paul", "Robert", "Martin", "Thomas",
    "Michael", "Alexander", "Eva", "Victoria", "Simon", "Sarah",
)  # fmt: skip
"""Names that most models know and most languages in Latin script spell alike."""

_BETWEEN = re.compile(r"[ ·・=-]{0,2}")
"""Separators between the words of a name: nothing, a space or a sign."""


def unknown_words(text: str, tokenizer: TextTokenizer) -> list[Span]:
    """Return the spans of words with characters that a tokenizer has no token for.

    Adjacent words, such as "Лев Толстой", are one span. Signs and emoji are not words.

    Args:
        text: text of one line.
        tokenizer: tokenizer of the source.
    """
    if text.isascii() or tokenizer.unk not in tokenizer.encode(text):  # a fast path for most texts
        return []
    ids, spans = tokenizer.encode_spans(text)
    found: list[Span] = []
    for id, (start, end) in zip(ids, spans, strict=True):
        letters = [place for place in range(start, end) if text[place].isalnum()]
        if id != tokenizer.unk or not letters:
            continue
        span = _word(text, letters[0], letters[-1] + 1)
        # `max`, since two unknown tokens may be in one word, whose span the first token has
        # widened.
        if found and _BETWEEN.fullmatch(text[found[-1][1] : max(span[0], found[-1][1])]):
            found[-1] = (found[-1][0], max(span[1], found[-1][1]))
        else:
            found.append(span)
    return found


class NotCopied(NamedTuple):
    """Names of a source that its translation has not.

    Args:
        lost: names that nothing in the translation is like.
        edits: edits of the translation that put names where misspelled ones are.
    """

    lost: frozenset[str] = frozenset()
    edits: Sequence[Edit] = ()


def names_without_copy(
    source: str, target: str, languages: tuple[str | None, str | None], pair: TokenizerPair
) -> NotCopied:
    """Return the names that a translation has not; see `names_not_copied`.

    Args:
        source, target: texts.
        languages: their codes, None where unknown.
        pair: tokenizers of the model; without the words of its training there are none.
    """
    if pair.words is None:
        return NotCopied()
    return NotCopied(*names_not_copied(source, target, languages, pair.source.encode, pair.words))


def stand_ins(text: str, tokenizers: Sequence[TextTokenizer]) -> list[str]:
    """Return names that a text lacks and all tokenizers can represent, fewest tokens first.

    Args:
        text: text in which they are to be inserted.
        tokenizers: tokenizers of source and target.
    """
    folded = text.casefold()
    rows = {name: [each.encode(name) for each in tokenizers] for name in NAMES}
    fits = [
        name
        for name, row in rows.items()
        if name.casefold() not in folded
        if all(each.unk not in ids for each, ids in zip(tokenizers, row, strict=True))
    ]
    return sorted(fits, key=lambda name: sum(map(len, rows[name])))


def _word(text: str, start: int, end: int) -> Span:
    """Widen a span to its word; in a script without spaces, to the whole run of the script."""
    spaceless = is_spaceless(text[start])
    while start and _is_same_word(text, start - 1, spaceless):
        start -= 1
    while end < len(text) and _is_same_word(text, end, spaceless):
        end += 1
    return start, end


def _is_same_word(text: str, place: int, spaceless: bool) -> bool:
    character = text[place]
    inside = 0 < place < len(text) - 1 and text[place - 1].isalnum() and text[place + 1].isalnum()
    if unicodedata.category(character).startswith("M"):  # a vowel sign stays with its letter
        return True
    is_letter = re.match(r"\w", character) is not None or (character == "-" and inside)
    return is_letter and is_spaceless(character) == spaceless
