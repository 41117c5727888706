"""Sources that are in test data too, exactly or nearly.

Two sources are nearly the same when they have the same letters and digits, or when at least a share
of the pairs of neighbouring words that either has are in both (Jaccard). Sentences of the test data
that may be so near are found by their rarest word pairs alone (prefix filtering, Chaudhuri, Ganti
and Kaushik 2006): those of which too few are known are no candidates.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from heedful.data.cleaning.text_keys import letters_of, plain_text, text_key
from heedful.data.corpus_spec import CorpusSpec
from heedful.data.pair_corpus import CorpusReader, Pair

_WORD = re.compile(r"[^\W_]+")
_FEWEST_WORDS = 3
"""Shorter sentences are compared by their letters only."""


class LeakIndex:
    """The sources of test data, to be asked for those of other pairs.

    Args:
        pairs: of the test data, all in memory: about 1.5 kB each.
        near: least share of common word pairs that makes two sources nearly the same.
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
        """Read test data.

        Args:
            specs: its corpora.
            near: as for the class.

        Raises:
            DataError: naming file and line, for anything that is not a pair.
        """
        return cls((pair for spec in specs for pair in CorpusReader(spec)), near)

    def has_target(self, target: str) -> bool:
        """Return True if the test data has this target."""
        return text_key(plain_text(target)) in self.targets

    def has(self, source: str) -> bool:
        """Return True if the test data has this source, but for spaces."""
        return text_key(plain_text(source)) in self.sources

    def has_near(self, source: str) -> bool:
        """Return True if the test data has a source that is nearly the same."""
        if text_key(letters_of(source)) in self._letters:
            return True
        grams = word_pairs(source)
        needed = math.ceil(self.near * len(grams) - 1e-9)
        known = [gram for gram in grams if gram in self._postings]
        if not grams or len(known) < needed:
            return False
        # Of the needed ones, at least one is among all but the commonest needed - 1.
        rarest = sorted(known, key=lambda gram: len(self._postings[gram]))
        probed = rarest[: len(known) - needed + 1]
        candidates = Counter(number for gram in probed for number in self._postings[gram])
        return any(self._is_near(grams, self._sentences[number]) for number in candidates)

    def _is_near(self, one: frozenset[int], other: frozenset[int]) -> bool:
        common = len(one & other)
        return common >= self.near * (len(one) + len(other) - common) - 1e-9


def word_pairs(text: str) -> frozenset[int]:
    """Hashes of the pairs of neighbouring words, and of the first and the last word.

    Args:
        text: a sentence.

    Returns:
        As many as there are words and one; none for fewer than 3 words. Equal within a process.
    """
    words = _WORD.findall(text.casefold())
    if len(words) < _FEWEST_WORDS:
        return frozenset()
    return frozenset(map(hash, zip(["", *words], [*words, ""], strict=True)))
