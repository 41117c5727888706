"""Writing systems: those without spaces between words, and the width of printed characters."""

from __future__ import annotations

import re
import unicodedata

_SPACELESS_RANGES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0xA4CF),  # Chinese, Japanese and their punctuation
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE4F),
    (0xFF00, 0xFFEF),  # full-width forms
    (0x20000, 0x3FFFF),
)
_SPACELESS = re.compile(
    "(?![\u3130-\u318f])"  # Hangul's letters: Korean puts spaces between words
    f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _SPACELESS_RANGES)}]"
)
_BETWEEN_SPACES = re.compile(r"\S+")


def is_spaceless(character: str) -> bool:
    """Return whether a character belongs to writing that puts no space between words."""
    return _SPACELESS.match(character) is not None


def word_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each word: what stands between spaces, or one character where none are used.

    A combining mark stays with the character before it.
    """
    if not _SPACELESS.search(text):  # most texts, and much faster
        return [match.span() for match in _BETWEEN_SPACES.finditer(text)]
    spans: list[tuple[int, int]] = []
    start = 0
    for i, character in enumerate(text):
        if character.isspace():
            if start < i:
                spans.append((start, i))
            start = i + 1
        elif start < i and _parts(text[i - 1], character):
            spans.append((start, i))
            start = i
    if start < len(text):
        spans.append((start, len(text)))
    return spans


def display_width(text: str) -> int:
    """Columns a text takes on a terminal."""
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 1 + (_is_wide(c)) for c in text
    )


def _parts(left: str, right: str) -> bool:
    if unicodedata.category(right).startswith("M"):
        return False
    return is_spaceless(left) or is_spaceless(right)


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in ("W", "F")
