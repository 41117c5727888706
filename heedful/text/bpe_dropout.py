"""BPE-dropout: the same word is segmented differently each time a model is trained on it.

Provilkov, Emelianenko and Voita 2020, algorithm 1: before every merge, each possible merge is
dropped with probability p, and the best of the others is applied; when none remains, the word is
finished. Here candidates are drawn from the best on, and only until one is kept, which gives the
same distribution.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

_CACHED_WORDS = 100_000  # words whose initial merge candidates are cached

# (rank, position of the left symbol, left symbol, right symbol)
_Candidate = tuple[int, int, int, int]


class MergeTable:
    """The merges of a BPE model, by the ids that they join.

    Args:
        vocabulary: id of every piece.
        merges: pairs of pieces, the best first.
        unk: id of characters outside the vocabulary; None for a vocabulary of bytes.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        unk: int | None,
    ) -> None:
        self._vocabulary = vocabulary
        self._unk = unk
        self._merges = {
            (vocabulary[left], vocabulary[right]): (rank, vocabulary[left + right])
            for rank, (left, right) in enumerate(merges)
        }
        self._starts: dict[str, tuple[list[int], list[_Candidate]]] = {}

    def split(self, word: str, dropout: float, draw: Callable[[], float]) -> list[int]:
        """Segment a word into pieces.

        Args:
            word: one word from the splitter.
            dropout: probability that a possible merge is dropped in a step; 0 is plain BPE.
            draw: generator of uniform numbers in [0, 1), unused without dropout.

        Returns:
            Ids of the pieces.
        """
        first_symbols, first_candidates = self._start(word)
        symbols, heap = first_symbols.copy(), first_candidates.copy()
        # A doubly linked list of symbols: a merge removes its right symbol without shifting others.
        following = list(range(1, len(symbols) + 1))
        preceding = list(range(-1, len(symbols) - 1))
        while (position := _choose(heap, symbols, following, dropout, draw)) is not None:
            gone = following[position]
            _, symbols[position] = self._merges[symbols[position], symbols[gone]]
            symbols[gone] = -1  # makes candidates with this symbol out of date
            following[position] = following[gone]
            if following[gone] < len(symbols):
                preceding[following[gone]] = position
                self._consider(heap, symbols, position, following[gone])
            if preceding[position] >= 0:
                self._consider(heap, symbols, preceding[position], position)
        return [symbol for symbol in symbols if symbol >= 0]

    def _start(self, word: str) -> tuple[list[int], list[_Candidate]]:
        start = self._starts.get(word)
        if start is None:
            symbols = [self._symbol(character) for character in word]
            candidates: list[_Candidate] = []
            for position in range(len(symbols) - 1):
                self._consider(candidates, symbols, position, position + 1)
            start = symbols, candidates
            if len(self._starts) >= _CACHED_WORDS:
                self._starts.clear()
            self._starts[word] = start
        return start

    def _symbol(self, character: str) -> int:
        symbol = self._vocabulary.get(character, self._unk)
        assert symbol is not None, "a byte without a piece"
        return symbol

    def _consider(self, heap: list[_Candidate], symbols: list[int], left: int, right: int) -> None:
        merge = self._merges.get((symbols[left], symbols[right]))
        if merge is not None:
            heapq.heappush(heap, (merge[0], left, symbols[left], symbols[right]))


def _choose(
    heap: list[_Candidate],
    symbols: list[int],
    following: list[int],
    dropout: float,
    draw: Callable[[], float],
) -> int | None:
    """Pop the best merge that is not dropped; return its left position, None if all are."""
    left_out: list[_Candidate] = []
    chosen = None
    while heap:
        candidate = heapq.heappop(heap)
        _, left, left_symbol, right_symbol = candidate
        right = following[left]
        # A candidate is out of date once an earlier merge took one of its symbols.
        if symbols[left] != left_symbol or right >= len(symbols):
            continue
        if symbols[right] != right_symbol:
            continue
        if dropout and draw() < dropout:
            left_out.append(candidate)
            continue
        chosen = left
        break
    # Dropped in this step only: the next step draws for them anew.
    if chosen is not None:
        for candidate in left_out:
            heapq.heappush(heap, candidate)
    return chosen
