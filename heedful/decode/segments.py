"""Texts as the model reads them: cleaned, in lines, in pieces that are short enough."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heedful.decode.splitting import Piece, join_pieces, split_text
from heedful.text.protocol import TextTokenizer

Warn = Callable[[str], None]

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Segment:
    """A piece of a text that is translated at once.

    Args:
        text: the piece, without space around it.
        ids: its source tokens, at least one.
        line: number of the line of the text it belongs to, from 0.
        glued: its end is inside a word.
    """

    text: str
    ids: tuple[int, ...]
    line: int
    glued: bool


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
        lines: list[list[tuple[Piece, str]]] = [[] for _ in range(self.lines)]
        for segment, translation in zip(self.segments, translations, strict=True):
            piece = Piece(segment.text, segment.glued)
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
        warn: told about every text with a line that is too long to be translated at once.
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
        return _REPLACEMENT
    if unicodedata.category(character) == "Cc" and character not in "\t\n":
        return " "
    return character


def _joined(pairs: Sequence[tuple[Piece, str]]) -> str:
    if len(pairs) == 1:  # as the model wrote it
        return pairs[0][1]
    return join_pieces([piece for piece, _ in pairs], [text for _, text in pairs])
