"""Texts split into segments that a model can read, and translations put together from theirs."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from heedful.search.search_settings import Hypothesis
from heedful.text.pretokenization import is_spaceless
from heedful.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from heedful.search.alignment import Alignment
    from heedful.search.phrase_automaton import RequiredPhrase

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Segment:
    """A piece of a text that is translated at once.

    Args:
        text: the piece, without space around it.
        ids: its source tokens, at least one.
        line: number of the line of the text it belongs to, from 0.
        glued: its end is inside a word.
        parts: of the text, kept as they are, that the reserved characters in it stand for.
    """

    text: str
    ids: tuple[int, ...]
    line: int
    glued: bool
    parts: tuple[str, ...] = ()

    def restored(self, translation: str) -> str:
        """A translation with the parts in their places."""
        if not self.parts:
            return translation
        from heedful.text.protected_spans import reserved_marks, restored

        return restored(translation, reserved_marks(self.text), self.parts)


@dataclass(frozen=True)
class CutText:
    """A text in segments.

    Args:
        lines: lines of the text; blank ones have no segment.
        segments: in order.
    """

    lines: int
    segments: tuple[Segment, ...]

    def join(self, translations: Sequence[str]) -> str:
        """The text of its segments' translations: as many lines as the source."""
        lines: list[list[tuple[TextPiece, str]]] = [[] for _ in range(self.lines)]
        for segment, translation in zip(self.segments, translations, strict=True):
            piece = TextPiece(segment.text, segment.glued)
            lines[segment.line].append((piece, one_line(translation)))
        return "\n".join(map(_joined, lines))


def clean(text: str) -> str:
    """The text without what no tokenizer should see.

    Halves of surrogate pairs become U+FFFD, control characters other than tabs and newlines (which
    stand for no text) become spaces.
    """
    if text.isprintable():
        return text
    return "".join(map(_clean_character, text))


def one_line(text: str) -> str:
    """The text with everything that could be taken for the end of a line replaced by a space."""
    return " ".join(text.splitlines())


def single_line(text: str) -> str:
    """A text that is one line, cleaned, without space around it."""
    return " ".join(clean(text).split("\n")).strip()


def cut_texts(
    texts: Sequence[str],
    tokenizer: TextTokenizer,
    limit: int,
    *,
    warn: Warn | None = None,
    first_line: int = 1,
) -> list[CutText]:
    """Bring texts into a form that can be translated.

    Args:
        texts: any strings; a newline inside one separates lines that are translated by themselves.
        tokenizer: of the source.
        limit: most tokens of a piece, special tokens not counted.
        warn: called with a sentence about every text that has a line too long to translate at once.
        first_line: what to call the first text in warnings.
    """
    lines = [clean(text).split("\n") if text.strip() else [] for text in texts]
    flat = [line.strip() for text in lines for line in text]
    encoded = iter(zip(flat, tokenizer.encode_batch(flat), strict=True))

    def measure(parts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizer.encode_batch(parts)]

    cut: list[CutText] = []
    for name, text in enumerate(lines, start=first_line):
        segments: list[Segment] = []
        for number in range(len(text)):
            line, ids = next(encoded)
            if len(ids) <= limit:
                if ids:
                    segments.append(Segment(line, tuple(ids), number, glued=False))
                continue
            pieces = split_text(line, limit, measure)
            if warn is not None:
                warn(
                    f"line {name}: {len(ids)} tokens are more than the model's {limit}: "
                    f"translated in {len(pieces)} pieces and joined again"
                )
            parts = [piece.text.strip() for piece in pieces]
            segments += [
                Segment(part, tuple(part_ids), number, piece.glued)
                for piece, part, part_ids in zip(
                    pieces, parts, tokenizer.encode_batch(parts), strict=True
                )
                if part_ids
            ]
        cut.append(CutText(len(text) if segments else 0, tuple(segments)))
    return cut


def _clean_character(character: str) -> str:
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"
    if unicodedata.category(character) == "Cc" and character not in "\t\n":
        return " "
    return character


def _joined(pairs: Sequence[tuple[TextPiece, str]]) -> str:
    if len(pairs) == 1:  # as the model wrote it
        return pairs[0][1]
    return join_pieces([piece for piece, _ in pairs], [text for _, text in pairs])


Measure = Callable[[Sequence[str]], list[int]]

_SPACE = re.compile(r"\s+")
_FULL_WIDTH_END = re.compile(r"[。！？｡︒]+[」』”’）】》〉\"')\]]*\s*")
_FULL_WIDTH_PAUSE = re.compile(r"[，、；：]+\s*")
_END = ".!?…؟۔।॥።։"
_PAUSE = ",;:،؛—–"
_CLOSING = "\"'”’»)]}›"
_LATIN_VOWELS = frozenset("aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýœ")


@dataclass(frozen=True)
class TextPiece:
    """A part of a text.

    Args:
        text: exactly as it stood; all pieces one after the other are the text.
        glued: its end is inside a word, so that no space belongs there.
    """

    text: str
    glued: bool = False


def split_text(text: str, limit: int, measure: Measure) -> list[TextPiece]:
    """Cut a text into pieces of at most `limit` tokens.

    Args:
        text: one line.
        limit: most tokens of a piece. A single character of more tokens stays whole.
        measure: number of tokens of each of several texts.

    Returns:
        The pieces in order. Sentences stay apart from each other, for that is what translators
        learn from; shorter parts are put together again up to the limit, in pieces of like size.
    """
    pieces = [TextPiece(text)]
    for find_cuts, packed in ((_sentences, False), (_clauses, True), (_words, True)):
        pieces = _refine(pieces, limit, measure, find_cuts, packed)
    return _split_characters(pieces, limit, measure)


def join_pieces(pieces: Sequence[TextPiece], translations: Sequence[str]) -> str:
    """Put translations of pieces together.

    A space goes between two, but not inside what was one word, nor next to writing that uses none.
    """
    joined = ""
    glued = True
    for piece, translation in zip(pieces, translations, strict=True):
        translation = translation.strip()
        if not translation:
            continue
        spaceless = joined and (is_spaceless(joined[-1]) or is_spaceless(translation[0]))
        joined += translation if glued or spaceless else f" {translation}"
        glued = piece.glued
    return joined


def _refine(
    pieces: list[TextPiece],
    limit: int,
    measure: Measure,
    find_cuts: Callable[[str], list[int]],
    packed: bool,
) -> list[TextPiece]:
    refined: list[TextPiece] = []
    counts = measure([piece.text.strip() for piece in pieces])
    for piece, count in zip(pieces, counts, strict=True):
        if count <= limit:
            refined.append(piece)
            continue
        cuts = [0, *find_cuts(piece.text), len(piece.text)]
        parts = [piece.text[a:b] for a, b in itertools.pairwise(cuts) if a < b]
        if packed:
            parts = _pack(parts, measure([part.strip() for part in parts]), limit)
        refined += map(TextPiece, parts)
    return refined


def _pack(parts: Sequence[str], counts: Sequence[int], limit: int) -> list[str]:
    """Join neighbours to as few parts as the limit asks for, of about equal length."""
    total = sum(counts)
    goal = total / max(1, -(-total // limit))
    packed: list[list[str]] = [[]]
    size = 0
    for part, count in zip(parts, counts, strict=True):
        if packed[-1] and (size + count > limit or size + count / 2 > goal):
            packed.append([])
            size = 0
        packed[-1].append(part)
        size += count
    return ["".join(group) for group in packed]


def _split_characters(pieces: list[TextPiece], limit: int, measure: Measure) -> list[TextPiece]:
    while True:
        counts = measure([piece.text.strip() for piece in pieces])
        if all(
            count <= limit or len(piece.text) < 2
            for piece, count in zip(pieces, counts, strict=True)
        ):
            return pieces
        cut: list[TextPiece] = []
        for piece, count in zip(pieces, counts, strict=True):
            cut += [piece] if count <= limit else _equal_parts(piece, -(-count // limit))
        pieces = cut


def _equal_parts(piece: TextPiece, number: int) -> list[TextPiece]:
    text = piece.text
    size = max(1, len(text) // max(2, number))
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    inner = [
        TextPiece(left, glued=_inside_word(left[-1], right[0]))
        for left, right in itertools.pairwise(parts)
    ]
    return [*inner, TextPiece(parts[-1], piece.glued)]


def _inside_word(left: str, right: str) -> bool:
    return not any(c.isspace() or is_spaceless(c) for c in (left, right))


def _sentences(text: str) -> list[int]:
    cuts = {match.end() for match in _FULL_WIDTH_END.finditer(text)}
    cuts.update(m.end() for m in _SPACE.finditer(text) if _ends_sentence(text, m.start(), m.end()))
    return sorted(cuts)


def _ends_sentence(text: str, start: int, end: int) -> bool:
    """Return True if a sentence ends before the space text[start:end]."""
    before = text[max(0, start - 40) : start].rstrip(_CLOSING)
    if not before or before[-1] not in _END:
        return False
    if end < len(text) and text[end].islower():
        return False
    word = before[:-1].rsplit(maxsplit=1)[-1:]
    return not (before[-1] == "." and word and _is_abbreviation(word[0]))


def _is_abbreviation(word: str) -> bool:
    """A single letter, or a few Latin consonants, as in "J." or "Dr."."""
    letters = word.lstrip("\"'“‘«([").lower()
    if not letters.isalpha():
        return False
    if len(letters) == 1:
        return True
    return len(letters) <= 4 and letters.isascii() and not _LATIN_VOWELS & set(letters)


def _clauses(text: str) -> list[int]:
    cuts = {match.end() for match in _FULL_WIDTH_PAUSE.finditer(text)}
    cuts.update(
        m.end() for m in _SPACE.finditer(text) if m.start() and text[m.start() - 1] in _PAUSE
    )
    return sorted(cuts)


def _words(text: str) -> list[int]:
    return [match.end() for match in _SPACE.finditer(text)]


class Translation(str):
    """A translated text, which is a `str`, and what is known about it.

    Attributes:
        score: natural-log probability, summed over the tokens and the end token of every piece.
        normalized_score: what translations are ranked by; the mean of a text's pieces.
        finished: False when a piece was cut at its longest length.
        tokens: the vocabulary's pieces it is made of, for display.
        token_scores: log-probability of every token, and of the end token after each segment.
        segment_lengths: tokens of each segment, such as a line, that was translated by itself.
        others: the next-best translations, best first.
        alignment: of words, when it was asked for.
        required: number of phrases that were required of it, as by a glossary.
        missing: names of those that it lacks.
    """

    score: float
    normalized_score: float
    finished: bool
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    segment_lengths: tuple[int, ...]
    others: tuple[Translation, ...]
    alignment: Alignment | None
    required: int
    missing: tuple[str, ...]

    def __new__(
        cls,
        text: str = "",
        *,
        score: float = 0.0,
        normalized_score: float = 0.0,
        finished: bool = True,
        tokens: Sequence[str] = (),
        token_scores: Sequence[float] = (),
        segment_lengths: Sequence[int] = (),
        others: Sequence[Translation] = (),
        alignment: Alignment | None = None,
        required: int = 0,
        missing: Sequence[str] = (),
    ) -> Self:
        """Build from its parts; the empty translation of an empty text by default."""
        self = super().__new__(cls, text)
        self.score = score
        self.normalized_score = normalized_score
        self.finished = finished
        self.tokens = tuple(tokens)
        self.token_scores = tuple(token_scores)
        self.segment_lengths = tuple(segment_lengths)
        self.others = tuple(others)
        self.alignment = alignment
        self.required = required
        self.missing = tuple(missing)
        return self

    @property
    def n_best(self) -> tuple[Translation, ...]:
        """This translation and the next-best ones, best first."""
        return (self, *self.others)


@dataclass(frozen=True)
class TargetScore:
    """The log-probability of a given target.

    Args:
        score: natural-log probability, summed over the tokens and the end token.
        tokens: the vocabulary's pieces of the target, for display.
        token_scores: log-probability of each token and of the end token.
        alignment: of words, when it was asked for.
    """

    score: float
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    alignment: Alignment | None = None

    @classmethod
    def of(cls, tokens: Sequence[str], token_scores: Sequence[float]) -> Self:
        """Sum the scores of tokens."""
        return cls(math.fsum(token_scores), tuple(tokens), tuple(token_scores))


_LINES_NAMED = 5


@dataclass(frozen=True)
class SegmentResult:
    """The result of a search for one segment.

    Args:
        hypotheses: best first, at least one.
        alignments: of each, if they were asked for.
        phrases: that each should contain; a hypothesis knows those that it lacks.
    """

    hypotheses: Sequence[Hypothesis]
    alignments: Sequence[Alignment] | None = None
    phrases: Sequence[RequiredPhrase] = ()


def distinct_texts(hypotheses: Sequence[Hypothesis], tokenizer: TextTokenizer) -> list[Hypothesis]:
    """The best hypothesis of every text: different tokens may spell the same.

    Args:
        hypotheses: of a segment, best first.
        tokenizer: of the target.
    """
    best: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        best.setdefault(tokenizer.decode(hypothesis.tokens), hypothesis)
    return list(best.values())


def assemble(
    text: CutText, found: Sequence[SegmentResult], tokenizer: TextTokenizer
) -> Translation:
    """A text's translation and its next-best ones.

    Args:
        text: in segments.
        found: for each segment. The k-th best of the text is made of the k-th best of each.
        tokenizer: of the target.
    """
    if not found:
        return Translation()
    ranks = min(len(segment.hypotheses) for segment in found)
    best, *others = (_ranked(text, found, rank, tokenizer) for rank in range(ranks))
    best.others = tuple(others)
    return best


def warn_of_cuts(translations: Sequence[Translation], first_line: int, warn: Warn) -> None:
    """Tell how many translations were cut at their longest length, and which, if any were.

    Args:
        translations: of lines that follow each other.
        first_line: number of the first.
        warn: called with the sentence.
    """
    cut = [i for i, t in enumerate(translations, start=first_line) if not t.finished]
    if cut:
        named = ", ".join(map(str, cut[:_LINES_NAMED]))
        more = ", ..." if len(cut) > _LINES_NAMED else ""
        warn(
            f"{len(cut)} of {len(translations)} translations were cut at their longest length "
            f"(line {named}{more})"
        )


def _ranked(
    text: CutText, found: Sequence[SegmentResult], rank: int, tokenizer: TextTokenizer
) -> Translation:
    chosen = [segment.hypotheses[rank] for segment in found]
    parts = [segment.alignments[rank] for segment in found if segment.alignments is not None]
    pairs = zip(text.segments, chosen, strict=True)
    texts = [segment.restored(tokenizer.decode(one.tokens)) for segment, one in pairs]
    alignment = None
    if parts:
        from heedful.search.alignment import join_alignments

        alignment = join_alignments(parts)
    return Translation(
        text.join(texts),
        score=math.fsum(hypothesis.score for hypothesis in chosen),
        normalized_score=math.fsum(h.normalized_score for h in chosen) / len(chosen),
        finished=all(hypothesis.finished for hypothesis in chosen),
        tokens=[piece for hypothesis in chosen for piece in tokenizer.pieces(hypothesis.tokens)],
        token_scores=[score for hypothesis in chosen for score in hypothesis.token_scores],
        segment_lengths=[len(hypothesis.tokens) for hypothesis in chosen],
        alignment=alignment,
        required=sum(len(segment.phrases) for segment in found),
        missing=[
            segment.phrases[place].name
            for segment, hypothesis in zip(found, chosen, strict=True)
            for place in hypothesis.missing
        ],
    )
