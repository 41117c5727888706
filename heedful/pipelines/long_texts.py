"""Pieces of texts that are too long for a model: sentences, clauses, words, characters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from heedful.text.pretokenization import TextPiece, is_spaceless
from heedful.text.sentences import sentence_pieces
from heedful.text.tokenizer_pair import ENGLISH

Measure = Callable[[Sequence[str]], list[int]]
"""Function that counts the tokens of each of several texts."""

_SPACE = re.compile(r"\s+")
_FULL_WIDTH_PAUSE = re.compile(r"[，、；：]+\s*")
_PAUSE = ",;:،؛—–"


def split_text(text: str, limit: int, measure: Measure, language: str = ENGLISH) -> list[TextPiece]:
    """Cut a text into pieces of at most `limit` tokens.

    Args:
        text: one line.
        limit: maximum number of tokens of a piece; a single character with more stays whole.
        measure: function that counts the tokens of each of several texts.
        language: code of the text's language.

    Returns:
        The pieces in order. Each sentence is a piece of its own, as translators are trained on
        sentences. A sentence above the limit is split into clauses, words or characters, which are
        joined to pieces of about equal length up to the limit.
    """
    if measure([text.strip()])[0] <= limit:
        return [TextPiece(text)]
    pieces = sentence_pieces(text, language)
    # Clauses first: a translator reads them better than a sentence that ends at any word.
    for find_cuts in (_clauses, _words):
        pieces = _refine(pieces, limit, measure, find_cuts)
    return _split_characters(pieces, limit, measure)


def _refine(
    pieces: list[TextPiece],
    limit: int,
    measure: Measure,
    find_cuts: Callable[[str], list[int]],
) -> list[TextPiece]:
    refined: list[TextPiece] = []
    counts = measure([piece.text.strip() for piece in pieces])
    for piece, count in zip(pieces, counts, strict=True):
        if count <= limit:
            refined.append(piece)
            continue
        cuts = [0, *find_cuts(piece.text), len(piece.text)]
        parts = [piece.text[a:b] for a, b in itertools.pairwise(cuts) if a < b]
        refined += map(TextPiece, _pack(parts, measure([part.strip() for part in parts]), limit))
    return refined


def _pack(parts: Sequence[str], counts: Sequence[int], limit: int) -> list[str]:
    """Join neighbouring parts to as few as the limit allows, of about equal length."""
    total = sum(counts)
    goal = total / max(1, -(-total // limit))  # tokens of a part with the fewest possible parts
    packed: list[list[str]] = [[]]
    size = 0
    for part, count in zip(parts, counts, strict=True):
        if packed[-1] and (size + count > limit or size + count / 2 > goal):
            packed.append([])
            size = 0
        packed[-1].append(part)
        size += count
    return ["".join(group) for group in packed]


def _split_characters(pieces: list[TextPiece], limit: int, measure: Measure) -> list[TextPiece]:
    while True:
        counts = measure([piece.text.strip() for piece in pieces])
        if all(
            count <= limit or len(piece.text) < 2  # a single character cannot be split
            for piece, count in zip(pieces, counts, strict=True)
        ):
            return pieces
        cut: list[TextPiece] = []
        for piece, count in zip(pieces, counts, strict=True):
            cut += [piece] if count <= limit else _equal_parts(piece, -(-count // limit))
        pieces = cut


def _equal_parts(piece: TextPiece, number: int) -> list[TextPiece]:
    text = piece.text
    size = max(1, len(text) // max(2, number))  # at least two parts, or the loop would not end
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    inner = [
        TextPiece(left, glued=_inside_word(left[-1], right[0]))
        for left, right in itertools.pairwise(parts)
    ]
    return [*inner, TextPiece(parts[-1], piece.glued)]


def _inside_word(left: str, right: str) -> bool:
    return not any(c.isspace() or is_spaceless(c) for c in (left, right))


def _clauses(text: str) -> list[int]:
    cuts = {match.end() for match in _FULL_WIDTH_PAUSE.finditer(text)}
    cuts.update(
        m.end() for m in _SPACE.finditer(text) if m.start() and text[m.start() - 1] in _PAUSE
    )
    return sorted(cuts)


def _words(text: str) -> list[int]:
    return [match.end() for match in _SPACE.finditer(text)]
