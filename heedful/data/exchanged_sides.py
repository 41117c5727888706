"""Sides of a corpus that are in the wrong order, found by comparing it with another one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from heedful.data.encoded_pairs import EncodedCorpus, EncodedPairs
from heedful.data.pair_corpus import SIDES
from heedful.errors import DataError

_SAMPLE = 500
"""Number of pairs of a corpus that are read."""

_CLEARLY = 1.5
"""Factor by which exchanged sides must be more alike. In 240 draws of 5 to 100 pairs of Tatoeba
(English with German, with French) the right order was at least twice as alike. Both sides of a task
in one language (summaries, a toy language) are about equally like each other."""

_LETTERS = 3  # trigrams, which need no words, so that scripts without spaces are compared, too


def check_order(train: EncodedPairs, valid: EncodedPairs | None) -> tuple[str, ...]:
    """Compare the order of the sides of all corpora.

    Args:
        train: training corpora. One may be in the other order, as for a model of both directions.
        valid: validation corpora, if there are any.

    Returns:
        A sentence about each training corpus in another order than the first.

    Raises:
        DataError: when a validation corpus is in another order than every training corpus.
    """
    known = list(map(_sides, train.corpora))
    for corpus in valid.corpora if valid is not None else ():
        sides = _sides(corpus)
        if known and all(_are_exchanged(each, sides) for each in known):
            raise DataError(
                "Source and target are exchanged: these sources look like the targets of the "
                "training data, and the targets like its sources",
                where=_name(corpus),
                remedy="Name the source first, as for training: --valid SOURCE TARGET",
            )
    return tuple(
        f"{_name(corpus)}: source and target are exchanged, as compared with "
        f"{_name(train.corpora[0])}"
        for corpus, sides in zip(train.corpora, known, strict=True)
        if _are_exchanged(known[0], sides)
    )


def _name(corpus: EncodedCorpus) -> str:
    return ", ".join(corpus.facts)


def _sides(corpus: EncodedCorpus) -> list[Counter[str]]:
    rows = range(0, len(corpus), max(1, len(corpus) // _SAMPLE))
    return [_trigrams(corpus.text(side, row) for row in rows) for side in SIDES]


def _are_exchanged(one: Sequence[Counter[str]], other: Sequence[Counter[str]]) -> bool:
    straight = _likeness(one[0], other[0]) + _likeness(one[1], other[1])
    return _likeness(one[0], other[1]) + _likeness(one[1], other[0]) > _CLEARLY * straight


def _likeness(one: Counter[str], other: Counter[str]) -> float:
    """Return the cosine of the angle between two counts, 0 to 1."""
    product = sum(count * other[letters] for letters, count in one.items())
    return product / max(1e-9, math.sqrt(_square(one) * _square(other)))


def _square(counts: Counter[str]) -> float:
    return float(sum(count * count for count in counts.values()))


def _trigrams(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        padded = f" {text.lower()} "
        counts.update(padded[i : i + _LETTERS] for i in range(len(padded) - _LETTERS + 1))
    return counts
