"""Placement of markup in a translation.

A pair of tags goes around the words of the translation that come from the words inside the pair:
the run of words with the largest sum of alignment weights from inside, less those from outside.
A single tag goes beside the translation of its neighbour; a code span or a placeholder takes the
place of its own copy. Every part of markup is written exactly once.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np

from heedful.pipelines.aligned_text import LineUp, Span

Kind = Literal["text", "open", "close", "single", "soft"]

_WEAK = 0.05
"""Alignment weight below which two words are not taken for translations of each other."""


class MarkedPart(Protocol):
    """A part of a text: text or markup."""

    @property
    def kind(self) -> Kind:
        """Kind of the part.

        `text`; `open` and `close` of a pair of tags around words; `single` for what stands by
        itself, such as a picture, a code span or a placeholder; `soft` for a line break that is no
        more than a space.
        """

    @property
    def text(self) -> str:
        """Text for the translator: the words that `single` shows, a space for `soft`."""


PartT = TypeVar("PartT", bound=MarkedPart)


@dataclass(eq=False)
class Node(Generic[PartT]):
    """Markup of a text, its words in the text and its place in the translation.

    Args:
        opening, closing: parts that write it; one tag of a pair may be missing.
        start, end: range of the characters inside it.
        children: markup inside a pair.
        target: range of characters of the translation; (-1, -1) for a line break that has none.
        before, after: space that sets it apart from the translation.
    """

    opening: PartT | None
    closing: PartT | None = None
    start: int = 0
    end: int = 0
    children: list[Node[PartT]] = field(default_factory=list)
    target: Span = (0, 0)
    before: str = ""
    after: str = ""

    @property
    def kind(self) -> Kind | Literal["pair"]:
        """Kind of the markup."""
        if self.opening is None or self.opening.kind == "open":
            return "pair"
        return self.opening.kind


def placed_markup(parts: Sequence[PartT], lined: LineUp) -> list[Node[PartT]]:
    """Return the markup of a text as a tree, with the place of each node in the translation.

    Args:
        parts: parts of the text, in order.
        lined: alignment of the text and its translation.
    """
    nodes = _tree(parts)
    _Placing(lined).place(nodes, (0, len(lined.target)))
    return nodes


def _tree(parts: Sequence[PartT]) -> list[Node[PartT]]:
    """Return pairs and single parts as a tree; a tag without a partner reaches to the edge."""
    root: Node[PartT] = Node(None)
    stack = [root]
    here = 0
    for part in parts:
        if part.kind == "open":
            stack.append(Node(part, start=here))
        elif part.kind == "close":
            node = stack.pop() if len(stack) > 1 else Node(None)
            node.closing, node.end = part, here
            if node.opening is None:  # all parts before it are inside
                node.children, root.children = root.children, []
            stack[-1].children.append(node)
        elif part.kind != "text":
            stack[-1].children.append(Node(part, start=here, end=here + len(part.text)))
        here += len(part.text)
    while len(stack) > 1:
        node = stack.pop()
        node.end = here
        stack[-1].children.append(node)
    return root.children


class _Placing:
    """Finds the places of markup in a translation."""

    def __init__(self, lined: LineUp) -> None:
        self.lined = lined
        self.cores = [_core(lined.target, span) for span in lined.target_words]

    def place(self, nodes: Sequence[Node[PartT]], within: Span) -> None:
        """Set the places of sibling nodes, and of the nodes inside them."""
        taken: list[Span] = []
        ranged = [node for node in nodes if node.kind != "soft" and self._words(node)]
        found = {id(node): self._best(node, within, taken) for node in ranged}
        # Certain places come first, so that no other node takes their copies.
        certain = {
            id(node) for node in ranged if self.lined.copied(node.start, after=True) is not None
        }
        for node in sorted(ranged, key=lambda node: (id(node) not in certain, -found[id(node)][0])):
            node.target = self._range(node, within, taken)
            taken.append(node.target)
        for node in nodes:
            if node.kind == "soft":
                node.target = self._line_break(node, within, taken)
                taken.append(node.target)
            elif not self._words(node):
                self._point(node, within, taken)
        for one, next_one in pairwise(nodes):
            if one.start == one.end == next_one.start == next_one.end:  # no text between
                one.after = next_one.before = ""
        for node in nodes:
            self.place(node.children, node.target)

    def _words(self, node: Node[PartT]) -> range:
        """Return the indices of the words inside a node."""
        if node.start == node.end:
            return range(0)
        words = self.lined.source_words
        first = bisect_right(words, node.start, key=lambda span: span[1])
        return range(first, max(first, bisect_left(words, node.end, key=lambda span: span[0])))

    def _scores(self, words: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the weight of each target word from some source words, alone and less the rest."""
        weights = self.lined.weights
        chosen = np.zeros(weights.shape[1], bool)
        chosen[list(words)] = True
        inside = weights[:, chosen].sum(1)
        scores = inside - weights[:, ~chosen].sum(1) - 0.01
        for region in self.lined.regions:
            here = chosen[slice(*region.source_words)]
            if here.size and here.all():
                scores[slice(*region.target_words)] = 1.0
        return inside, scores

    def _allowed(self, within: Span, taken: Sequence[Span]) -> np.ndarray:
        """Return a mask of the target words in a range that are not wholly in other nodes."""
        return np.array(
            [
                within[0] < end
                and start < within[1]
                and end - start > sum(max(0, min(b, end) - max(a, start)) for a, b in taken)
                for start, end in self.lined.target_words
            ],
            bool,
        )

    def _best(
        self, node: Node[PartT], within: Span, taken: Sequence[Span]
    ) -> tuple[float, Span | None]:
        """Return the run of target words for a node, and its certainty."""
        words = self._words(node)
        inside, scores = self._scores(words)
        allowed = self._allowed(within, taken)
        best, span = _heaviest_run(scores, allowed)
        if span is not None and best > 0:
            return best, span
        inside = np.where(allowed, inside, 0.0)
        if inside.size and inside.max() > _WEAK:
            word = int(inside.argmax())
            return 0.0, (word, word + 1)
        if allowed.any():
            share = (words[0] + 0.5) / len(self.lined.source_words)
            numbers = np.flatnonzero(allowed)
            word = int(numbers[np.abs(numbers + 0.5 - share * len(allowed)).argmin()])
            return -1.0, (word, word + 1)
        return -2.0, None

    def _range(self, node: Node[PartT], within: Span, taken: Sequence[Span]) -> Span:
        """Return the characters that a node takes in the translation."""
        if node.kind == "single" and (span := self._verbatim(node, within, taken)) is not None:
            return span
        _, run = self._best(node, within, taken)
        if run is None:
            edge = _outside(within[1], taken)
            return edge, edge
        words = self._words(node)
        if node.kind == "single" and run[1] - run[0] > len(words) + 1:
            run = (run[0], run[0] + len(words))
        start, end = self._edges(node, (words[0], words[-1]), (run[0], run[1] - 1))
        start, end = max(start, within[0]), min(end, within[1])
        for a, b in taken:
            if a < end and start < b:
                start, end = (b, max(b, end)) if a <= start else (start, a)
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
        if lined.source[a:b].casefold() == lined.target[c:d].casefold() and b - a == d - c:
            return min(max(c + offset - a, c), d)
        # Punctuation at the edge of a word is inside the tag if it was in the source.
        core = _core(lined.source, (a, b))
        if is_start:
            return c if offset <= a < core[0] else self.cores[target][0]
        return d if offset >= b > core[1] else self.cores[target][1]

    def _verbatim(self, node: Node[PartT], within: Span, taken: Sequence[Span]) -> Span | None:
        """Return the range where the translation repeats a code span or a placeholder unchanged."""
        assert node.opening is not None
        copied = self.lined.copied(node.start, after=True)
        if copied is not None:
            return copied, copied + node.end - node.start
        wanted, text = node.opening.text, self.lined.target
        start = text.find(wanted, *within)
        ahead = self.lined.source.count(wanted, 0, node.start)
        if ahead and text.count(wanted) == self.lined.source.count(wanted):
            # Of several equal copies, take the one with the same index as in the source.
            start = -1
            for _ in range(ahead + 1):
                start = text.find(wanted, start + len(wanted) if start >= 0 else 0)
            if not within[0] <= start <= within[1] - len(wanted):
                start = text.find(wanted, *within)
        while start >= 0:
            end = start + len(wanted)
            parts_word = (
                (start > 0 and text[start - 1].isalnum() and wanted[0].isalnum())
                or (end < len(text) and text[end].isalnum() and wanted[-1].isalnum())
            )  # fmt: skip
            if not parts_word and not any(a < end and start < b for a, b in taken):
                return start, end
            start = text.find(wanted, start + 1, within[1])
        return None

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
        column = self.lined.weights[:, word]
        return int(column.argmax()) if column.size and column.max() > _WEAK else None

    def _line_break(self, node: Node[PartT], within: Span, taken: Sequence[Span]) -> Span:
        """Return the space that becomes a line break, at about the same place as in the source."""
        lined = self.lined
        exact = lined.copied(node.start, after=True)
        if exact is not None:
            return exact, exact + node.end - node.start
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


def _core(text: str, span: Span) -> Span:
    """Return the range of a word without punctuation around it; all of it for punctuation alone."""
    start, end = span
    while start < end and unicodedata.category(text[start])[0] == "P":
        start += 1
    while end > start and unicodedata.category(text[end - 1])[0] == "P":
        end -= 1
    return (start, end) if start < end else span


def _outside(place: int, taken: Sequence[Span]) -> int:
    """Return a place outside the ranges, moved to the end of the range that contains it."""
    for start, end in sorted(taken):
        if start < place < end:
            place = end
    return place
