"""Degenerate translations: empty ones, words that repeat, and one translation for all sources.

A translator that was trained for too short a time writes them, and scores alone do not say so.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence


def repeats_itself(text: str) -> bool:
    """Return True for a text that is mostly one word or a few words over and over."""
    words = [stripped for word in text.casefold().split() if (stripped := word.strip(".,;:!?…"))]
    if len(words) >= 4:
        in_a_row = sum(a == b for a, b in itertools.pairwise(words))
        return in_a_row >= 2 or 2 * len(set(words)) <= len(words)
    # One long word, or a script without spaces, whose characters recur more often than words do.
    characters = "".join(words)
    return len(characters) >= 12 and 3 * len(set(characters)) <= len(characters)


def describe_degenerate(
    translations: Sequence[str], sources: Sequence[str], references: Sequence[str] = ()
) -> str | None:
    """Return a sentence on translations that are mostly degenerate; None if they are not.

    Args:
        translations: translations, one for each source.
        sources: source texts; empty ones have empty translations, which are right.
        references: reference translations; what degenerates as they do is right as well.
    """
    numbers = [number for number, source in enumerate(sources) if source.strip()]
    texts = [translations[number].strip() for number in numbers]
    wanted = [references[number].strip() for number in numbers] if references else []
    total = len(texts)
    if not total:
        return None

    def excess(counts: Sequence[bool], right: Sequence[bool]) -> int:
        return sum(counts) - sum(right)

    empty = excess([not text for text in texts], [not text for text in wanted])
    if 2 * empty > total:
        return f"{empty:,} of {total:,} translations are empty"
    repeated = excess([*map(repeats_itself, texts)], [*map(repeats_itself, wanted)])
    if 2 * repeated > total:
        example = next(text for text in texts if repeats_itself(text))
        shown = example if len(example) <= 60 else f"{example[:60]}…"
        return f'{repeated:,} of {total:,} translations repeat words, such as "{shown}"'
    # Two or three sentences may well have one translation.
    text, same = Counter(texts).most_common(1)[0]
    if total >= 10 and 2 * (same - max(Counter(wanted or sources).values())) > total:
        return f'{same:,} of {total:,} translations are the same: "{text[:60]}"'
    return None
