"""Markup of a text as a tree: pairs of tags, and what stands by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from heedful.pipelines.aligned_text import Span

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
