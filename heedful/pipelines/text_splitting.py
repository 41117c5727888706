"""Splitting of texts into segments that a model can read, and joining of their translations."""

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
    """A part of a text that is translated at once.

    Args:
        text: text of the segment, without space around it.
        ids: source tokens, at least one.
        line: index of the line in its text.
        glued: True if the segment ends inside a word.
        parts: protected parts, for which the reserved characters in `text` stand.
    """

    text: str
    ids: tuple[int, ...]
    line: int
    glued: bool
    parts: tuple[str, ...] = ()

    def restored(self, translation: str) -> str:
        """Return a translation with the protected parts in place of the reserved characters."""
        if not self.parts:
            return translation
        from heedful.text.protected_spans import reserved_marks, restored

        return restored(translation, reserved_marks(self.text), self.parts)


@dataclass(frozen=True)
class CutText:
    """A text that is cut into segments.

    Args:
        lines: number of lines of the text; blank lines have no segment.
        segments: segments in order.
    """

    lines: int
    segments: tuple[Segment, ...]

    def join(self, translations: Sequence[str]) -> str:
        """Join the translations of the segments to a text with as many lines as the source."""
        lines: list[list[tuple[TextPiece, str]]] = [[] for _ in range(self.lines)]
        for segment, translation in zip(self.segments, translations, strict=True):
            piece = TextPiece(segment.text, segment.glued)
            lines[segment.line].append((piece, one_line(translation)))
        return "\n".join(map(_joined, lines))


def clean(text: str) -> str:
    """Replace characters that tokenizers cannot encode or that stand for no text.

    Lone surrogates become U+FFFD; control characters other than tabs and newlines become spaces.
    """
    if text.isprintable():  # nearly all texts are
        return text
    return "".join(map(_clean_character, text))


def one_line(text: str) -> str:
    """Replace all line breaks of a text, as `str.splitlines` finds them, by spaces."""
    return " ".join(text.splitlines())


def single_line(text: str) -> str:
    """Clean a text, replace its newlines by spaces and strip space around it."""
    return " ".join(clean(text).split("\n")).strip()


def cut_texts(
    texts: Sequence[str],
    tokenizer: TextTokenizer,
    limit: int,
    *,
    warn: Warn | None = None,
    first_line: int = 1,
) -> list[CutText]:
    """Clean texts and cut them into segments.

    Args:
        texts: any strings; the lines of a string are translated separately.
        tokenizer: tokenizer of the source.
        limit: maximum number of tokens of a segment, special tokens not counted.
        warn: receiver of a sentence about every line that is too long for one segment.
        first_line: number of the first text in warnings.
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
        return "\ufffd"  # a lone surrogate is no character
    if unicodedata.category(character) == "Cc" and character not in "\t\n":
        return " "
    return character


def _joined(pairs: Sequence[tuple[TextPiece, str]]) -> str:
    if len(pairs) == 1:  # unchanged, with its spaces
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
        text: unchanged substring; the pieces of a text, concatenated, are the text.
        glued: True if the piece ends inside a word, so that no space belongs there.
    """

    text: str
    glued: bool = False


def split_text(text: str, limit: int, measure: Measure) -> list[TextPiece]:
    """Cut a text into pieces of at most `limit` tokens.

    Args:
        text: one line.
        limit: maximum number of tokens of a piece; a single character with more stays whole.
        measure: function that counts the tokens of each of several texts.

    Returns:
        The pieces in order. Each sentence is a piece of its own, as translators are trained on
        sentences. A sentence above the limit is split into clauses, words or characters, which are
        joined to pieces of about equal length up to the limit.
    """
    pieces = [TextPiece(text)]
    for find_cuts, packed in ((_sentences, False), (_clauses, True), (_words, True)):
        pieces = _refine(pieces, limit, measure, find_cuts, packed)
    return _split_characters(pieces, limit, measure)


def join_pieces(pieces: Sequence[TextPiece], translations: Sequence[str]) -> str:
    """Join translations of pieces.

    They are separated by spaces, except inside a word and next to a script without spaces.
    """
    joined = ""
    glued = True
    for piece, translation in zip(pieces, translations, strict=True):
        translation = translation.strip()
        if not translation:  # an empty translation gets no space
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
    """Join neighbouring parts to as few as the limit allows, of about equal length."""
    total = sum(counts)
    goal = total / max(1, -(-total // limit))  # tokens of a part with the fewest possible parts
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
            count <= limit or len(piece.text) < 2  # a single character cannot be split
            for piece, count in zip(pieces, counts, strict=True)
        ):
            return pieces
        cut: list[TextPiece] = []
        for piece, count in zip(pieces, counts, strict=True):
            cut += [piece] if count <= limit else _equal_parts(piece, -(-count // limit))
        pieces = cut


def _equal_parts(piece: TextPiece, number: int) -> list[TextPiece]:
    text = piece.text
    size = max(1, len(text) // max(2, number))  # at least two parts, or the loop would not end
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
    if end < len(text) and text[end].islower():  # no sentence begins with a lower-case letter
        return False
    word = before[:-1].rsplit(maxsplit=1)[-1:]
    return not (before[-1] == "." and word and _is_abbreviation(word[0]))


def _is_abbreviation(word: str) -> bool:
    """Return True for a single letter, or a few Latin consonants, as in "J." or "Dr."."""
    letters = word.lstrip("\"'“‘«([").lower()
    if not letters.isalpha():
        return False
    if len(letters) == 1:  # an initial, as in J. S. Bach
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
    """A translated text, which is a `str`, with its scores and tokens.

    Attributes:
        score: natural-log probability, summed over the tokens and the end token of every segment.
        normalized_score: score that ranks translations; the mean over the text's segments.
        finished: False if a segment was cut at its maximum length.
        tokens: tokens of the translation as text, for display.
        token_scores: log-probability of every token, and of the end token after each segment.
        segment_lengths: number of tokens of each segment.
        others: next-best translations, best first.
        alignment: word alignment; None if it was not requested.
        required: number of required phrases, as by a glossary.
        missing: names of required phrases that the translation lacks.
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
        """Make a translation; by default the empty one of an empty text."""
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
    """Log-probability of a given target.

    Args:
        score: natural-log probability, summed over the tokens and the end token.
        tokens: tokens of the target as text, for display.
        token_scores: log-probability of each token and of the end token.
        alignment: word alignment; None if it was not requested.
    """

    score: float
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    alignment: Alignment | None = None

    @classmethod
    def of(cls, tokens: Sequence[str], token_scores: Sequence[float]) -> Self:
        """Make a target score whose `score` is the sum of the scores of tokens."""
        return cls(math.fsum(token_scores), tuple(tokens), tuple(token_scores))


_LINES_NAMED = 5  # a longer list of lines would hide their number


@dataclass(frozen=True)
class SegmentResult:
    """The result of a search for one segment.

    Args:
        hypotheses: hypotheses, best first, at least one.
        alignments: word alignment of each hypothesis; None if not requested.
        phrases: required phrases; a hypothesis has the indices of those that it lacks.
    """

    hypotheses: Sequence[Hypothesis]
    alignments: Sequence[Alignment] | None = None
    phrases: Sequence[RequiredPhrase] = ()


def distinct_texts(hypotheses: Sequence[Hypothesis], tokenizer: TextTokenizer) -> list[Hypothesis]:
    """Return the best hypothesis of every text, as different tokens may decode to the same text.

    Args:
        hypotheses: hypotheses of a segment, best first.
        tokenizer: tokenizer of the target.
    """
    best: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        best.setdefault(tokenizer.decode(hypothesis.tokens), hypothesis)
    return list(best.values())


def assemble(
    text: CutText, found: Sequence[SegmentResult], tokenizer: TextTokenizer
) -> Translation:
    """Assemble the translation of a text and its next-best ones.

    Args:
        text: text in segments.
        found: result of each segment; the k-th best ones make up the text's k-th best translation.
        tokenizer: tokenizer of the target.
    """
    if not found:
        return Translation()
    ranks = min(len(segment.hypotheses) for segment in found)  # segments may have fewer than others
    best, *others = (_ranked(text, found, rank, tokenizer) for rank in range(ranks))
    best.others = tuple(others)
    return best


def warn_of_cuts(translations: Sequence[Translation], first_line: int, warn: Warn) -> None:
    """Warn if translations were cut at their maximum length, with their number and first lines.

    Args:
        translations: translations of consecutive lines.
        first_line: number of the first line.
        warn: receiver of the sentence.
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
