"""Paragraphs of runs in office formats; a run is a text with one formatting.

Neighbouring runs of the same formatting are merged. The formatting of most characters is the
paragraph's own; text in another formatting becomes a pair of tags around the corresponding words of
the translation.

A translated paragraph is first rewritten in a regular form with a separate run for each atom. So
each kept part is a whole run, which may be moved to any place of the paragraph. A paragraph with an
unchanged translation keeps its original bytes.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from heedful.apps.documents.office.paragraph_atoms import Atom, AtomReader, Look, XmlTree
from heedful.apps.documents.office.paragraph_markup import (
    PARAGRAPHS,
    UNREAD,
    ParagraphMarkup,
    visible_look,
)
from heedful.apps.documents.passage import PLACEHOLDERS, Passage, PassagePart, Surroundings
from heedful.apps.documents.xml_markup import Token, encode_xml, xml_text
from heedful.errors import DataError
from heedful.pipelines.aligned_text import Kind

_WRITTEN = re.compile("\1(\\d+)\3(.*?)\2", re.DOTALL)
"""Translated text with the index of its formatting; XML cannot hold these characters."""
_HYPHEN = "\4"
_ESCAPE = re.compile("_x[0-9A-Fa-f]{4}_")
"""Escape of Excel and PowerPoint for a character that XML cannot hold."""
_KEPT = re.compile(f"{PLACEHOLDERS.pattern}|{_ESCAPE.pattern}")
_GLUED = re.compile(r"[0-9A-Za-z\u00c0-\u052f]{2}")  # not for scripts without spaces
_NEAR = 100
"""Number of characters on each side of a mark that are examined."""
_DEEPEST = 16
"""Maximum depth of nested paragraphs, in text boxes and notes."""
_BREAKS = ("\t", "\n", "\f")
_RANGE = re.compile(r"<([\w:-]+?)-?([sS]tart|[eE]nd)\b([^>]*)>")
_IDENTITY = re.compile(r"\btext:(?:name|change-id)=\"[^\"]*\"|\bid=\"[^\"]*\"")


def read_runs(
    text: str, name: str, untranslated: Collection[str] = ()
) -> tuple[str, list[Passage]]:
    """Return a document with its paragraphs in the regular form, and a passage for each.

    Args:
        text: text of a document of XML.
        name: name of the document, for messages.
        untranslated: texts of paragraphs that are not translated.

    Raises:
        DataError: naming the line that is not XML, or when elements are nested too deeply.
    """
    reading = _Reading(XmlTree(text, name), untranslated)
    reading.copy(0, len(reading.tree.tokens))
    assert "".join(reading.unchanged) == text, "untranslated paragraphs keep their bytes"
    return "".join(reading.written), reading.passages


class _Reading:
    """Finds the paragraphs of a document and writes them in the regular form.

    Args:
        tree: the document.
        untranslated: texts of paragraphs that are not translated.
    """

    def __init__(self, tree: XmlTree, untranslated: Collection[str]) -> None:
        self.tree = tree
        self.untranslated = untranslated
        self.kinds = dict(self._paragraphs())
        self.starts = sorted(self.kinds)
        self.styles = dict(self._styles())
        self.written: list[str] = []
        self.unchanged: list[str] = []  # the same document, with the original bytes of paragraphs
        self.length = self.depth = 0
        self.passages: list[Passage] = []

    def copy(self, first: int, last: int) -> None:
        """Write tokens as they are, except for the paragraphs among them."""
        done = first
        number = bisect_left(self.starts, first)
        while number < len(self.starts) and self.starts[number] < last:
            start = self.starts[number]
            end = self.tree.after[start] - 1
            self.write(self.tree.raw(done, start + 1))
            self._paragraph(start + 1, end, self.kinds[start])
            done = end
            number = bisect_left(self.starts, end)
        self.write(self.tree.raw(done, last))

    def write(self, xml: str) -> None:
        """Write XML."""
        self.written.append(xml)
        self.unchanged.append(xml)
        self.length += len(xml)

    def _paragraphs(self) -> Iterator[tuple[int, ParagraphMarkup]]:
        """Yield the start and the markup of each paragraph."""
        parents, unread = [""], 0
        for number, token in enumerate(self.tree.tokens):
            name = self.tree.names[number]
            if token.kind == "start":
                # The text of a cell with a formula is the formula's result.
                if name in UNREAD or "table:formula=" in token.attributes:
                    unread = max(unread, self.tree.after[number])
                markup = PARAGRAPHS.get(f"{parents[-1]}/{name}") or PARAGRAPHS.get(name)
                if markup is not None and number >= unread:
                    yield number, markup
                parents.append(name)
            elif token.kind == "end":
                parents.pop()

    def _styles(self) -> Iterator[tuple[str, str]]:
        """Yield the styles of an OpenDocument with their visible properties.

        Writer creates a style for each editing session, which looks like the surrounding text.
        """
        for number, name in enumerate(self.tree.names):
            token = self.tree.tokens[number]
            if name == "style:style" and token.kind == "start":
                inner = self.tree.raw(number + 1, self.tree.after[number] - 1).strip()
                parent = token.attribute("style:parent-style-name") or ""
                yield token.attribute("style:name") or "", parent + visible_look(inner)

    def _paragraph(self, first: int, last: int, markup: ParagraphMarkup) -> None:
        """Write the content of a paragraph, and add a passage if it has words."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise DataError(
                f"More than {_DEEPEST} paragraphs are nested in each other", where=self.tree.name
            )
        self._content(first, last, markup)
        self.depth -= 1

    def _content(self, first: int, last: int, markup: ParagraphMarkup) -> None:
        start, end = self._without_edges(first, last, markup)
        atoms = _kept(AtomReader(self.tree, markup, self.styles).atoms(start, end))
        words = "".join(atom.text for atom in atoms)
        if not any(atom.has_letters for atom in atoms) or words in self.untranslated:
            self.copy(first, last)
            return
        self.copy(first, start)
        before, offset = len(self.unchanged), self.length
        runs = _RunWriter(self, markup)
        runs.write(list(_settled(atoms)))
        original = self.tree.raw(start, end)
        unchanged = "".join(self.unchanged[before:])
        self.unchanged[before:] = [original]

        def wrap(written: str) -> str:
            return original if written == unchanged else runs.finish(written)

        self.passages.append(
            Passage(offset, self.length, tuple(runs.parts), runs.encode, wrap, copies=False)
        )
        self.copy(end, last)

    def _without_edges(self, first: int, last: int, markup: ParagraphMarkup) -> tuple[int, int]:
        """Return the range of a paragraph's runs, without elements that stay at its ends."""

        def is_edge(number: int) -> bool:
            is_space = markup.text and not self.tree.raw(number, number + 1).strip()
            return bool(is_space) or self.tree.names[number] in markup.edges

        while first < last and is_edge(first):
            first = self.tree.after[first]
        children = list(self.tree.children(first, last))
        while children and is_edge(children[-1]):
            last = children.pop()
        return first, last


def _kept(atoms: Iterable[Atom]) -> list[Atom]:
    """Return the atoms, with each address and placeholder as one kept atom."""
    result: list[Atom] = []
    stretch: list[Atom] = []
    for atom in atoms:
        if atom.kind in ("text", "mark") or (not atom.text and atom.kind == "single"):
            stretch.append(atom)
        else:  # an address ends at a break and at the edge of a link
            result += [*_kept_stretch(stretch), atom]
            stretch = []
    return [*result, *_kept_stretch(stretch)]


def _kept_stretch(atoms: Sequence[Atom]) -> Iterator[Atom]:
    text = "".join(atom.text for atom in atoms)
    spans = [match.span() for match in _KEPT.finditer(text)]
    edges = sorted({edge for span in spans for edge in span})
    inner: list[Atom] = []
    here = 0
    for atom in atoms:
        after = here + len(atom.text)
        cuts = [here, *(edge for edge in edges if here < edge < after), after]
        for start, end in itertools.pairwise(cuts):
            piece = replace(atom, text=text[start:end])
            span = next((s for s in spans if s[0] <= start and end <= s[1]), None)
            if span is None or (start == end and start in span):
                yield piece
                continue
            inner.append(piece)
            if end == span[1]:
                shown = text[slice(*span)]
                shown = "" if _ESCAPE.fullmatch(shown) else shown
                yield Atom("single", atom.tokens, shown, inner=tuple(inner))
                inner = []
        here = after


def _settled(atoms: Sequence[Atom]) -> Iterator[Atom]:
    """Yield the atoms, with the text that the translator reads in place of marks.

    A mark before the first word or after the last word becomes a separate line, so that it stays
    there.
    """
    lettered = [number for number, atom in enumerate(atoms) if atom.has_letters]
    line = "".join("\n" if atom.text in _BREAKS else atom.text for atom in atoms)
    depth = here = 0
    for number, atom in enumerate(atoms):
        depth += (atom.kind == "open") - (atom.kind == "close")
        after = here + (1 if atom.text in _BREAKS else len(atom.text))
        if atom.kind == "single" and not atom.inner:
            text = _character(atom.text, line, here, after) if atom.text else ""
            if not text and not depth and not lettered[0] < number < lettered[-1]:
                text = "\n"
            yield replace(atom, text=text)
        else:
            yield atom
        here = after


def _character(mark: str, text: str, start: int, end: int) -> str:
    """Return the text that the translator reads for an element: a space, a line break, or words.

    Args:
        mark: tab, line break, page break (form feed), space or the text that is shown.
        text: text of the paragraph, with line breaks for marks that may end a line.
        start, end: range of the mark in the text.
    """
    left = text[max(start - _NEAR, 0) : start].rpartition("\n")[2]
    right = text[end : end + _NEAR].partition("\n")[0]
    if mark in _BREAKS:
        runs_on = mark != "\f" and re.search(r"(?:[^\W\d_]|,)\s*$", left) is not None
        runs_on = runs_on and right.lstrip()[:1].islower()
        # Tabs also separate columns: only a complete sentence may continue after one.
        last = text[end:].partition("\n")[0].rstrip()[-1:] if runs_on and mark == "\t" else "."
        if not runs_on or last not in {*".!?…"}:
            return "\n"
    elif mark != " ":  # a part of a word could not be separated from the rest
        is_glued = _GLUED.search(left[-1:] + mark[:1]) or _GLUED.search(mark[-1:] + right[:1])
        return "" if is_glued else mark
    is_between = left.strip() and right.strip() and not (left[-1] + right[0]).count(" ")
    return " " if is_between else ""


class _RunWriter:
    """Writes a paragraph in the regular form, and its translation.

    Args:
        reading: document of the paragraph.
        markup: elements of the paragraph.
    """

    def __init__(self, reading: _Reading, markup: ParagraphMarkup) -> None:
        self.reading = reading
        self.markup = markup
        self.parts: list[PassagePart] = []
        self.looks: list[Look] = []
        self.own = self.opened = 0  # formatting of the paragraph, and of the current container
        self.last_text = 0  # number of parts up to the last text
        self.containers: dict[PassagePart | None, int] = {}
        self.joined: set[str] = set()  # marks that replace a space
        self.hyphen = ""
        self.hyphenated: set[str] | None = set()  # letters around hyphen marks; None for any

    def write(self, atoms: Sequence[Atom]) -> None:
        """Write the atoms of the paragraph, and note the parts of its passage."""
        sizes = Counter[str]()
        looks: dict[str, Look] = {}
        for atom in atoms:
            if atom.kind == "text" and atom.look is not None:
                looks.setdefault(atom.look.key, atom.look)
                sizes[atom.look.key] += len(atom.text)
        self.looks = list(looks.values())
        keys = list(looks)
        self.own = self.opened = keys.index(max(keys, key=sizes.__getitem__))
        self._note_hyphens(atoms)
        for atom in atoms:
            if atom.kind == "text" and atom.look is not None:
                self._open(keys.index(atom.look.key))
                self._text(atom)
                self.last_text = len(self.parts)
            else:
                self._other(atom)
        self._open(self.own)

    def encode(self, words: str, place: Surroundings) -> str:
        """Write translated text between control characters, with the index of its formatting."""
        look = self.containers.get(place.parent, self.own)
        if self.markup.folds:
            words = words.replace("\n", "")  # a line break stands for a mark
        xml = encode_xml(words, place)
        if self.hyphen:
            xml = re.sub("-", self._hyphen, xml)
        return f"\1{look}\3{xml}\2"

    def finish(self, written: str) -> str:
        """Return the translation with its texts in runs."""
        first, *more = _WRITTEN.split(written)
        pieces = [(-1, first)]
        for number, text, raw in zip(more[::3], more[1::3], more[2::3], strict=True):
            for look, piece in ((int(number), text), (-1, raw)):
                if piece and look == pieces[-1][0]:
                    pieces[-1] = look, pieces[-1][1] + piece
                elif piece:
                    pieces.append((look, piece))
        for number, (look, piece) in enumerate(pieces):
            if look < 0 and piece in self.joined:  # the translation has a space, too
                ahead = pieces[number - 1][1].removesuffix(" ")
                is_ahead = len(ahead) < len(pieces[number - 1][1])
                pieces[number - 1] = pieces[number - 1][0], ahead
                if not is_ahead and number + 1 < len(pieces):
                    after = pieces[number + 1]
                    pieces[number + 1] = after[0], after[1].removeprefix(" ")
        return _in_order("".join(p if look < 0 else self._run(look, p) for look, p in pieces))

    def _run(self, number: int, text: str) -> str:
        look = self.looks[number]
        text = text.replace(_HYPHEN, look.text[1] + self.hyphen + look.text[0])
        return look.run[0] + look.text[0] + text + look.text[1] + look.run[1]

    def _note_hyphens(self, atoms: Sequence[Atom]) -> None:
        text, here = "".join(atom.text for atom in atoms), 0
        around = set[str]()
        for atom in atoms:
            if atom.kind == "mark":
                self.hyphen = self.reading.tree.raw(*atom.tokens)
                around.add((text[max(here - 1, 0) : here] + text[here + 1 : here + 2]).casefold())
            here += len(atom.text)
        has_others = any("-" in atom.text for atom in atoms if atom.kind == "text")
        self.hyphenated = around if has_others else None

    def _hyphen(self, match: re.Match[str]) -> str:
        start, end = match.span()
        around = match.string[max(start - 1, 0) : start] + match.string[end : end + 1]
        is_mark = self.hyphenated is None or around.casefold() in self.hyphenated
        return _HYPHEN if is_mark else "-"

    def _open(self, look: int) -> None:
        """Begin text with a formatting; end a container of another formatting."""
        if look == self.opened:
            return
        if self.opened != self.own:
            end = self.parts[self.last_text - 1].end
            self.parts.insert(self.last_text, PassagePart(end, end, "close"))
        if look != self.own:
            start = self.reading.length
            part = PassagePart(start, start, "open", is_container=True)
            self.parts.append(part)
            self.containers[part] = look
        self.opened = look

    def _text(self, atom: Atom) -> None:
        assert atom.look is not None, "text has a look"
        start = self.reading.length + len(atom.look.run[0] + atom.look.text[0])
        self._piece(atom)
        xml = _escaped(atom.text)
        for part in xml_text(xml, Token("text", "", 0, len(xml)), folds=False):
            self.parts.append(replace(part, start=start + part.start, end=start + part.end))

    def _other(self, atom: Atom) -> None:
        if atom.kind in ("open", "close"):
            self._open(self.own)
        start, first = self.reading.length, len(self.reading.written)
        for piece in atom.inner or (atom,):
            self._piece(piece)
        kind: Kind = "text" if atom.kind == "mark" else atom.kind
        self.parts.append(PassagePart(start, self.reading.length, kind, atom.text))
        if atom.text == " ":
            self.joined.add("".join(self.reading.written[first:]))

    def _piece(self, atom: Atom) -> None:
        """Write an atom, in a separate run if it comes from a run."""
        look = atom.look or Look("")
        self.reading.write(look.run[0])
        if atom.kind == "text":
            self.reading.write(look.text[0] + _escaped(atom.text) + look.text[1])
        else:
            self.reading.copy(*atom.tokens)
        self.reading.write(look.run[1])


def _escaped(text: str) -> str:
    return encode_xml(text, Surroundings(None, False))


def _in_order(xml: str) -> str:
    """Return a paragraph in which no range, such as a bookmark, ends before it starts."""
    ends: dict[tuple[str, str], tuple[int, int]] = {}
    started: set[tuple[str, str]] = set()
    for match in _RANGE.finditer(xml):
        identity = _IDENTITY.search(match[3])
        if identity is None or not match[3].endswith("/"):
            continue
        key = match[1], identity[0]
        if match[2].lower() == "start":
            if key in ends:
                first, last = ends[key]
                between = xml[last : match.start()]
                swapped = match[0] + between + xml[first:last]
                return _in_order(xml[:first] + swapped + xml[match.end() :])
            started.add(key)
        elif key not in started:
            ends.setdefault(key, match.span())
    return xml
