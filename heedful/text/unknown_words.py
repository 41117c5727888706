"""Words that a tokenizer cannot spell, and names that stand for them while a text is translated."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from heedful.text.pretokenization import is_spaceless
from heedful.text.respelling import Span
from heedful.text.tokenizer import TextTokenizer

NAMES = (
    "Tom", "Maria", "Peter", "Anna", "David", "Daniel", "Paul", "Robert", "Martin", "Thomas",
    "Michael", "Alexander", "Eva", "Victoria", "Simon", "Sarah",
)  # fmt: skip
"""Known to most models of languages in Latin letters, and the same in most of them."""

_BETWEEN = re.compile(r"[ ·・=-]{0,2}")
"""Between the words of a name: nothing, a space or a sign."""


def unknown_words(text: str, tokenizer: TextTokenizer) -> list[Span]:
    """Places of the words that hold characters a tokenizer has no token for, from left to right.

    Neighbours are one place: "Лев Толстой". Signs and emoji are no words.

    Args:
        text: one line.
        tokenizer: of the source.
    """
    if text.isascii() or tokenizer.unk not in tokenizer.encode(text):  # most texts, and faster
        return []
    ids, spans = tokenizer.encode_spans(text)
    found: list[Span] = []
    for id, (start, end) in zip(ids, spans, strict=True):
        letters = [place for place in range(start, end) if text[place].isalnum()]
        if id != tokenizer.unk or not letters:
            continue
        span = _word(text, letters[0], letters[-1] + 1)
        if found and _BETWEEN.fullmatch(text[found[-1][1] : max(span[0], found[-1][1])]):
            found[-1] = (found[-1][0], max(span[1], found[-1][1]))
        else:
            found.append(span)
    return found


def stand_ins(text: str, tokenizers: Sequence[TextTokenizer]) -> list[str]:
    """Names that are not in a text and that all tokenizers can spell, those of few tokens first.

    Args:
        text: where they are to stand.
        tokenizers: of source and target.
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
    """Widen a place to its word; of writing without spaces, up to other writing."""
    spaceless = is_spaceless(text[start])
    while start and _goes_on(text, start - 1, spaceless):
        start -= 1
    while end < len(text) and _goes_on(text, end, spaceless):
        end += 1
    return start, end


def _goes_on(text: str, place: int, spaceless: bool) -> bool:
    character = text[place]
    inside = 0 < place < len(text) - 1 and text[place - 1].isalnum() and text[place + 1].isalnum()
    if unicodedata.category(character).startswith("M"):  # a vowel sign stays with its letter
        return True
    is_letter = re.match(r"\w", character) is not None or (character == "-" and inside)
    return is_letter and is_spaceless(character) == spaceless
