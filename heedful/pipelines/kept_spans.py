"""Parts of plain text that stay, with models that were not trained to keep them.

An address or a placeholder spoils the sentence around it for most models. So a model reads a name
in place of each part that stands for words, and nothing in place of tags and signs. All of them are
written into the translation again, where their names are or where the word alignment shows. Where a
name is lost or doubled, the sentence is read once more without names.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.pipelines.aligned_text import (
    Kind,
    LineUp,
    Node,
    Region,
    Span,
    aligned_words,
    copies_of,
)
from heedful.pipelines.placement import placed_markup
from heedful.pipelines.text_splitting import (
    CutText,
    Segment,
    SegmentResult,
    Warn,
    is_readable,
    one_line,
)
from heedful.search.alignment import Alignment
from heedful.search.search_settings import Hypothesis
from heedful.text.pretokenization import is_of_word, word_spans
from heedful.text.protected_spans import RESERVED_CLASS, KeptKinds, Protection, is_wordless
from heedful.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from heedful.text.tokenizer_pair import TokenizerPair

NAMES = ("Tom", "Boston", "Bill", "Paris", "Ken", "Berlin", "Bob", "London", "Jim", "Rome")
"""Names to read: common ones, which languages in Latin letters write alike."""

_TAG = re.compile(r"<(?P<end>/?)(?P<name>[\w:.-]+)[^<>]*?(?P<alone>/?)>")
# Signs that have no space after them, and signs that have none before them.
_OPENING, _CLOSING = "([{«„“‘¿¡", ".,;:!?…)]}»“”’"
# Elements of HTML without content, which no tag closes.
_ALONE = frozenset(("br", "hr", "img", "input", "wbr"))


@dataclass(frozen=True, eq=False)
class _Part:
    """A part of a sentence.

    Args:
        kind: kind of the part, see `MarkedPart`.
        text: text that the model reads.
        start, end: range of its characters in the sentence.
    """

    kind: Kind
    text: str
    start: int
    end: int


class KeptText:
    """A sentence as a model reads it, without the parts that stay.

    Args:
        marked: sentence with a reserved character for each part.
        kept: the parts.
        names: names to read in place of parts that stand for words, if there are enough.
        kinds: kinds of the parts.
    """

    def __init__(
        self, marked: str, kept: Sequence[str], names: Sequence[str], kinds: KeptKinds
    ) -> None:
        self.kinds = kinds
        self.kept = Counter(kept)
        self._marked, self._kept = marked, kept
        pieces = re.split(RESERVED_CLASS, marked)
        self.sentence = "".join(a + b for a, b in zip(pieces, [*kept, ""], strict=True))
        # A name that is in the sentence already could not be told from it.
        unused = [name for name in names if name.casefold() not in self.sentence.casefold()]
        wordy = sum(not is_wordless(part) for part in kept)
        # With names for some parts only, a translator would change the order of the words.
        self.names = tuple(unused[:wordy]) if wordy <= len(unused) else ()
        self.parts = _with_space(self._read(_split(pieces, kept)))
        self.text = "".join(part.text for part in self.parts)

    def without_names(self) -> KeptText:
        """Return the sentence read with nothing in place of its parts."""
        return KeptText(self._marked, self._kept, (), self.kinds)

    def _read(self, parts: Sequence[_Part]) -> Iterator[_Part]:
        """Yield the parts with the text that a model reads: one space where a sign stood."""
        names = iter(self.names)
        ends_with_space = True
        for number, part in enumerate(parts):
            if part.kind == "text":
                start, end = part.start, part.end
                text = self.sentence[start:end]
                if ends_with_space:
                    start += len(text) - len(text.lstrip())
                after = self._next_read(parts[number + 1 :])
                if number + 1 < len(parts) and not after.isalnum():
                    end = max(start, end - (len(text) - len(text.rstrip())))
                if start == end:
                    continue
                part = replace(part, text=self.sentence[start:end], start=start, end=end)
            elif not is_wordless(self.sentence[part.start : part.end]):
                part = replace(part, text=next(names, ""))
            yield part
            if part.text:
                ends_with_space = part.text[-1].isspace()
            elif part.kind == "single" and all(self.touches(part)):
                yield _Part("text", " ", part.end, part.end)  # not `a<br>b`, one word
                ends_with_space = True

    def _next_read(self, parts: Sequence[_Part]) -> str:
        """Return the first character of some parts that the model reads; a letter for a name."""
        for part in parts:
            content = self.sentence[part.start : part.end]
            if part.kind == "text":
                return content[:1]
            if self.names and not is_wordless(content):
                return "N"
        return ""

    def touches(self, part: _Part) -> tuple[bool, bool]:
        """Return whether a part touches the word before it, and the word after it."""
        before, after = self.sentence[: part.start][-1:], self.sentence[part.end :][:1]
        return _is_of_word(before), _is_of_word(after)

    def place(
        self, translation: str, alignment: Alignment | None, *, strict: bool
    ) -> tuple[str, Alignment] | None:
        """Return a translation with its parts, and its alignment; None if a part has no place.

        Args:
            translation: translation of `text`.
            alignment: its word alignment.
            strict: true to refuse a part that occurs more often than in the sentence.
        """
        (copies,) = copies_of(set(self.names), translation)
        # Of two copies it is unknown which one stands for the part.
        if any(len(copies[name]) > 1 for name in self.names):
            return None
        of_source, of_target, weights = aligned_words(self.text, translation, alignment)
        words = (0, len(of_source)), (0, len(of_target))
        region = Region((0, len(self.text)), (0, len(translation)), False, *words)
        texts = self.text, translation, tuple(of_source), tuple(of_target)
        lined = LineUp(*texts, weights, (region,))
        nodes = placed_markup(self.parts, lined)
        _to_edges(nodes, self.text, translation)
        written = _Written(self, translation)
        written.nodes(nodes, (0, len(translation)))
        # Counted in the translation, as a model may have written such a span by itself.
        found = Counter(written.text[a:b] for a, b in self.kinds.find(written.text))
        if written.lacks_name or any(
            found[part] < count or (strict and found[part] > count)
            for part, count in self.kept.items()
        ):
            return None
        return written.text, self._aligned(lined, written)

    def _aligned(self, lined: LineUp, written: _Written) -> Alignment:
        """Return the alignment of the complete sentence and its complete translation."""
        here, chunks = 0, []
        for part in self.parts:
            is_text = part.kind == "text"
            chunks.append(_Chunk(part.start, part.end, here if is_text else part))
            here += len(part.text)
        source = word_spans(self.sentence)
        target = word_spans(written.text)
        before = [_origin(span, chunks, lined.source_words) for span in source]
        after = [_origin(span, written.chunks, lined.target_words) for span in target]
        matrix = np.zeros((len(target), len(source)))
        for row, one in enumerate(after):
            for column, other in enumerate(before):
                if isinstance(one, int) and isinstance(other, int):
                    matrix[row, column] = lined.weights[one, other]
                elif one is other and one is not None:
                    matrix[row, column] = 1.0
        # The weights of a word are shares; one word may stand for several of the shorter text.
        matrix /= matrix.sum(1, keepdims=True).clip(min=1.0)
        return Alignment(
            tuple(self.sentence[a:b] for a, b in source),
            tuple(written.text[a:b] for a, b in target),
            tuple(map(tuple, matrix.tolist())),
        )


def _is_of_word(character: str) -> bool:
    return bool(character) and is_of_word(character)


def read_around_parts(
    texts: Sequence[CutText], tokenizers: TokenizerPair, kinds: Protection, limit: int
) -> list[CutText]:
    """Return texts in segments as a model reads them; see `read_without_parts`."""
    assert isinstance(kinds, KeptKinds)
    return [
        replace(
            text,
            segments=tuple(read_without_parts(s, tokenizers, kinds, limit) for s in text.segments),
        )
        for text in texts
    ]


def read_without_parts(
    segment: Segment, tokenizers: TokenizerPair, kinds: KeptKinds, limit: int
) -> Segment:
    """Return a segment as a model reads it, with names in place of its parts where they fit.

    Args:
        segment: segment with reserved characters in place of its parts.
        tokenizers: tokenizers of the model.
        kinds: kinds of the parts.
        limit: maximum number of tokens.
    """
    if not segment.parts:
        return segment
    # A name with an unknown token would be lost, and the sentence searched for a second time.
    tokenizer = tokenizers.source
    known = [name for name in NAMES if tokenizer.unk not in tokenizer.encode(name)]
    for names in (known, []):
        kept = KeptText(segment.text, segment.parts, names, kinds)
        read = _reading(segment, kept, tokenizers)
        if read.is_copied or len(read.ids) <= limit:
            break
    return read


def _reading(segment: Segment, kept: KeptText, tokenizers: TokenizerPair) -> Segment:
    tokenizer = tokenizers.source
    ids = tuple(tokenizer.encode(kept.text))
    without_names = kept if not kept.names else kept.without_names()
    if not is_readable(without_names.text, ids, tokenizer, tokenizers.reads):
        return replace(segment, text=kept.sentence, parts=(), is_copied=True)
    return replace(segment, text=kept.text, ids=ids, parts=(), kept=kept, is_copied=False)


_Search = Callable[[Sequence[Any], bool], list[SegmentResult]]


def search_around_parts(
    search: _Search,
    tokenizers: TokenizerPair,
    items: Sequence[Any],
    *,
    alignment: bool,
    warn: Warn | None,
    strict: bool,
) -> list[SegmentResult]:
    """Translate segments of which some have parts that stay.

    Args:
        search: function that returns results of items, with alignments if its second argument is
            true.
        tokenizers: tokenizers of the model.
        items: the segments.
        alignment: True to align all of them, too.
        warn: receiver of a sentence about each segment that is left as it is.
        strict: False where a translation may have more such parts than its sentence, by a glossary
            or a prefix.
    """
    plain = [item for item in items if item.segment.kept is None]
    others = iter(search(plain, alignment) if plain else ())
    kept = [item for item in items if item.segment.kept is not None]
    placed = iter(_search_kept(kept, search, tokenizers, warn, strict))
    return [next(others if item.segment.kept is None else placed) for item in items]


def _search_kept(
    items: Sequence[Any],
    search: _Search,
    tokenizers: TokenizerPair,
    warn: Warn | None,
    strict: bool,
) -> list[SegmentResult]:
    """Translate segments with kept parts; a segment without a place for them stays as it is."""
    results: dict[int, SegmentResult] = {}
    waiting = dict(enumerate(items))
    # Names are tried first, as they keep the grammar of the sentence; a sentence that loses a name
    # is searched again.
    for names in (True, False):
        found = search([*waiting.values()], True) if waiting else []
        for (number, item), result in zip([*waiting.items()], found, strict=True):
            placed = _placed(item, result, tokenizers.target, strict=strict)
            if placed is not None:
                results[number] = placed
                del waiting[number]
            elif names:
                assert item.segment.kept is not None
                kept = item.segment.kept.without_names()
                segment = _reading(item.segment, kept, tokenizers)
                # Soft terms were written into the tokens of the text with names.
                waiting[number] = replace(item, segment=segment, annotated=(), origins=())
    for number, item in waiting.items():
        assert item.segment.kept is not None
        sentence = item.segment.kept.sentence
        results[number] = SegmentResult.copy_of(sentence, is_left=True)
        if warn is not None:
            warn(
                f"line {item.line}: left as it is, as its translation has no place for "
                f"{', '.join(item.segment.kept.kept)}: {sentence}"
            )
    return [results[number] for number in range(len(items))]


def _placed(
    item: Any, result: SegmentResult, tokenizer: TextTokenizer, *, strict: bool
) -> SegmentResult | None:
    """Return a result whose hypotheses have the parts of the segment; None if none can."""
    kept = item.segment.kept
    assert kept is not None and result.alignments is not None
    # All hypotheses are tried: a later one may have the name that the best one lost.
    chosen: list[tuple[Hypothesis, Alignment, str]] = []
    for hypothesis, alignment in zip(result.hypotheses, result.alignments, strict=True):
        translation = one_line(tokenizer.decode(hypothesis.tokens))
        placed = kept.place(translation, alignment, strict=strict)
        if placed is not None:
            chosen.append((hypothesis, placed[1], placed[0]))
    if not chosen:
        return None
    hypotheses, alignments, texts = zip(*chosen, strict=True)
    return replace(result, hypotheses=hypotheses, alignments=alignments, texts=texts)


def _split(pieces: Sequence[str], kept: Sequence[str]) -> list[_Part]:
    """Return the parts of a sentence; tags with a partner have the kinds `open` and `close`."""
    parts: list[_Part] = []
    opened: list[tuple[str, int]] = []
    here = 0
    for piece, content in zip(pieces, [*kept, ""], strict=True):
        parts.append(_Part("text", "", here, here + len(piece)))
        here += len(piece)
        tag = _TAG.fullmatch(content)
        # A closing tag only closes the innermost open one: tags that cross stay single, each in its
        # place.
        if tag is not None and tag["end"] and opened and opened[-1][0] == tag["name"]:
            number = opened.pop()[1]
            parts[number] = replace(parts[number], kind="open")
            parts.append(_Part("close", "", here, here + len(content)))
        else:
            if tag is not None and not (tag["end"] or tag["alone"] or tag["name"] in _ALONE):
                opened.append((tag["name"], len(parts)))
            parts.append(_Part("single", "", here, here + len(content)))
        here += len(content)
    return [part for part in parts if part.start < part.end]


def _with_space(parts: Iterable[_Part]) -> tuple[_Part, ...]:
    """Return parts in which space that the model does not read belongs to the tag around it.

    It would be lost otherwise, as in `%s <b> red`: nothing beside the tag shows that it was there.
    """
    wider = list(parts)
    for number, (one, other) in enumerate(pairwise(wider)):
        if one.kind == "open":
            wider[number] = replace(one, end=other.start)
        elif other.kind == "close":
            wider[number + 1] = replace(other, start=one.end)
    return tuple(wider)


def _to_edges(nodes: Sequence[Node[_Part]], text: str, translation: str) -> None:
    """Keep signs before the first word or after the last word at that edge of the translation."""
    spans = [[match.span() for match in re.finditer(r"\w+", side)] for side in (text, translation)]
    if not spans[0] or not spans[1]:
        return
    (first, last), (begin, end) = ((words[0][0], words[-1][1]) for words in spans)
    # Nothing aligns with a sign that is not read; `* red` must not become `red *`.
    for node in nodes:
        if node.kind == "single" and node.start == node.end:
            place = node.target[0]
            if node.end <= first:
                place = begin if node.start else 0
            elif node.start >= last:
                place = end if node.start < len(text) else len(translation)
            node.target = (place, place)


@dataclass(frozen=True)
class _Chunk:
    """A range of a complete text.

    Args:
        start, end: the range.
        origin: a part that stays, or the offset of the range in the text without such parts.
    """

    start: int
    end: int
    origin: _Part | int


def _origin(span: Span, chunks: Sequence[_Chunk], words: Sequence[Span]) -> _Part | int | None:
    """Return the part that a word belongs to, or else the index of the word it was made of."""
    inside = [chunk for chunk in chunks if chunk.start < span[1] and span[0] < chunk.end]
    # A word that consists of text and a part, such as `{n}s`, counts as the part, whose copy it
    # aligns with.
    for chunk in inside:
        if isinstance(chunk.origin, _Part):
            return chunk.origin
    for chunk in inside:
        assert isinstance(chunk.origin, int)
        offset = chunk.origin + max(span[0], chunk.start) - chunk.start
        index = bisect_right(words, offset, key=lambda word: word[1])
        if index < len(words) and words[index][0] <= offset:
            return index
    return None


class _Written:
    """A translation in which parts are written.

    Attributes:
        text: the complete translation so far.
        chunks: its ranges.
        lacks_name: True if the translation lacks the name of a part.
    """

    def __init__(self, kept: KeptText, translation: str) -> None:
        self.kept = kept
        self.translation = translation
        self.text = ""
        self.chunks: list[_Chunk] = []
        self.lacks_name = False
        # Signs that need a space between them and the part written last, as letters do.
        self._parting = ""

    def nodes(self, nodes: Sequence[Node[_Part]], within: Span) -> None:
        """Write a range of the translation with its parts."""
        done = within[0]
        for node in sorted(nodes, key=lambda node: (node.target, node.start)):
            self._words(done, node.target[0])
            opening, done = node.opening, node.target[1]
            if opening is not None:
                self._part(opening)
                self.lacks_name |= bool(opening.text) and node.target[0] == done
            if node.kind == "pair":
                self.nodes(node.children, node.target)
            if node.closing is not None:
                self._part(node.closing)
        self._words(done, within[1])

    def _words(self, start: int, end: int) -> None:
        text = self.translation[start:end]
        if not text:
            return
        if self._parting and (is_of_word(text[0]) or text[0] in self._parting):
            self.text += " "
        elif self.text[-1:].isspace() or not self.text:
            start += len(text) - len(text.lstrip())
        self._parting = ""
        self._chunk(self.translation[start:end], start)

    def _part(self, part: _Part) -> None:
        sentence = self.kept.sentence
        before, after = self.kept.touches(part)
        origin = self.chunks[-1].origin if self.chunks else None
        last = self.text[-1:]
        if part.kind == "close" or not last or last.isspace():
            is_glued = True
        elif isinstance(origin, _Part):
            is_glued = origin.kind == "open" or origin.end == part.start
        elif is_of_word(last):
            is_glued = before
        else:  # a space that stood before a sign is not read
            was_spaced = part.start == 0 or sentence[part.start - 1].isspace()
            is_glued = bool(part.text) or last not in _CLOSING or not was_spaced
        self.text += "" if is_glued else " "
        self._chunk(sentence[part.start : part.end], part)
        if part.kind == "open" or after:
            self._parting = ""
        else:
            is_spaced = part.end == len(sentence) or sentence[part.end].isspace()
            self._parting = _OPENING if is_spaced else "¿"

    def _chunk(self, text: str, origin: _Part | int) -> None:
        start = len(self.text)
        self.text += text
        self.chunks.append(_Chunk(start, len(self.text), origin))
