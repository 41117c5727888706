"""Writer of translated passages: text is encoded, and markup is copied to its new places."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from heedful.apps.documents.passage import LeftOut, Passage, PassagePart, Surroundings
from heedful.pipelines.aligned_text import LineUp, Node, Span, descendants
from heedful.pipelines.placement import placed_markup

_PIECE = re.compile(r"\S*[{}<>$%@\\]\S*")
"""Piece of code or of a placeholder, but no word, which a translation may have elsewhere, too."""


def write_passage(passage: Passage, lined: LineUp, copy: Callable[[int, int], str]) -> str:
    """Write a translated passage.

    Args:
        passage: passage with its markup.
        lined: alignment of the text of the passage and the translation.
        copy: function that writes a range of the document.
    """
    nodes = placed_markup(passage.parts, lined)
    _refuse_torn_parts(passage, lined, nodes)
    return _Writer(passage, lined, copy).write(nodes)


def _refuse_torn_parts(passage: Passage, lined: LineUp, nodes: Sequence[Node[PassagePart]]) -> None:
    """Refuse a translation in which pieces of a kept part stand beside the whole part.

    Raises:
        LeftOut: when there is such a piece.
    """
    singles = [part for part in passage.parts if part.kind == "single" and part.text]
    if not singles:
        return
    rest, done = "", 0
    single = [node for node in descendants(nodes) if node.kind == "single"]
    for start, end in sorted(span for node in single for span in (node.target, *node.strays)):
        if start >= done:
            rest, done = f"{rest}{lined.target[done:start]}\n", end
    rest += lined.target[done:]
    words = "\n".join(part.text for part in passage.parts if part.kind == "text")
    for part in singles:
        for piece in _PIECE.findall(part.text):
            if rest.count(piece) > words.count(piece):
                raise LeftOut(f"{piece} would be there twice")


class _Writer:
    """Writes text and markup in the order of the translation."""

    def __init__(self, passage: Passage, lined: LineUp, copy: Callable[[int, int], str]) -> None:
        self.passage = passage
        self.lined = lined
        self.copy = copy
        self.at_line_start = True
        self.strays: list[Span] = []
        # A character that is escaped in an unusual way in the source is escaped the same way again;
        # a backslash is written only where the format requires it.
        self.spelled = {
            part.text: (part.start, part.end)
            for part in passage.parts
            if part.kind == "text" and len(part.text) == 1 < part.end - part.start
            if passage.copies and not part.text.isalnum()
            if copy(part.start, part.end) != "\\" + part.text
        }

    def write(self, nodes: Sequence[Node[PassagePart]]) -> str:
        self.strays = sorted(span for node in descendants(nodes) for span in node.strays)
        return self._nodes(nodes, (0, len(self.lined.target)), None)

    def _nodes(
        self, nodes: Sequence[Node[PassagePart]], within: Span, parent: PassagePart | None
    ) -> str:
        written, done = "", within[0]
        order = sorted(range(len(nodes)), key=lambda number: (nodes[number].target, number))
        for number in order:
            node = nodes[number]
            if node.target[0] < 0:
                continue  # a sentence of one word has no space for its line break
            written += self._text((done, node.target[0]), parent)
            written += self._node(node, parent)
            done = node.target[1]
        return written + self._text((done, within[1]), parent)

    def _node(self, node: Node[PassagePart], parent: PassagePart | None) -> str:
        opening, closing = node.opening, node.closing
        if node.kind == "pair":
            start = "" if opening is None else self.copy(opening.start, opening.end)
            inside = self._nodes(node.children, node.target, opening or parent)
            return start + inside + self._closing(opening, closing, inside)
        assert opening is not None
        raw = self.copy(opening.start, opening.end)
        self.at_line_start = node.kind == "soft"
        before, after = (
            self.passage.encode(space, Surroundings(parent, False)) if space else ""
            for space in (node.before, node.after)
        )
        return before + raw + after

    def _closing(
        self, opening: PassagePart | None, closing: PassagePart | None, inside: str
    ) -> str:
        """Return the closing tag of a pair around some words."""
        if closing is None:
            return ""
        if opening is not None and closing.instead:
            same = inside == self.copy(opening.end, closing.start)
            return self.copy(closing.start, closing.end) if same else closing.instead
        return self.copy(closing.start, closing.end)

    def _text(self, span: Span, parent: PassagePart | None) -> str:
        pieces, done = [], span[0]
        for start, end in self.strays:
            if start < span[1] and done < end:
                # The space before it goes, or else the one after it.
                before = self.lined.target[done : max(done, start)]
                pieces.append((done, done + len(before.rstrip(" "))))
                after = self.lined.target[end : span[1]]
                is_glued = before == before.rstrip(" ")
                done = min(end + is_glued * (len(after) - len(after.lstrip(" "))), span[1])
        written = ""
        for first, last in (*pieces, (done, span[1])):
            for region in self.lined.regions:
                start, end = max(first, region.target[0]), min(last, region.target[1])
                if start >= end:
                    continue
                place = Surroundings(parent, self.at_line_start)
                if region.is_copy and self.passage.copies:
                    shift = region.source[0] - region.target[0]
                    written += self._copied((start + shift, end + shift), place)
                else:
                    written += self._encoded(self.lined.target[start:end], place)
                self.at_line_start = False
        return written

    def _encoded(self, text: str, place: Surroundings) -> str:
        """Write new text."""
        written, done = "", 0
        for number, character in enumerate(text):
            if character in self.spelled:
                written += self.passage.encode(text[done:number], place) if done < number else ""
                written += self.copy(*self.spelled[character])
                done, place = number + 1, Surroundings(place.parent, False)
        return written + (self.passage.encode(text[done:], place) if done < len(text) else "")

    def _copied(self, span: Span, place: Surroundings) -> str:
        """Write text of the passage unchanged."""
        written, here = "", 0
        for part in self.passage.parts:
            after = here + len(part.text)
            start, end = max(span[0], here), min(span[1], after)
            if start < end:
                text = part.text[start - here : end - here]
                if part.kind != "text":
                    written += self.passage.encode(text, place)
                elif part.end - part.start == len(part.text):
                    first = part.start + start - here
                    written += self.copy(first, first + len(text))
                else:
                    written += self.copy(part.start, part.end)
            here = after
        return written
