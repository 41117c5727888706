"""Atoms of a paragraph of runs: texts with their formatting, marks, and tags around texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from heedful.apps.documents.office.paragraph_markup import (
    ParagraphMarkup,
    standard_names,
    visible_look,
)
from heedful.apps.documents.xml_markup import Token, xml_text, xml_tokens
from heedful.errors import DataError

_FIELD = re.compile(r"fldCharType\s*=\s*[\"'](\w+)")
_LINK = re.compile(r"instrText\b[^>]*>\s*HYPERLINK\b")
_LONGEST_FIELD = 1000
"""Maximum number of runs in which the end of a field is searched; some fields never end."""
_DEEPEST = 256
"""Maximum depth of nested elements, as in libxml2."""
_PAGE_BREAK = re.compile(r"type\s*=\s*[\"'](?:page|column)")


@dataclass(frozen=True)
class Look:
    """The formatting of a run.

    Args:
        key: visible properties; equal for runs that look the same.
        run: tags around the run.
        text: tags around the text of the run.
    """

    key: str
    run: tuple[str, str] = ("", "")
    text: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Atom:
    """A part of a paragraph.

    Args:
        kind: `text` in a run; `mark` for an element that stands for a character of a word; `open`
            and `close` for the tags of an element around runs; `single` for everything else.
        tokens: range of the tokens to copy.
        text: text for the translator.
        look: formatting of a text, or of a mark inside a run; None outside of runs.
        inner: atoms of a kept part, such as an address that spans two runs.
    """

    kind: Literal["text", "mark", "open", "close", "single"]
    tokens: tuple[int, int]
    text: str = ""
    look: Look | None = None
    inner: tuple[Atom, ...] = ()

    @property
    def has_letters(self) -> bool:
        """True for text with a letter."""
        return self.kind == "text" and any(map(str.isalpha, self.text))


class XmlTree:
    """The tokens of a document and the extent of its elements.

    Args:
        text: text of the document.
        name: name of the document, for messages.

    Raises:
        DataError: naming the line that is not XML, or when elements are nested too deeply.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.tokens: Sequence[Token] = list(xml_tokens(text, name))
        self.names = list(standard_names(self.tokens))
        # For a start tag, the index of the token after its element; for other tokens, the next
        # index.
        self.after = list(range(1, len(self.tokens) + 1))
        opened: list[int] = []
        for number, token in enumerate(self.tokens):
            if token.kind == "start":
                opened.append(number)
                if len(opened) > _DEEPEST:
                    raise DataError(
                        f"More than {_DEEPEST} elements are nested in each other", where=name
                    )
            elif token.kind == "end":
                self.after[opened.pop()] = number + 1

    def children(self, first: int, last: int) -> Iterator[int]:
        """Yield the first token of each sibling in a range of tokens."""
        while first < last:
            yield first
            first = self.after[first]

    def raw(self, first: int, last: int) -> str:
        """Return the XML of a range of tokens."""
        if first >= last:
            return ""
        return self.text[self.tokens[first].start : self.tokens[last - 1].end]

    def words(self, first: int, last: int) -> str:
        """Return the text of a range of tokens."""
        return "".join(
            part.text
            for token in self.tokens[first:last]
            if token.kind in ("text", "cdata")
            for part in xml_text(self.text, token, folds=False)
        )


class AtomReader:
    """Reads the atoms of a paragraph.

    Args:
        tree: document of the paragraph.
        markup: elements of the paragraph.
        styles: visible properties of each text style, by its name.
    """

    def __init__(self, tree: XmlTree, markup: ParagraphMarkup, styles: dict[str, str]) -> None:
        self.tree = tree
        self.markup = markup
        self.styles = styles
        self.names, self.after = tree.names, tree.after

    def atoms(self, first: int, last: int, look: Look | None = None) -> Iterator[Atom]:
        """Yield the atoms of sibling elements and texts.

        Args:
            first, last: range of tokens.
            look: formatting of the surrounding text, in formats with text directly in paragraphs.
        """
        number = first
        while number < last:
            token, name, after = self.tree.tokens[number], self.names[number], self.after[number]
            if token.kind in ("text", "cdata"):
                if not self.markup.text:
                    text = self._folded(self.tree.words(number, after))
                    yield Atom("text", (number, after), text, look or Look(""))
            elif name == self.markup.run and token.kind == "start":
                if not self.markup.text:
                    yield from self.atoms(number + 1, after - 1, self._span(number, look))
                elif (field := self._field(number, last)) is not None:
                    result, end, after = field
                    if result is not None and end == after:  # the field ends in another paragraph
                        after = result
                        yield Atom("single", (number, after))
                    else:
                        yield from self._field_atoms(number, result, end, after)
                else:
                    yield from self._run(number, after)
            elif name in self.markup.pairs and token.kind == "start":
                yield from self._pair(number, after, look)
            else:
                yield Atom("single", (number, after), self._mark(number, after), look)
            number = after

    def _pair(self, first: int, after: int, look: Look | None) -> Iterator[Atom]:
        inner, last = first + 1, after - 1
        for child in self.tree.children(first + 1, after - 1):
            name = self.names[child]
            if name in self.markup.heads:
                inner = self.after[child]
            elif name and name == self.markup.content:
                inner, last = child + 1, max(child + 1, self.after[child] - 1)
        yield Atom("open", (first, inner))
        yield from self.atoms(inner, last, look)
        yield Atom("close", (last, after))

    def _run(self, first: int, after: int) -> Iterator[Atom]:
        """Yield the atoms of a run; a run without text is kept whole."""
        children = list(self.tree.children(first + 1, after - 1))
        names = {self.names[child] for child in children}
        if names.isdisjoint((self.markup.text, *self.markup.marks, *self.markup.shown)):
            yield Atom("single", (first, after))
            return
        prefix = f"{p}:" if (p := self.tree.tokens[first].prefix) else ""
        run, text = (
            prefix + each.partition(":")[2] for each in (self.markup.run, self.markup.text)
        )
        properties = "".join(
            self.tree.raw(child, self.after[child])
            for child in children
            if self.names[child] == self.markup.properties
        )
        look = Look(
            visible_look(properties),
            (f"<{run}>{properties}", f"</{run}>"),
            (f"<{text}{self.markup.text_attributes}>", f"</{text}>"),
        )
        for child in children:
            name, end = self.names[child], self.after[child]
            if name == self.markup.text:
                yield Atom("text", (child, end), self._folded(self.tree.words(child, end)), look)
            elif name and name != self.markup.properties:
                mark = self._mark(child, end)
                yield Atom("mark" if mark == "-" else "single", (child, end), mark, look)

    def _span(self, number: int, around: Look | None) -> Look:
        """Return the formatting of text in an OpenDocument element and its surrounding elements."""
        style = self.tree.tokens[number].attribute("text:style-name") or ""
        seen = self.styles.get(style, style)
        around = around or Look("")
        if not seen:
            return around
        opening, end = self.tree.raw(number, number + 1), self.after[number]
        closing = self.tree.raw(end - 1, end)
        return Look(f"{around.key}\n{seen}", (around.run[0] + opening, closing + around.run[1]))

    def _folded(self, text: str) -> str:
        if not self.markup.folds:
            return text
        # Word shows every space of a text; OpenDocument shows consecutive spaces as one.
        return re.sub(r"[\r\n\t]" if self.markup.text else r"[ \r\n\t]+", " ", text)

    def _mark(self, first: int, after: int) -> str:
        """Return the text that an element shows, or the character that it stands for."""
        name = self.names[first]
        if name in self.markup.shown:
            return self._shown(first, after)
        mark = self.markup.marks.get(name, "")
        is_page = mark == "\n" and _PAGE_BREAK.search(self.tree.tokens[first].attributes)
        return "\f" if is_page else mark

    def _shown(self, first: int, after: int) -> str:
        """Return the text that a field or an annotated text shows."""
        shown, number = "", first
        while number < after:
            name, end = self.names[number], self.after[number]
            if name in ("w:rt", "text:ruby-text"):  # phonetic text above a word
                number = end
            elif name == self.markup.text:
                shown += self.tree.words(number, end)
                number = end
            else:
                number += 1
        return " ".join(shown.split())

    def _field(self, first: int, last: int) -> tuple[int | None, int, int] | None:
        """Return the indices of a field's result, of its last sibling, and of the token after it.

        The result is None if no field begins in this run; the last sibling is empty if the field
        does not end.
        """
        depth, result, has_begun = 0, None, False
        for child in islice(self.tree.children(first, last), _LONGEST_FIELD):
            end = self.after[child]
            for number in range(child, end):
                token = self.tree.tokens[number]
                if self.names[number] != "w:fldChar" or token.kind == "end":
                    continue
                kind = match[1] if (match := _FIELD.search(token.attributes)) else ""
                depth += (kind == "begin") - (kind == "end")
                has_begun |= kind == "begin"
                if kind == "separate" and depth == 1:
                    result = end
            if depth <= 0:
                return (result, child, end) if has_begun else None
        return result, last, last

    def _field_atoms(self, first: int, result: int | None, end: int, after: int) -> Iterator[Atom]:
        """Yield the atoms of a field: a single atom, unless the field is a link."""
        if (
            result is not None
            and result <= end
            and self.names[end] == "w:r"
            and _LINK.search(self.tree.raw(first, result)) is not None
            and _LINK.search(self.tree.raw(result, end)) is None  # but no nested link
        ):
            yield Atom("open", (first, result))
            yield from self.atoms(result, end)
            yield Atom("close", (end, after))
        else:
            yield Atom("single", (first, after), self._shown(first, after))
