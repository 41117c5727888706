"""Words that a model cannot write: those with unknown characters, and names that it misspells."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from heedful.apps.quality.name_check import lost_names, misspelled_names
from heedful.apps.quality.reports import Languages
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


def names_to_copy(
    source: str, target: str, languages: Languages, pair: TokenizerPair
) -> frozenset[str]:
    """Return the names of a source that its translation lost; none if the model records no words.

    Args:
        source, target: texts.
        languages: their codes, None where unknown.
        pair: tokenizers of the model.
    """
    if pair.words is None:
        return frozenset()
    return lost_names(source, target, languages, pair.source.encode)


def name_edits(source: str, target: str, languages: Languages, pair: TokenizerPair) -> list[Edit]:
    """Return edits that spell names as the source does; none if the model records no words.

    Args:
        source, target, languages, pair: see `names_to_copy`.
    """
    if pair.words is None:
        return []
    return misspelled_names(source, target, languages, pair.source.encode, pair.words)


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
