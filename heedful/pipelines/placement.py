"""Placement of markup in a translation.

A pair of tags goes around the words of the translation that come from the words inside the pair:
the run of words with the largest sum of alignment weights from inside, less those from outside.
A single tag goes beside the translation of its neighbour; a code span or a placeholder takes the
place of its own copy. Every part of markup is written exactly once.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Generic

import numpy as np

from heedful.pipelines.aligned_text import (
    OF_WORD,
    LineUp,
    Node,
    PartT,
    Span,
    copies_of,
    descendants,
    markup_tree,
)

_WEAK = 0.05
"""Alignment weight below which two words are not taken for translations of each other."""


def placed_markup(parts: Sequence[PartT], lined: LineUp) -> list[Node[PartT]]:
    """Return the markup of a text as a tree, with the place of each node in the translation.

    Args:
        parts: parts of the text, in order.
        lined: alignment of the text and its translation.
    """
    nodes = markup_tree(parts)
    return _Placing(lined, nodes).place()


class _Placing(Generic[PartT]):
    """A search for the places of markup in a translation."""

    def __init__(self, lined: LineUp, nodes: list[Node[PartT]]) -> None:
        self.lined = lined
        self.cores = [_core(lined.target, span) for span in lined.target_words]
        self.nodes = nodes
        self.weights = lined.weights.copy()
        self.kept: list[Node[PartT]] = []
        self.copies = self._copied_words()

    def place(self) -> list[Node[PartT]]:
        """Set the places of all nodes and return those at the top.

        Parts that stand for words come first: every other one goes around or beside them.
        """
        everything = (0, len(self.lined.target))
        self._place_kept()
        self._place_pairs(self.nodes, everything)
        for node in self.kept:
            self._siblings(node.target).append(node)
        # Placed last: they stand beside words, or around parts whose places are known by now.
        self._place_others(self.nodes, everything)
        for node in descendants(self.nodes):
            if node.kind == "single" and _text(node) and node.target[0] == node.target[1]:
                self._set_apart(node)
        ordered = sorted(self.kept, key=lambda node: node.target)
        for one, other in pairwise(ordered):
            # Two addresses that were apart would be read as one.
            touch = one.target[1] == other.target[0] and not one.after
            if touch and (one.end < other.start or other.end < one.start):
                other.before = " "
        return self.nodes

    def _set_apart(self, node: Node[PartT]) -> None:
        """Put space beside a part that no word of the translation stands for."""
        source, target, place = self.lined.source, self.lined.target, node.target[0]
        sides = target[:place][-1:], target[place:][:1]
        was_spaced = not source[: node.start].rstrip() or source[node.start - 1].isspace()
        node.before = " " if sides[0].strip() and was_spaced else ""
        touched = re.match(OF_WORD, source[node.end :]) is not None
        node.after = " " if re.match(OF_WORD, sides[1]) and not touched else ""

    def _place_kept(self) -> None:
        """Put parts that stand for words at their copies, and remove them from the tree."""
        singles = [n for n in descendants(self.nodes) if n.kind == "single" and self._words(n)]
        found = copies_of({_text(node) for node in singles}, self.lined.source, self.lined.target)
        taken: list[Span] = []
        waiting: list[Node[PartT]] = []
        # Parts that touch a word come last, and take what the others leave.
        for node in sorted(singles, key=lambda node: not _stands_alone(node, found[0])):
            span = self._copy(node, found, taken)
            if span is None:
                waiting.append(node)
            else:
                self._keep(node, span, taken)
        sentences = {id(node): self._sentence(node) for node in waiting}
        found_runs = {id(node): self._best(node, sentences[id(node)], taken) for node in waiting}
        for node in sorted(waiting, key=lambda node: -found_runs[id(node)][0]):
            certainty, run = self._best(node, sentences[id(node)], taken)
            if run is None or certainty <= 0:  # no word of the translation is its copy
                continue
            last = min(run[1] - 1, run[0] + len(self._words(node)))
            span = self.lined.target_words[run[0]][0], self.lined.target_words[last][1]
            # Punctuation at its edges belongs to the sentence, unless the part has such
            # a sign itself.
            start, end = _clipped(_core(self.lined.target, span, but=_text(node)), taken)
            if start < end:
                self._keep(node, (start, end), taken)
                self._set_strays(node, taken)
        # Placed parts leave the tree, as a copy may stand outside of the pair that its part was in.
        kept = set(map(id, self.kept))
        for siblings in (self.nodes, *(node.children for node in descendants(self.nodes))):
            siblings[:] = [node for node in siblings if id(node) not in kept]

    def _copied_words(self) -> np.ndarray:
        """Return, for each target word, the source word that it comes from and repeats, or -1."""
        lined = self.lined
        copies = np.full(len(self.cores), -1)
        for row, core in enumerate(self.cores if self.weights.size else ()):
            column = int(self.weights[row].argmax())
            word = lined.source[slice(*_core(lined.source, lined.source_words[column]))]
            is_copy = word.casefold() == lined.target[slice(*core)].casefold()
            if is_copy and self.weights[row, column] > _WEAK:
                copies[row] = column
        return copies

    def _set_strays(self, node: Node[PartT], taken: list[Span]) -> None:
        """Mark the words of a part's copy that stand elsewhere: the part has them all."""
        (first, last), target, words = node.target, self.lined.target, self._words(node)
        rows = [*zip(self.lined.target_words, self.copies.tolist(), strict=True)]
        inside = {column for (a, b), column in rows if a < last and first < b}
        for span, column in rows:
            if column not in words or column in inside:
                continue
            node.strays.append(_core(target, span, but=_text(node)))
            taken.append(span)

    def _keep(self, node: Node[PartT], span: Span, taken: list[Span]) -> None:
        """Place a part, and link its words only with those of its copy."""
        node.target = span
        taken.append(span)
        self.kept.append(node)
        rows = [n for n, (a, b) in enumerate(self.cores) if span[0] <= a and b <= span[1]]
        columns = [*self._words(node)]
        if rows:  # not where the part is only a piece of a word
            self.weights[:, columns] = 0.0
        for row in rows:
            self.weights[row] = 0.0
            self.weights[row, columns] = 1.0 / len(columns)

    def _sentence(self, node: Node[PartT]) -> Span:
        """Return the range of the translation of a node's sentence."""
        for region in self.lined.regions:
            if region.source[0] <= node.start < region.source[1]:
                return region.target
        return 0, len(self.lined.target)

    def _siblings(self, span: Span) -> list[Node[PartT]]:
        """Return the nodes of the innermost pair around a range."""
        siblings = self.nodes
        while inner := [n for n in siblings if n.kind == "pair" and _is_around(n.target, span)]:
            siblings = inner[0].children
        return siblings

    def _place_pairs(self, nodes: Sequence[Node[PartT]], within: Span) -> None:
        """Set the places of pairs around words, and of the pairs inside them."""
        taken: list[Span] = []
        ranged = [node for node in nodes if node.kind == "pair" and self._words(node)]
        found = {id(node): self._best(node, within, taken) for node in ranged}
        # Certain places come first, so that no other node takes their copies.
        certain = {
            id(node) for node in ranged if self.lined.copied(node.start, after=True) is not None
        }
        for node in sorted(ranged, key=lambda node: (id(node) not in certain, -found[id(node)][0])):
            node.target = self._range(node, within, taken)
            taken.append(node.target)
            self._place_pairs(node.children, node.target)

    def _place_others(self, nodes: list[Node[PartT]], within: Span) -> None:
        """Set the places of line breaks and of nodes without words, also inside pairs."""
        kept = set(map(id, self.kept))
        ranged = {id(n) for n in nodes if id(n) in kept or (n.kind == "pair" and self._words(n))}
        taken = [node.target for node in nodes if id(node) in ranged]
        nodes.sort(key=lambda node: node.start)
        for node in nodes:
            if node.kind == "soft":
                node.target = self._line_break(node, within, taken)
                taken.append(node.target)
            elif id(node) not in ranged:
                self._point(node, within, taken)
        for one, other in pairwise(nodes):
            if one.start == one.end == other.start == other.end:  # no text between
                one.after = other.before = ""
        for node in nodes:
            self._place_others(node.children, node.target)

    def _words(self, node: Node[PartT]) -> range:
        """Return the indices of the words inside a node."""
        if node.start == node.end:
            return range(0)
        words = self.lined.source_words
        first = bisect_right(words, node.start, key=lambda span: span[1])
        return range(first, max(first, bisect_left(words, node.end, key=lambda span: span[0])))

    def _scores(self, words: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return each target word's weight from some source words, and that minus all others."""
        weights = self.weights
        chosen = np.zeros(weights.shape[1], bool)
        chosen[list(words)] = True
        inside = weights[:, chosen].sum(1)
        # The small cost keeps words without any weight out of a run.
        scores = inside - weights[:, ~chosen].sum(1) - 0.01
        for region in self.lined.regions:
            here = chosen[slice(*region.source_words)]
            if here.size and here.all():  # a whole sentence inside the tag needs no alignment
                scores[slice(*region.target_words)] = 1.0
        return inside, scores

    def _allowed(self, within: Span, taken: Sequence[Span]) -> np.ndarray:
        """Return a mask of the target words in a range that are not wholly in other nodes."""
        # Arrays: 600 changes of look in a paragraph took 40 s, word by word.
        starts, ends = np.array(self.lined.target_words, int).reshape(-1, 2).T
        covered = np.zeros(len(starts), int)
        for a, b in taken:
            covered += np.clip(np.minimum(b, ends) - np.maximum(a, starts), 0, None)
        allowed: np.ndarray = (within[0] < ends) & (starts < within[1]) & (ends - starts > covered)
        return allowed

    def _best(
        self, node: Node[PartT], within: Span, taken: Sequence[Span]
    ) -> tuple[float, Span | None]:
        """Return the run of target words for a node, and its certainty."""
        words = self._words(node)
        inside, scores = self._scores(words)
        allowed = self._allowed(within, taken)
        if node.kind == "single":  # it takes the place of its run, but of no other word's copy
            copies = self.copies
            allowed &= (copies < 0) | ((words.start <= copies) & (copies < words.stop))
        best, span = _heaviest_run(scores, allowed)
        if span is not None and best > 0:
            return best, span
        inside = np.where(allowed, inside, 0.0)
        if inside.size and inside.max() > _WEAK:
            word = int(inside.argmax())
            return 0.0, (word, word + 1)
        if allowed.any():
            # No alignment at all: languages keep the order of words more often than not.
            share = (words[0] + 0.5) / len(self.lined.source_words)
            numbers = np.flatnonzero(allowed)
            word = int(numbers[np.abs(numbers + 0.5 - share * len(allowed)).argmin()])
            return -1.0, (word, word + 1)
        return -2.0, None

    def _range(self, node: Node[PartT], within: Span, taken: Sequence[Span]) -> Span:
        """Return the characters that a pair takes in the translation."""
        _, run = self._best(node, within, taken)
        if run is None:
            edge = _outside(within[1], [*taken, *(each.target for each in self.kept)])
            return edge, edge
        words = self._words(node)
        start, end = self._edges(node, (words[0], words[-1]), (run[0], run[1] - 1))
        inside = [
            each.target for each in self.kept if _is_around((node.start, node.end), _source(each))
        ]
        for a, b in inside:  # an edge inside a part moves to the part's edge
            start, end = a if a < start < b else start, b if a < end < b else end
        others = [each.target for each in self.kept if each.target not in inside]
        start, end = _clipped((max(start, within[0]), min(end, within[1])), taken)
        for a, b in others:
            start, end = b if a < start < b else start, a if a < end < b else end
        return start, max(start, end)

    def _edges(self, node: Node[PartT], source: tuple[int, int], target: tuple[int, int]) -> Span:
        lined = self.lined
        start = lined.copied(node.start, after=True)
        if start is None:
            start = self._after_word_before(node.start, source[0], target[0])
        if start is None:
            start = self._edge(node.start, source[0], target[0], is_start=True)
        end = lined.copied(node.end, after=False)
        if end is None:
            end = self._edge(node.end, source[1], target[1], is_start=False)
            # Space inside the tag stays there where a word touches it: `bold </b>word`.
            touched = re.match(r"\s\S", lined.source[node.end - 1 :]) is not None
            end += touched and lined.target[end : end + 1].isspace()
        return start, end

    def _after_word_before(self, offset: int, source: int, target: int) -> int | None:
        """Return the end of the word before a tag that a space follows: `word<b> bold</b>`.

        None if the two words are not adjacent in the translation.
        """
        lined = self.lined
        if source == 0 or target == 0 or lined.source_words[source - 1][1] != offset:
            return None
        glued = lined.source_words[source][0] == offset
        follows = self._aligned(source - 1) == target - 1
        return None if glued or not follows else lined.target_words[target - 1][1]

    def _edge(self, offset: int, source: int, target: int, *, is_start: bool) -> int:
        """Return the edge of a target word that corresponds to an offset at a source word."""
        lined = self.lined
        (a, b), (c, d) = lined.source_words[source], lined.target_words[target]
        # A tag inside a word that stays, as in `H<sub>2</sub>O`, keeps its place in it.
        if lined.source[a:b].casefold() == lined.target[c:d].casefold() and b - a == d - c:
            return min(max(c + offset - a, c), d)
        # Punctuation at the edge of a word is inside the tag if it was in the source.
        core = _core(lined.source, (a, b))
        if is_start:
            return c if offset <= a < core[0] else self.cores[target][0]
        return d if offset >= b > core[1] else self.cores[target][1]

    def _copy(
        self, node: Node[PartT], found: Sequence[dict[str, list[Span]]], taken: Sequence[Span]
    ) -> Span | None:
        """Return the range where the translation repeats a code span or a placeholder."""
        copied = self.lined.copied(node.start, after=True)
        if copied is not None:
            return copied, copied + node.end - node.start
        wanted, (sources, copies) = _text(node), found
        if not copies[wanted]:  # the translator may have changed the case
            wanted = wanted.casefold()
        spans = copies[wanted]
        if not _stands_alone(node, sources):
            # The part touched a word in the source, so its copy may be inside a word too.
            spans = [m.span() for m in re.finditer(re.escape(wanted), self.lined.target, re.I)]
        if len(spans) == len(sources[wanted]):
            # If there are several equal copies, the one with the same index as in the source comes
            # first.
            rank = sum(start < node.start for start, _ in sources[wanted]) % max(1, len(spans))
            spans = [*spans[rank:], *spans[:rank]]
        own = self._words(node)
        # Words of two parts may read as one of them.
        if len(own) > 1 or len(spans) < len(sources[wanted]):
            spans = [
                span
                for span in spans
                if all(
                    n in own
                    for word, n in zip(self.lined.target_words, self.copies, strict=True)
                    if n >= 0 and _is_around(span, word)
                )
            ]
        free = (s for s in spans if not any(a < s[1] and s[0] < b for a, b in taken))
        return next(free, None)

    def _point(self, node: Node[PartT], within: Span, taken: Sequence[Span]) -> None:
        """Place a node without words: beside the translation of a neighbour."""
        lined, x = self.lined, node.start
        exact = lined.copied(x, after=True)
        if exact is None and x and not lined.source[x - 1].isspace():
            exact = lined.copied(x, after=False)
        place = exact if exact is not None else self._beside(node)
        place = _outside(min(max(place, within[0]), within[1]), taken)
        node.target = (place, place)

    def _beside(self, node: Node[PartT]) -> int:
        lined, x = self.lined, node.start
        number = bisect_left(lined.source_words, x, key=lambda span: span[0])
        left = range(number)
        right = range(number, len(lined.source_words))
        is_left = bool(left) and lined.source_words[left[-1]][1] >= x
        is_right = bool(right) and lined.source_words[right[0]][0] == x
        if not right and not is_left:
            return len(lined.target)
        if is_left and (word := self._aligned(left[-1])) is not None:
            return self._edge(x, left[-1], word, is_start=False)
        if is_right and (word := self._aligned(right[0])) is not None:
            return self._edge(x, right[0], word, is_start=True)
        if left and (word := self._aligned(left[-1])) is not None:
            node.before = "" if is_left else " "
            return lined.target_words[word][1]
        if right and (word := self._aligned(right[0])) is not None:
            node.after = "" if is_right else " "
            return self._edge(x, right[0], word, is_start=True)
        share = round(len(left) * len(lined.target_words) / max(1, len(lined.source_words)))
        edges = [start for start, _ in lined.target_words] + [len(lined.target)]
        node.after = "" if is_left or is_right else " "
        return edges[share]

    def _aligned(self, word: int) -> int | None:
        """Return the target word with the largest weight from a source word."""
        column = self.weights[:, word]
        return int(column.argmax()) if column.size and column.max() > _WEAK else None

    def _line_break(self, node: Node[PartT], within: Span, taken: Sequence[Span]) -> Span:
        """Return the space that becomes a line break, at about the same place as in the source."""
        lined = self.lined
        exact = lined.copied(node.start, after=True)
        if exact is not None:
            inside = within[0] <= exact and exact + node.end - node.start <= within[1]
            return (exact, exact + node.end - node.start) if inside else (-1, -1)
        region = next(r for r in lined.regions if r.source[0] <= node.start < r.source[1])
        before = sum(start < node.start for start, _ in lined.source_words)
        words = region.source_words[1] - region.source_words[0]
        length = region.target_words[1] - region.target_words[0]
        wanted = round((before - region.source_words[0]) * length / max(1, words))
        gaps = [
            (abs(number - wanted), (lined.target_words[word][1], lined.target_words[word + 1][0]))
            for number, word in enumerate(range(*region.target_words)[:-1], start=1)
        ]
        free = [
            (distance, gap)
            for distance, gap in gaps
            if within[0] < gap[0] and gap[1] < within[1]
            if not any((a < gap[1] and gap[0] < b) or gap == (a, b) for a, b in taken)
        ]
        return min(free)[1] if free else (-1, -1)


def _text(node: Node[PartT]) -> str:
    assert node.opening is not None
    return node.opening.text.strip()


def _stands_alone(node: Node[PartT], sources: dict[str, list[Span]]) -> bool:
    """Return True for a part that touches no word of its text."""
    return node.start in {start for start, _ in sources[_text(node)]}


def _source(node: Node[PartT]) -> Span:
    return node.start, node.end


def _is_around(outer: Span, inner: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _clipped(span: Span, taken: Iterable[Span]) -> Span:
    """Return a range without the parts that other ranges take."""
    start, end = span
    for a, b in taken:
        if a < end and start < b:
            start, end = (b, max(b, end)) if a <= start else (start, a)
    return start, max(start, end)


def _heaviest_run(scores: np.ndarray, allowed: np.ndarray) -> tuple[float, Span | None]:
    """Return the run of allowed words with the largest sum of scores (Kadane)."""
    best, span = 0.0, None
    total, start = 0.0, 0
    for number, score in enumerate(scores):
        if not allowed[number]:
            total, start = 0.0, number + 1
            continue
        if total <= 0:
            total, start = 0.0, number
        total += float(score)
        if total > best:
            best, span = total, (start, number + 1)
    return best, span


def _core(text: str, span: Span, but: str = "") -> Span:
    """Return the range of a word without punctuation around it; all of it for punctuation alone.

    Args:
        text: text with the word.
        span: range of the word.
        but: signs that belong to the word.
    """
    start, end = span
    while start < end and unicodedata.category(text[start])[0] == "P" and text[start] not in but:
        start += 1
    while (
        end > start and unicodedata.category(text[end - 1])[0] == "P" and text[end - 1] not in but
    ):
        end -= 1
    return (start, end) if start < end else span


def _outside(place: int, taken: Sequence[Span]) -> int:
    """Return a place outside the ranges, moved to the end of the range that contains it."""
    for start, end in sorted(taken):
        if start < place < end:
            place = end
    return place
