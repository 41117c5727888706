"""Detection of sources that are in test data, exactly or nearly.

Two sources are nearly the same when they have the same letters and digits, or when the Jaccard
similarity of their word bigrams reaches a limit. Candidates in the test data are found by the
rarest bigrams alone (prefix filtering; Chaudhuri, Ganti and Kaushik 2006).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from heedful.apps.cleaning.text_keys import letters_of, plain_text, text_key
from heedful.data.corpus_spec import CorpusSpec
from heedful.data.pair_corpus import CorpusReader, Pair

_WORD = re.compile(r"[^\W_]+")
_FEWEST_WORDS = 3
"""Minimum number of words for a comparison by bigrams, not by letters."""


class LeakIndex:
    """An index of the sources of test data.

    Args:
        pairs: test data, which takes about 1.5 kB of memory a pair.
        near: smallest Jaccard similarity of two sources that are nearly the same.
    """

    def __init__(self, pairs: Iterable[Pair], near: float) -> None:
        self.near = near
        self.sources: set[int] = set()
        self.targets: set[int] = set()
        self._letters: set[int] = set()
        self._sentences: list[frozenset[int]] = []
        self._postings: defaultdict[int, list[int]] = defaultdict(list)
        for pair in pairs:
            self.targets.add(text_key(plain_text(pair.target)))
            key = text_key(plain_text(pair.source))
            if key in self.sources:
                continue
            self.sources.add(key)
            self._letters.add(text_key(letters_of(pair.source)))
            if grams := word_pairs(pair.source):
                for gram in grams:
                    self._postings[gram].append(len(self._sentences))
                self._sentences.append(grams)

    @classmethod
    def read(cls, specs: Iterable[CorpusSpec], near: float) -> LeakIndex:
        """Make the index of some corpora.

        Args:
            specs: files of the test data.
            near: smallest Jaccard similarity of two sources that are nearly the same.

        Raises:
            DataError: when a line is not a pair, with file and line.
        """
        return cls((pair for spec in specs for pair in CorpusReader(spec)), near)

    def has_target(self, target: str) -> bool:
        """Return True if the test data has this target."""
        return text_key(plain_text(target)) in self.targets

    def has(self, source: str) -> bool:
        """Return True if the test data has this source; differences in spaces do not count."""
        return text_key(plain_text(source)) in self.sources

    def has_near(self, source: str) -> bool:
        """Return True if the test data has a source that is nearly the same."""
        if text_key(letters_of(source)) in self._letters:
            return True
        grams = word_pairs(source)
        # |A ∩ B| ≥ near · |A ∪ B| ≥ near · |A|; the margin keeps ceil from a rounding error.
        needed = math.ceil(self.near * len(grams) - 1e-9)
        known = [gram for gram in grams if gram in self._postings]
        if not grams or len(known) < needed:
            return False
        # A match shares at least `needed` known bigrams, so the needed - 1 most frequent ones, with
        # the longest postings, need no look-up: a match has another one as well.
        rarest = sorted(known, key=lambda gram: len(self._postings[gram]))
        probed = rarest[: len(known) - needed + 1]
        candidates = Counter(number for gram in probed for number in self._postings[gram])
        return any(self._is_near(grams, self._sentences[number]) for number in candidates)

    def _is_near(self, one: frozenset[int], other: frozenset[int]) -> bool:
        common = len(one & other)
        return common >= self.near * (len(one) + len(other) - common) - 1e-9


def word_pairs(text: str) -> frozenset[int]:
    """Return hashes of the word bigrams of a text, which has an empty word added at each end.

    Args:
        text: text of a sentence.

    Returns:
        The different hashes; none for fewer than 3 words. Another process gives other hashes.
    """
    words = _WORD.findall(text.casefold())
    if len(words) < _FEWEST_WORDS:
        return frozenset()
    return frozenset(map(hash, zip(["", *words], [*words, ""], strict=True)))
