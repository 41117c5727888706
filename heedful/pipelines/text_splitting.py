"""Splitting of texts into segments that a model can read, and joining of their translations."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from heedful.search.search_settings import Hypothesis
from heedful.text.pretokenization import LETTER, TextPiece, joins_without_space
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import Reading

if TYPE_CHECKING:
    from heedful.search.alignment import Alignment
    from heedful.search.phrase_automaton import RequiredPhrase

Warn = Callable[[str], None]

# A possible end of a sentence with text after it; without one the library need not be loaded.
_MARK = re.compile(r"[^\w\s,;:-]")
_WORD = re.compile(r"\w")
_LETTERLESS = 0.01  # share of texts without letters from which a model has learned them
# Characters without which a text has no address, placeholder, tag or sign.
_OF_A_PART = re.compile(
    r"[{}%<>&`|_@$:\[*#~=•·©®§¶†‡\u203c-\u2bff\u3030\U0001f000-\U0010ffff\u20e3]"
    r"|www\.|\.(?:com|org|net|edu|gov|io|dev|app)"
)


@dataclass(frozen=True)
class Segment:
    """A part of a text that is translated at once.

    Args:
        text: text of the segment, without space around it.
        ids: source tokens, at least one.
        line: index of the line in its text.
        glued: True if the segment ends inside a word.
        gap: white space between the segment and the next one of its line.
        parts: protected parts, for which the reserved characters in `text` stand.
        is_copied: True for a segment that is its own translation, as no letter of it is known.
        kept: `KeptText` of a segment with parts that stay, where `text` is read without them.
    """

    text: str
    ids: tuple[int, ...]
    line: int
    glued: bool
    gap: str = ""
    parts: tuple[str, ...] = ()
    is_copied: bool = False
    kept: Any = None

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
            piece = TextPiece(segment.text + segment.gap, segment.glued)
            lines[segment.line].append((piece, one_line(translation)))
        return "\n".join(map(_joined, lines))


def clean(text: str) -> str:
    """Replace characters that tokenizers cannot encode or that stand for no text.

    Lone surrogates become U+FFFD; control characters other than tabs and newlines become spaces.
    """
    if text.isprintable():  # true for nearly all texts
        return text
    return "".join(map(_clean_character, text))


def may_keep_parts(text: str) -> bool:
    """Return False for a text without any part that `protected_spans` finds."""
    return _OF_A_PART.search(text) is not None


def has_parts(text: str) -> bool:
    """Return True for a text with a part that stays, of any kind."""
    if not may_keep_parts(text):
        return False
    from heedful.text.protected_spans import SPAN_KINDS, KeptKinds

    return bool(KeptKinds(SPAN_KINDS).find(text))


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
    reading: Reading,
    *,
    warn: Warn | None = None,
    first_line: int = 1,
    copies: bool = True,
) -> list[CutText]:
    """Clean texts and cut them into segments.

    Args:
        texts: any strings.
        tokenizer: tokenizer of the source.
        limit: maximum number of tokens of a segment, special tokens not counted.
        reading: part of a text that the model reads at once.
        warn: receiver of a sentence about every line that is too long for one segment, and of one
            about the unknown characters of all texts.
        first_line: number of the first text in warnings.
        copies: True to copy segments without a letter that the model knows.
    """
    lines = [_lines(text, reading) for text in texts]
    pieces = [[units(line, reading) for line in text] for text in lines]
    flat = [piece.text.strip() for text in pieces for line in text for piece in line]
    # All texts are encoded in one call, which is faster than one by one.
    rows = tokenizer.encode_batch(flat)
    if warn is not None:
        _warn_of_unknown(flat, rows, tokenizer, warn)
    encoded = iter(zip(flat, rows, strict=True))

    def measure(parts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizer.encode_batch(parts)]

    cut: list[CutText] = []
    for name, text in enumerate(pieces, start=first_line):
        segments: list[Segment] = []
        for number, line in enumerate(text):
            for piece in line:
                _, ids = next(encoded)
                if len(ids) <= limit:
                    segments += _segments([piece], [ids], number)
                    continue
                from heedful.pipelines.long_texts import split_text

                parts = split_text(piece.text, limit, measure, reading.language)
                if warn is not None:
                    warn(
                        f"line {name}: {len(ids)} tokens are more than the model's {limit}: "
                        f"translated in {len(parts)} pieces and joined again"
                    )
                stripped = [part.text.strip() for part in parts]
                segments += _segments(parts, tokenizer.encode_batch(stripped), number)
        if copies:
            segments = [
                segment
                if is_readable(segment.text, segment.ids, tokenizer, reading)
                else replace(segment, is_copied=True)
                for segment in segments
            ]
        # Blank lines alone translate to an empty text, and not to line breaks.
        cut.append(CutText(len(text) if segments else 0, tuple(segments)))
    return cut


def is_readable(text: str, ids: Sequence[int], tokenizer: TextTokenizer, reading: Reading) -> bool:
    """Return True if a text has a letter that the model knows, or the model learned such texts.

    Args:
        text: the text.
        ids: its tokens.
        tokenizer: tokenizer of the source.
        reading: part of a text that the model reads at once, with the share of its training corpus
            that has no letters.
    """
    if LETTER.search(text) is None:
        # A model of sentences invents words for "12345"; one of dates and prices translates it.
        if reading.letterless >= _LETTERLESS:
            return True
        # A model that reads only numbers has no tokens with letters. Tokens are tested one by one,
        # as the first few decide, and listing a vocabulary takes milliseconds.
        return not any(LETTER.search(tokenizer.token(id)) for id in range(tokenizer.size))
    if tokenizer.unk not in ids:
        return True
    # The unknown token may be a sign: only letters tell whether the model knows the script.
    letters = sorted(set(LETTER.findall(text)))
    return any(tokenizer.unk not in each for each in tokenizer.encode_batch(letters))


def _warn_of_unknown(
    texts: Sequence[str], rows: Sequence[Sequence[int]], tokenizer: TextTokenizer, warn: Warn
) -> None:
    """Warn about letters and digits without a token; signs are not translated anyway."""
    doubtful = [text for text, ids in zip(texts, rows, strict=True) if tokenizer.unk in ids]
    if not doubtful:
        return
    from heedful.text.unknown_characters import describe_unknown

    if message := describe_unknown(tokenizer, doubtful, signs=False):
        warn(message)


def units(line: str, reading: Reading) -> list[TextPiece]:
    """Cut a line into the parts that a model reads at once."""
    mark = _MARK.search(line) if reading.split == "sentences" else None
    if mark is None or not _WORD.search(line, mark.end()):
        return [TextPiece(line)]
    from heedful.text.sentences import sentence_pieces

    return sentence_pieces(line, reading.language)


def _lines(text: str, reading: Reading) -> list[str]:
    """Return the lines of a text that are translated apart; none for white space alone."""
    if not text.strip():
        return []
    lines = clean(text).split("\n")
    return [line.strip() for line in ([" ".join(lines)] if reading.split == "none" else lines)]


def _segments(
    pieces: Sequence[TextPiece], ids: Sequence[Sequence[int]], line: int
) -> list[Segment]:
    """Return the segments of pieces that have tokens."""
    return [
        Segment(piece.text.strip(), tuple(each), line, piece.glued, piece.gap)
        for piece, each in zip(pieces, ids, strict=True)
        if each
    ]


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


def join_pieces(pieces: Sequence[TextPiece], translations: Sequence[str]) -> str:
    """Join translations of pieces.

    They are separated by as many spaces as the pieces, at least one, but by none inside a word and
    next to Chinese or Japanese.
    """
    joined = ""
    before: TextPiece | None = None
    for piece, translation in zip(pieces, translations, strict=True):
        translation = translation.strip()
        if not translation:  # an empty translation gets no space
            continue
        if before is not None and not (before.glued or joins_without_space(joined, translation)):
            # A tab would look like the end of a column, a wide space belongs to another script.
            joined += before.gap if before.gap.strip(" ") == "" and before.gap else " "
        joined += translation
        before = piece
    return joined


@dataclass(eq=False, repr=False)
class Translation(str):
    """A translated text, which is a `str`, with its scores and tokens.

    Attributes:
        score: natural-log probability, summed over the tokens and the end token of every segment.
        normalized_score: score that ranks translations; the mean over the text's segments.
        finished: False if a segment was cut at its maximum length.
        tokens: tokens of the translation as text, for display; names in place of parts that stay.
        token_scores: log-probability of every token, and of the end token after each segment.
        segment_lengths: number of tokens of each segment.
        others: next-best translations, best first.
        alignment: word alignment; None if it was not requested.
        required: number of required phrases, as by a glossary.
        missing: names of required phrases that the translation lacks.
        untranslated: sentences that were left as they are, as no place was found for their parts.
    """

    _text: InitVar[str] = ""
    _: KW_ONLY
    score: float = 0.0
    normalized_score: float = 0.0
    finished: bool = True
    tokens: tuple[str, ...] = ()
    token_scores: tuple[float, ...] = ()
    segment_lengths: tuple[int, ...] = ()
    others: tuple[Translation, ...] = ()
    alignment: Alignment | None = None
    required: int = 0
    missing: tuple[str, ...] = ()
    untranslated: tuple[str, ...] = ()

    def __new__(cls, text: str = "", **_: Any) -> Self:
        """Make a translation; by default the empty one of an empty text."""
        return super().__new__(cls, text)

    @property
    def n_best(self) -> tuple[Translation, ...]:
        """This translation and the next-best ones, best first."""
        return (self, *self.others)

    def __repr__(self) -> str:
        links = () if self.alignment is None else self.alignment.links
        aligned = " ".join(f"{source}-{target}" for source, target, _ in links)
        more = f", alignment='{aligned}'" if links else ""
        return f"Translation({str(self)!r}, score={self.score:.2f}{more})"

    def _repr_html_(self) -> str:
        from heedful.pipelines.display import translation_table  # for notebooks

        return translation_table(self)


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
    def of(
        cls,
        tokens: Sequence[str],
        token_scores: Sequence[float],
        alignment: Alignment | None = None,
    ) -> Self:
        """Make a target score whose `score` is the sum of the scores of tokens."""
        return cls(math.fsum(token_scores), tuple(tokens), tuple(token_scores), alignment)


_LINES_NAMED = 5  # a longer list of lines would hide their number


@dataclass(frozen=True)
class SegmentResult:
    """The result of a search for one segment.

    Args:
        hypotheses: hypotheses, best first, at least one.
        alignments: word alignment of each hypothesis; None if not requested.
        phrases: required phrases; a hypothesis has the indices of those that it lacks.
        texts: text of each hypothesis with its kept parts; None without kept parts.
        is_copied: True if the segment itself is the result, and no search was made.
        is_left: True if it should have been translated.
    """

    hypotheses: Sequence[Hypothesis]
    alignments: Sequence[Alignment] | None = None
    phrases: Sequence[RequiredPhrase] = ()
    texts: Sequence[str] | None = None
    is_copied: bool = False
    is_left: bool = False

    @classmethod
    def copy_of(cls, text: str, *, is_left: bool = False) -> SegmentResult:
        """Return the result for a segment that stays as it is.

        Args:
            text: text of the segment.
            is_left: True if it should have been translated.
        """
        copy = Hypothesis((), 0.0, 0.0, (0.0,), finished=True)
        return cls([copy], texts=[text], is_copied=True, is_left=is_left)


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
    text: CutText,
    found: Sequence[SegmentResult],
    tokenizer: TextTokenizer,
    *,
    is_aligned: bool = False,
) -> Translation:
    """Assemble the translation of a text and its next-best ones.

    Args:
        text: text in segments.
        found: result of each segment; the k-th best ones make up the text's k-th best translation.
        tokenizer: tokenizer of the target.
        is_aligned: True to join the alignments of segments, too.
    """
    if not found:
        return Translation()
    # Segments may have fewer than others, and a copy is always the same.
    ranks = min((len(each.hypotheses) for each in found if not each.is_copied), default=1)
    best, *others = (_ranked(text, found, rank, tokenizer, is_aligned) for rank in range(ranks))
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
    text: CutText,
    found: Sequence[SegmentResult],
    rank: int,
    tokenizer: TextTokenizer,
    is_aligned: bool,
) -> Translation:
    ranks = [0 if segment.is_copied else rank for segment in found]
    chosen = [segment.hypotheses[n] for segment, n in zip(found, ranks, strict=True)]
    texts = [
        segment.restored(tokenizer.decode(one.tokens)) if each.texts is None else each.texts[n]
        for segment, one, each, n in zip(text.segments, chosen, found, ranks, strict=True)
    ]
    alignment = None
    if is_aligned:
        from heedful.search.alignment import copied_alignment, join_alignments

        alignment = join_alignments(
            [
                copied_alignment(one) if each.alignments is None else each.alignments[n]
                for one, each, n in zip(texts, found, ranks, strict=True)
            ]
        )
    return Translation(
        text.join(texts),
        score=math.fsum(hypothesis.score for hypothesis in chosen),
        normalized_score=math.fsum(h.normalized_score for h in chosen) / len(chosen),
        finished=all(hypothesis.finished for hypothesis in chosen),
        tokens=tuple(
            piece for hypothesis in chosen for piece in tokenizer.pieces(hypothesis.tokens)
        ),
        token_scores=tuple(score for one in chosen for score in one.token_scores),
        segment_lengths=tuple(len(hypothesis.tokens) for hypothesis in chosen),
        alignment=alignment,
        required=sum(len(segment.phrases) for segment in found),
        missing=tuple(
            segment.phrases[place].name
            for segment, hypothesis in zip(found, chosen, strict=True)
            for place in hypothesis.missing
        ),
        untranslated=tuple(one for one, each in zip(texts, found, strict=True) if each.is_left),
    )
