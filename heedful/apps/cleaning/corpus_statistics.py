"""Words, characters and lengths of one side of a corpus, counted in bounded memory."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.apps.cleaning.text_keys import text_key

MOST_WORDS = 200_000
"""Maximum number of different words that are counted at a time, in about 30 MB."""

_SMALLEST = 2048
"""Number of hashes that estimate the number of different words, with a standard error of 2.2 %."""

# Texts of this length or longer share one bin.
_LONGEST = 1000
_LONGEST_WORD = 80  # characters, since a file without spaces is one word
_TOP, _RARE, _RARE_LIST = 30, 5, 60
_SHARES = (100, 1000, 10_000)
# First words of Unicode names of letters that are not the name of a script.
_NO_SCRIPTS = {"MASCULINE", "FEMININE", "MICRO", "MODIFIER", "COMBINING", "unnamed"}
_QUANTILES = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "longest": 1.0}
_HISTOGRAM = (1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90, 135, 200)


@dataclass(frozen=True)
class SideStatistics:
    """Statistics of one side.

    Args:
        words: number of words, separated by white space.
        characters: number of characters, spaces included.
        different_words: number of different words, exact up to 200,000; above, an estimate by the
            smallest hashes (Bar-Yossef 2002) with a standard error of 2.2 %.
        is_estimated: true if `different_words` is an estimate.
        top_words: most frequent words with their counts.
        shares: share of the most frequent 100, 1,000 and 10,000 words in all words.
        lengths: quantiles of the lengths of texts in words, at most 1,000.
        histogram: number of texts in each bin, by its smallest length in words.
        scripts: number of characters of each script or kind.
        different_characters: number of different characters.
        rare_characters: names of the characters that occur at most 5 times, by code point.
    """

    words: int
    characters: int
    different_words: int
    is_estimated: bool
    top_words: dict[str, int]
    shares: dict[int, float]
    lengths: dict[str, int]
    histogram: dict[int, int]
    scripts: dict[str, int]
    different_characters: int
    rare_characters: dict[str, str]

    def plain(self) -> dict[str, Any]:
        """The statistics as JSON data."""
        return asdict(self)


class SideCounter:
    """A counter of the texts of one side, in chunks."""

    def __init__(self) -> None:
        self.words = WordCounter()
        self.characters: Counter[str] = Counter()
        self.lengths = np.zeros(_LONGEST + 1, np.int64)

    def add(self, texts: Sequence[str]) -> None:
        """Count some texts."""
        split = [text.split() for text in texts]
        # One update with a joined text is faster than one for each text.
        self.characters.update("".join(texts))
        # Longer texts share the last bin, so that memory does not depend on the longest one.
        lengths = np.array([min(len(words), _LONGEST) for words in split], np.intp)
        self.lengths += np.bincount(lengths, minlength=_LONGEST + 1)
        self.words.add([word[:_LONGEST_WORD] for words in split for word in words])

    def result(self) -> SideStatistics:
        """The statistics of all texts so far."""
        counts, words = self.words.counts, self.words.total
        ordered = counts.most_common()
        below = np.cumsum(self.lengths)
        edges = [0, *_HISTOGRAM, _LONGEST + 1]
        bins = pairwise(edges)
        rare = sorted(c for c, count in self.characters.items() if count <= _RARE)
        return SideStatistics(
            words=words,
            characters=self.characters.total(),
            different_words=self.words.different,
            is_estimated=self.words.is_estimated,
            top_words=dict(ordered[:_TOP]),
            shares={n: sum(count for _, count in ordered[:n]) / max(words, 1) for n in _SHARES},
            lengths={
                name: int(np.searchsorted(below, share * below[-1])) if below[-1] else 0
                for name, share in _QUANTILES.items()
            },
            histogram={low: int(self.lengths[low:high].sum()) for low, high in bins},
            scripts=dict(_by_script(self.characters).most_common()),
            different_characters=len(self.characters),
            rare_characters={f"U+{ord(c):04X}": _name(c) for c in rare[:_RARE_LIST]},
        )


class WordCounter:
    """A counter of words in bounded memory, which forgets the rarest words above a limit.

    Args:
        most: maximum number of different words that are counted at a time.
    """

    def __init__(self, most: int = MOST_WORDS) -> None:
        self.most = most
        self.counts: Counter[str] = Counter()
        self.total = 0
        self.is_estimated = False
        self._smallest: npt.NDArray[np.uint64] = np.empty(0, np.uint64)

    def add(self, words: Sequence[str]) -> None:
        """Count some words."""
        self.total += len(words)
        if self.is_estimated:
            # Words that have a count are hashed already.
            self._hash(set(words).difference(self.counts))
        self.counts.update(words)
        if len(self.counts) > self.most:
            if not self.is_estimated:
                self.is_estimated = True
                self._hash(self.counts)
            self._forget()

    @property
    def different(self) -> int:
        """Number of different words so far."""
        if not self.is_estimated:
            return len(self.counts)
        # The k smallest of n uniform hashes cover k / n of the range (a k-minimum-values estimate).
        return int((len(self._smallest) - 1) * 2.0**64 / float(self._smallest[-1]))

    def _hash(self, words: set[str] | Counter[str]) -> None:
        """Add words to the smallest hashes; repetitions change nothing."""
        hashes = np.fromiter((text_key(word) for word in words), np.uint64, len(words))
        self._smallest = np.unique(np.concatenate([self._smallest, hashes]))[:_SMALLEST]

    def _forget(self) -> None:
        """Keep only the counts of the most frequent words, as many as half of the limit."""
        self.counts = Counter(dict(self.counts.most_common(self.most // 2)))


def _by_script(characters: Counter[str]) -> Counter[str]:
    scripts: Counter[str] = Counter()
    for character, count in characters.items():
        scripts[_script(character)] += count
    return scripts


def _script(character: str) -> str:
    """Return the script of a letter, from its Unicode name, or the kind of another character."""
    category = unicodedata.category(character)
    if category[0] in "LM":
        first = unicodedata.name(character, "unnamed").split()[0]
        return "other letters" if first in _NO_SCRIPTS else first.capitalize()
    kinds = {"N": "digits", "P": "punctuation", "S": "symbols", "Z": "spaces"}
    return kinds.get(category[0], "control and other characters")


def _name(character: str) -> str:
    return unicodedata.name(character, f"unnamed, category {unicodedata.category(character)}")
