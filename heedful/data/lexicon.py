"""The target tokens that a source token becomes, learned from the pairs of a corpus.

IBM model 1 (Brown 1993): each target token of a pair comes from one token of its source, or from
none, and all places are as likely. The table p(target | source) is fitted by expectation
maximisation: a target token is shared out among the tokens of its source as the table has it, and
the table is counted anew from the shares.

The corpus stays on the disk, and adds to memory only by its lengths, some 50 bytes a pair. The
table holds at most `MOST_PAIRS` pairs of tokens that were seen together, 24 bytes each, and a few
times that while it is put together; the pairs of sentences are looked at some at a time, a hundred
megabytes of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from heedful.data.encoded_pairs import EncodedCorpus

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
Progress = Callable[[int, int, str], None]

MOST_PAIRS = 1 << 23
"""Pairs of tokens that are held. When there are more, each source token keeps its commonest."""

ROUNDS = 5
"""Of counting. The likeliest tokens hardly change after a few."""

_CELLS = 1 << 20
"""Target tokens beside source tokens that are looked at together."""


class Lexicon(NamedTuple):
    """Translations of single tokens, learned from a corpus.

    Args:
        source: ids of the tokens of the source [n] int64, ascending.
        target: of what they become [n], the likeliest first.
        probability: p(target | source) [n].
        counts: how often each target token stands in the corpus [V].
        skipped: pairs too long to be looked at.
    """

    source: Integers
    target: Integers
    probability: Numbers
    counts: Integers
    skipped: int


def learn_lexicon(
    corpus: EncodedCorpus,
    source_size: int,
    target_size: int,
    *,
    rounds: int = ROUNDS,
    most_pairs: int = MOST_PAIRS,
    progress: Progress | None = None,
) -> Lexicon:
    """Fit the table.

    Args:
        corpus: pairs of token ids.
        source_size: how many source tokens there are.
        target_size: how many target tokens there are.
        rounds: of counting, the first with all tokens of a source sharing evenly.
        most_pairs: of tokens that are held.
        progress: pairs of sentences done, how many there are, and in which round.
    """
    cells = _Cells(corpus, source_size, target_size)

    def parts(number: int) -> Iterator[_Part]:
        for done, part in cells:
            yield part
            if progress is not None:
                progress(done, len(corpus), f"round {number} of {rounds}")

    table = _counted(parts(1), target_size, most_pairs)
    for number in range(2, rounds + 1):
        shares = _normalised(table, target_size)
        counts = np.zeros(len(table.keys))
        for part in parts(number):
            _share_out(part, shares, counts)
        table = _Table(table.keys, counts)
    table = _normalised(table, target_size)
    source, target = np.divmod(table.keys, target_size)
    known = (source < source_size) & (table.values > 0)  # what came from no token is no one's
    source, target, probability = source[known], target[known], table.values[known]
    order = np.lexsort((target, -probability, source))
    return Lexicon(
        source[order], target[order], probability[order], cells.target_counts, cells.skipped
    )


def ragged(starts: Integers, lengths: Integers) -> Integers:
    """The numbers start, start + 1 … of each stretch, one stretch after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def ranks(groups: Integers) -> Integers:
    """For each place of an ascending array, how many of its equals stand before it."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


class _Part(NamedTuple):
    """Target tokens beside the tokens they may come from.

    Args:
        keys: source · V + target of each cell, different ones ascending.
        cells: for each cell the number of its key; those of a target token stand together.
        widths: cells of each target token.
    """

    keys: Integers
    cells: Integers
    widths: Integers


class _Table(NamedTuple):
    """A number for each pair of tokens.

    Args:
        keys: source · V + target, ascending.
        values: of each.
    """

    keys: Integers
    values: Numbers


class _Cells:
    """The pairs of a corpus in parts; may be gone through again and again.

    Args:
        corpus: as token ids.
        source_size: stands for no token, as the id of a source token.
        target_size: V.
    """

    def __init__(self, corpus: EncodedCorpus, source_size: int, target_size: int) -> None:
        self.nothing = source_size
        self.target_size = target_size
        self.sources, self.targets = corpus.all_ids("source"), corpus.all_ids("target")
        self.source_lengths = corpus.lengths("source")
        self.target_lengths = corpus.lengths("target")
        counts = (self.source_lengths + 1) * self.target_lengths
        self.skipped = int((counts > _CELLS).sum())
        self.counts = np.where(counts > _CELLS, 0, counts)
        self.target_counts = np.zeros(target_size, np.int64)
        for first in range(0, len(self.targets), _CELLS):
            some = self.targets[first : first + _CELLS]
            self.target_counts += np.bincount(some, minlength=target_size)

    def __iter__(self) -> Iterator[tuple[int, _Part]]:
        """The number of pairs done, and the last of them."""
        ends = np.cumsum(self.counts)
        source_starts = np.cumsum(self.source_lengths) - self.source_lengths
        target_starts = np.cumsum(self.target_lengths) - self.target_lengths
        first = 0
        while first < len(ends):
            before = ends[first - 1] if first else 0
            stop = int(np.searchsorted(ends, before + _CELLS, side="right"))
            rows = first + self.counts[first:stop].nonzero()[0]
            if len(rows):
                yield stop, self._part(rows, source_starts[rows], target_starts[rows])
            first = stop

    def _part(self, rows: Integers, source_starts: Integers, target_starts: Integers) -> _Part:
        lengths = self.target_lengths[rows]
        targets = self.targets[ragged(target_starts, lengths)].astype(np.int64)
        widths = np.repeat(self.source_lengths[rows] + 1, lengths)
        places = ragged(np.repeat(source_starts - 1, lengths), widths)
        firsts = np.cumsum(widths) - widths
        places[firsts] = 0  # whatever stands there
        sources = np.full(len(places), self.nothing)
        if len(self.sources):
            sources = self.sources[places].astype(np.int64)
            sources[firsts] = self.nothing
        keys, cells = np.unique(
            sources * self.target_size + np.repeat(targets, widths), return_inverse=True
        )
        return _Part(keys, cells, widths)


def _counted(parts: Iterator[_Part], target_size: int, most: int) -> _Table:
    """Count the tokens that stand together, each target token shared out evenly."""
    table = _Table(np.empty(0, np.int64), np.empty(0))
    waiting: list[_Table] = []
    for part in parts:
        shares = np.repeat(1.0 / part.widths, part.widths)
        waiting.append(_Table(part.keys, _summed(part.cells, shares)))
        if sum(len(each.keys) for each in waiting) >= min(max(len(table.keys), _CELLS), most):
            table = _cut(_sum([table, *waiting]), target_size, most)
            waiting.clear()
    return _cut(_sum([table, *waiting]), target_size, most)


def _summed(places: Integers, values: Numbers) -> Numbers:
    return np.asarray(np.bincount(places, weights=values), dtype=np.float64)


def _sum(tables: list[_Table]) -> _Table:
    keys, places = np.unique(np.concatenate([t.keys for t in tables]), return_inverse=True)
    values = np.concatenate([t.values for t in tables])
    return _Table(keys, _summed(places, values))


def _cut(table: _Table, target_size: int, most: int) -> _Table:
    """The table with no more than half of `most` pairs, if it had more than `most`.

    Every source token keeps as many, so that rare ones lose nothing.
    """
    if len(table.keys) <= most:
        return table
    sources = table.keys // target_size
    order = np.lexsort((-table.values, sources))
    rank = ranks(sources)
    kept = int(np.searchsorted(np.cumsum(np.bincount(rank)), most // 2, side="right"))
    chosen = np.sort(order[rank < max(1, kept)])
    return _Table(table.keys[chosen], table.values[chosen])


def _normalised(table: _Table, target_size: int) -> _Table:
    """The table with the numbers of each source token adding up to 1."""
    _, groups = np.unique(table.keys // target_size, return_inverse=True)
    totals = _summed(groups, table.values)
    totals[totals == 0] = 1.0
    return _Table(table.keys, table.values / totals[groups])


def _share_out(part: _Part, shares: _Table, counts: Numbers) -> None:
    """Add to the counts what falls to each pair of tokens."""
    places = np.minimum(np.searchsorted(shares.keys, part.keys), len(shares.keys) - 1)
    known = shares.keys[places] == part.keys
    likely = np.where(known, shares.values[places], 0.0)[part.cells]
    totals = np.add.reduceat(likely, np.cumsum(part.widths) - part.widths)
    totals[totals == 0] = 1.0  # none of its pairs is held
    likely /= np.repeat(totals, part.widths)
    counts[places[known]] += _summed(part.cells, likely)[known]
