"""A text and its translation: words, the weights between these, and markup as a tree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from heedful.search.alignment import Alignment
from heedful.text.pretokenization import word_spans

Span = tuple[int, int]


@dataclass(frozen=True)
class Region:
    """A range of a passage, and the corresponding range of the translation.

    Args:
        source, target: ranges of characters.
        is_copy: true if both have the same characters.
        source_words, target_words: ranges of word indices.
    """

    source: Span
    target: Span
    is_copy: bool
    source_words: Span
    target_words: Span


@dataclass(frozen=True)
class LineUp:
    """A text and its translation.

    Args:
        source, target: texts of both.
        source_words, target_words: character ranges of their words.
        weights: [T, S], share of each target word that comes from each source word; a row sums
            to at most 1.
        regions: regions from the first character to the last.
    """

    source: str
    target: str
    source_words: tuple[Span, ...]
    target_words: tuple[Span, ...]
    weights: npt.NDArray[np.float64]
    regions: tuple[Region, ...]

    def copied(self, offset: int, *, after: bool) -> int | None:
        """Return the offset in the translation of a copied character; None if it was not copied.

        Args:
            offset: offset in the source.
            after: true for the character after the offset, false for the one before it.
        """
        for region in self.regions:
            start, end = region.source
            inside = start <= offset < end if after else start < offset <= end
            if region.is_copy and inside:
                return region.target[0] + offset - start
        return None


def aligned_words(
    source: str, target: str, alignment: Alignment | None
) -> tuple[list[Span], list[Span], npt.NDArray[np.float64]]:
    """Return the words of a sentence, those of its translation, and weights [T, S] between them.

    Args:
        source, target: texts of both.
        alignment: word alignment; without it words are assumed to keep their order.
    """
    if alignment is not None:
        of_source = _locate(alignment.source_words, source)
        of_target = _locate(alignment.target_words, target)
        if of_source is not None and of_target is not None:
            shape = (len(of_target), len(of_source))
            return of_source, of_target, np.array(alignment.matrix).reshape(shape)
    of_source, of_target = word_spans(source), word_spans(target)
    weights = np.zeros((len(of_target), len(of_source)))
    if of_source:
        for row in range(len(of_target)):  # the diagonal: words at the same relative position
            weights[row, int((row + 0.5) * len(of_source) / len(of_target))] = 1.0
    return of_source, of_target, weights


def _locate(words: Sequence[str], text: str) -> list[Span] | None:
    """Return the ranges of words in a text, or None if they do not all occur in order."""
    spans: list[Span] = []
    done = 0
    for word in words:
        # Searched after the previous word, as a word may occur twice.
        start = text.find(word, done)
        if start < 0:
            return None
        done = start + len(word)
        spans.append((start, done))
    return spans


OF_WORD = r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\uff00-\uffef]"
"""Pattern of a letter or digit of a script with spaces between words."""


def copies_of(texts: set[str], *sides: str) -> tuple[dict[str, list[Span]], ...]:
    """Return the ranges at which each of some texts, or its folded case, stands in others.

    A text inside a longer text or inside a word is no copy: `VERSION` in `lib/VERSION.rb`.
    """
    found: tuple[dict[str, list[Span]], ...] = tuple(defaultdict(list) for _ in sides)
    alternatives = []
    # Longest first, so that a text is not found inside another one.
    for text in sorted(texts, key=len, reverse=True):
        edges = [re.match(OF_WORD, text[0]), re.match(OF_WORD, text[-1])]
        before = rf"(?<!{OF_WORD})(?<!{OF_WORD}[./\\:@])" if edges[0] else ""
        after = rf"(?!{OF_WORD}|[./\\:@]{OF_WORD})" if edges[1] else ""
        alternatives.append(f"{before}{re.escape(text)}{after}")
    if alternatives:
        pattern = re.compile("|".join(alternatives), re.IGNORECASE)
        for ranges, side in zip(found, sides, strict=True):
            for match in pattern.finditer(side):
                # Stored as written and in lower case: a translator that changes capitals still
                # leaves a copy.
                for text in {match[0], match[0].casefold()}:
                    ranges[text].append(match.span())
    return found


Kind = Literal["text", "open", "close", "single", "soft"]


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
        strays: ranges outside of `target` with further words of its copy, which are not written.
    """

    opening: PartT | None
    closing: PartT | None = None
    start: int = 0
    end: int = 0
    children: list[Node[PartT]] = field(default_factory=list)
    target: Span = (0, 0)
    before: str = ""
    after: str = ""
    strays: list[Span] = field(default_factory=list)

    @property
    def kind(self) -> Kind | Literal["pair"]:
        """Kind of the markup."""
        if self.opening is None or self.opening.kind == "open":
            return "pair"
        return self.opening.kind


def markup_tree(parts: Sequence[PartT]) -> list[Node[PartT]]:
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
    while len(stack) > 1:  # tags that nobody closes, as browsers read them
        node = stack.pop()
        node.end = here
        stack[-1].children.append(node)
    return root.children


def descendants(nodes: Iterable[Node[PartT]]) -> list[Node[PartT]]:
    """Return nodes and those inside them, in the order of their beginnings."""
    return [each for node in nodes for each in (node, *descendants(node.children))]
