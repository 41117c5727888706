"""Strings of programs: texts with tags, entities and placeholders, or ICU messages.

Catalogues, XLIFF, JSON and other formats of strings differ only in their escapes. The markup inside
a string is found here, in its decoded characters, and is treated the same in every format.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html.entities import html5

from heedful.apps.documents.icu_message import (
    MessageError,
    MessageItem,
    MessageText,
    encode_message,
    read_message,
)
from heedful.apps.documents.passage import (
    PLACEHOLDERS,
    Encode,
    Passage,
    PassagePart,
    Surroundings,
    cut,
    make_passage,
    plain,
)
from heedful.pipelines.aligned_text import Kind, Span
from heedful.text.protected_spans import span_pattern

_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article blockquote br center dd details div dl dt figure footer h1 h2 h3 h4 h5 h6 "
        "header hr li main nav ol p pre section table tbody td th thead tr ul",
    )
)
"""Names of tags that end a sentence."""
_INLINE = frozenset(
    re.findall(
        r"\w+",
        "a abbr b bdi bdo big cite col del dfn em font i img input ins label link mark meta q s "
        "small span strike strong sub sup u wbr",
    )
)
"""Other tags of HTML and Pango, which a translator does not read; it reads unknown tags like
<file>."""
_VERBATIM = frozenset(("code", "kbd", "samp", "script", "style", "tt", "var"))
"""Elements whose content is not translated."""

_KEPT = span_pattern(["urls", "emails", "markup", "code", "placeholders"])
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z\d]*|\#\d{1,7}|\#[xX][\da-fA-F]{1,6});")
# Plural forms of Vue and Laravel ("one apple | {n} apples"), with their optional numbers.
_NUMBERS = r"\{-?\d+(?:,-?\d+)*\}|[\[\]](?:-?\d+|\*|-?Inf),\s*(?:-?\d+|\*|Inf)[\[\]]"
_SCAN = (
    rf"(?P<first>\A(?:{_NUMBERS})(?=[^|]*\|))"
    r"|<(?P<slash>/)?(?P<name>[A-Za-z][\w:.-]*|\d+)"
    # A tag with attributes contains an equals sign or a placeholder: "a <b or c> d" has no tag.
    r"(?P<attributes>\s(?=[^<>]*[={%$])(?:\"[^\"]*\"|'[^']*'|[^<>\"'])*?)?\s*(?P<single>/)?>"
    r"|(?P<comment><!--.*?-->)|<%.{0,200}?%>"
    rf"|(?P<entity>{_ENTITY.pattern})"
    # Links of Markdown.
    r"|(?P<opens_link>\[)(?=[^\[\]\n]+\]\([^()\s]+\))|(?P<ends_link>\]\([^()\s]+\))"
    rf"|{_KEPT}"
    # BBCode, but not [X7X].
    r"|\[(?P<bb_slash>/)?(?P<bb_name>[A-Za-z]\w*)(?:=[^\[\]\n]*)?\]"
    # In a string of a program %s is a placeholder even where letters follow: "%sHelp%s", and %d
    # where a unit follows: "%dMB".
    r"|(?<!%)%\d+\$[-+#0]*\d*(?:\.\d+)?(?:ll?|hh?)?[a-zA-Z@]"
    r"|(?<![%\d])%(?:[s@]|(?:ll?|hh?)?[diu](?!(?!min|sec)[A-Za-z]{3}))"
    rf"|(?P<separator>[\n\r]+|\|(?:\s*(?:{_NUMBERS}))?)"
)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A part of a string that is not plain text.

    Args:
        start, end: range of its characters in the string.
        kind: kind of the corresponding passage part; None for a mark that ends the passage.
        text: text for the translator.
        name: name of a tag, the same for both tags of a pair.
    """

    start: int
    end: int
    kind: Kind | None
    text: str = ""
    name: str = ""


def string_passages(
    parts: Iterable[PassagePart], encode: Encode, *, kept: str = ""
) -> Iterator[Passage]:
    """Yield the passages of a string: its lines, and each branch of a plural or select.

    A string with a plural or select that cannot be read yields a passage that is left out.

    Args:
        parts: parts of the whole string with decoded escapes; some may be markup of the format.
        encode: function that writes translated text with the escapes of the format.
        kept: pattern, without named groups, of further text that is never translated.
    """
    string = tuple(parts)
    text = "".join(
        part.text if part.kind in ("text", "soft") else "\ufffc" * len(part.text) for part in string
    )
    try:
        message = read_message(text)
    except MessageError as error:
        reason = f"no ICU message: {error}"
        yield Passage(string[0].start, string[-1].end, string, encode, left_out=reason)
        return
    scan = re.compile(f"(?P<more>{kept})|{_SCAN}" if kept else _SCAN, re.DOTALL)
    if message is None:
        yield from _String(string, text, encode, scan, _apart).passages(
            MessageText(0, len(text), ())
        )
        return

    def encode_both(text: str, place: Surroundings) -> str:
        return encode(encode_message(text, place), place)

    yield from _String(string, text, encode_both, scan, None).passages(message)


def copied_string(
    place: Span,
    source: Span,
    passages: Iterable[Passage],
    before: str = "",
    after: str = "",
    *,
    wrap: Callable[[str], str] | None = None,
) -> Passage:
    """Return a passage that writes a translated string beside its source.

    Args:
        place: range of the document that the translation replaces.
        source: range of the source.
        passages: passages in the source.
        before, after: text to write before and after the translated string.
        wrap: function from the translated string to the text to write, in place of `before` and
            `after`.
    """
    whole = PassagePart(*source, "single")
    wrap = wrap or (lambda content: before + content + after)
    return Passage(*place, (whole,), plain, wrap, inner=tuple(passages))


def written_mark(place: Span, mark: str) -> Passage:
    """Return a passage without text, which replaces a range of the document by a mark."""
    # The part lies outside of the range: otherwise the writer would copy the passage.
    nothing = PassagePart(place[1] + 1, place[1] + 1, "single")
    return Passage(*place, (nothing,), plain, lambda _: mark)


@dataclass(frozen=True)
class _String:
    """A string to divide into passages.

    Args:
        parts: parts of the string.
        text: decoded text of the string, with U+FFFC for markup of the format.
        encode: function that writes translated text.
        scan: pattern of marks.
        wrap: function that adapts a written passage with braces; None if none is needed.
    """

    parts: Sequence[PassagePart]
    text: str
    encode: Encode
    scan: re.Pattern[str]
    wrap: Callable[[str], str] | None

    def passages(self, within: MessageText) -> Iterator[Passage]:
        """Yield the passages of a text of the string and of its branches."""
        piece: list[PassagePart] = []
        done = within.start
        branches: list[MessageText] = []
        for mark, part in self._marks(within):
            piece += self._between(done, mark.start)
            done = mark.end
            branches += part.branches if part is not None else ()
            if mark.kind is None:
                yield from self._passage(piece)
                piece = []
            else:
                piece.append(self._part(mark, mark.kind))
        yield from self._passage([*piece, *self._between(done, within.end)])
        for branch in branches:
            yield from self.passages(branch)

    def _passage(self, parts: Sequence[PassagePart]) -> Iterator[Passage]:
        for passage in make_passage(parts, self.encode, kept=PLACEHOLDERS):
            has_braces = any(part.text.startswith("{") for part in passage.parts)
            is_quoted = "'{" in passage.text
            yield replace(passage, wrap=self.wrap) if has_braces and not is_quoted else passage

    def _between(self, start: int, end: int) -> list[PassagePart]:
        """Return the parts between two marks, with the markup at both ends."""
        return [part for part in cut(self.parts, start, end) if start < end or part.kind != "text"]

    def _part(self, mark: _Mark, kind: Kind) -> PassagePart:
        inner = [part for part in cut(self.parts, mark.start, mark.end) if part.text]
        # A line break ends a sentence, and no sentence ends inside of a markup part.
        shown = re.sub(r"\s+", " ", mark.text)
        return PassagePart(inner[0].start, inner[-1].end, kind, shown)

    def _marks(self, within: MessageText) -> Iterator[tuple[_Mark, MessageItem | None]]:
        """Yield the marks of a text in order, each with its message part or None."""
        found: list[_Mark] = []
        done = within.start
        for part in within.parts:
            if part.branches:  # no mark crosses the border of a plural or select
                found += self._scan(done, part.start)
                done = part.end
        found = _paired([*found, *self._scan(done, within.end)], self.text)
        parts = [
            part
            for part in within.parts
            # Message parts inside a tag (<a href="{url}">) belong to the tag.
            if not any(mark.start <= part.start and part.end <= mark.end for mark in found)
        ]
        own = [
            mark
            for mark in found
            if all(mark.end <= part.start or part.end <= mark.start for part in parts)
        ]
        pairs = [(mark, None) for mark in own] + [(self._mark(part), part) for part in parts]
        yield from sorted(pairs, key=lambda pair: pair[0].start)

    def _mark(self, part: MessageItem) -> _Mark:
        if part.kind == "apostrophe":
            return _Mark(part.start, part.end, "text", "'")
        return _Mark(part.start, part.end, "single", self._shown(part))

    def _shown(self, part: MessageItem) -> str:
        """Return the text that a message part shows; a plural shows its last branch."""
        if not part.branches:
            return self.text[part.start : part.end]
        branch = part.branches[-1]
        shown, done = "", branch.start
        for inner in branch.parts:
            shown += self.text[done : inner.start] + self._shown(inner)
            done = inner.end
        bare = re.sub(r"<[^<>]*>|\ufffc", "", shown + self.text[done : branch.end])
        return " ".join(html.unescape(bare).split())

    def _scan(self, start: int, end: int) -> Iterator[_Mark]:
        for match in self.scan.finditer(self.text, start, end):
            if (mark := _mark_of(match)) is not None:
                yield mark


def _mark_of(match: re.Match[str]) -> _Mark | None:
    """Return the mark that a match of the scan is, or None for plain text."""
    start, end = match.span()
    raw = match[0]
    if (name := match["name"]) is not None:
        if name.lower() in _BLOCKS:
            return _Mark(start, end, None)
        kind: Kind = "single" if match["single"] else "close" if match["slash"] else "open"
        return _Mark(start, end, kind, "", name)
    if match["entity"] is not None:
        character = html.unescape(raw)
        if not _is_entity(raw):
            return None
        if character.isspace():
            return _Mark(start, end, "soft", " ")
        # If the string also has a bare &, a translation may write & without an entity.
        bare = _ENTITY.sub(lambda m: "" if _is_entity(m[0]) else m[0], match.string)
        is_mixed = character == "&" and "&" in bare
        return _Mark(start, end, "single" if is_mixed else "text", character)
    if (name := match["bb_name"]) is not None:
        return _Mark(start, end, "close" if match["bb_slash"] else "open", name=f"[{name}")
    if match["opens_link"] or match["ends_link"]:
        return _Mark(start, end, "open" if match["opens_link"] else "close", name="](")
    if match["first"] or match["separator"]:
        return _Mark(start, end, None)
    return _Mark(start, end, "single", "" if match["comment"] else raw)


def _is_entity(raw: str) -> bool:
    return raw[1] == "#" or raw[1:] in html5


def _paired(marks: Sequence[_Mark], text: str) -> list[_Mark]:
    """Return marks in which each opening tag has a partner and no pairs cross.

    A tag without a partner becomes a single part; brackets without a partner become text.
    """
    partners: dict[int, int] = {}
    stack: list[int] = []
    for number, mark in enumerate(marks):
        if mark.kind == "open":
            stack.append(number)
        elif mark.kind == "close":
            depth = next(
                (d for d in reversed(range(len(stack))) if marks[stack[d]].name == mark.name), None
            )
            if depth is not None:
                partners |= {stack[depth]: number, number: stack[depth]}
                del stack[depth:]
    result: list[_Mark] = []
    kept_to = 0
    for number, mark in enumerate(marks):
        if mark.start < kept_to:
            continue
        if mark.kind not in ("open", "close") or number in partners:
            if mark.kind == "open" and _is_verbatim(mark, text):
                closing = marks[partners[number]]
                shown = " ".join(text[mark.end : closing.start].split())
                # A translator might write only a part of code with escaped tags, which could then
                # be a tag.
                shown = "" if re.search(r"[<>&]", shown) else shown
                mark = _Mark(mark.start, closing.end, "single", shown)
                kept_to = closing.end
            result.append(mark)
        elif mark.name[0] not in "[]":
            # An unpaired <file> is a word of the sentence; an unpaired <b> is not.
            is_word = mark.kind == "open" and mark.name not in _INLINE and not mark.name.isdigit()
            shown = text[mark.start : mark.end] if is_word else ""
            result.append(replace(mark, kind="single", text=shown))
    return result


def _is_verbatim(mark: _Mark, text: str) -> bool:
    tag = text[mark.start : mark.end]
    return (
        mark.name in _VERBATIM or re.search(r"\stranslate=[\"']?no\b|notranslate", tag) is not None
    )


def _apart(written: str) -> str:
    """Change an apostrophe before a brace, so that it cannot quote the brace in an ICU message."""
    return re.sub(r"(?<=\w)\\?'(?=\{\s*\w)", "’", written)
