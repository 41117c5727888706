"""Word alignment of a source and its translation."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.text.pretokenization import MARK, word_spans
from heedful.text.tokenizer import TextTokenizer

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Alignment:
    """Words and how much each target word attended to each source word.

    Args:
        source_words: words of the source.
        target_words: words of the translation.
        matrix: weights, a row for each target word and a column for each source word. A row sums to
            at most 1; the rest is attention to the end token of the source.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    matrix: Matrix

    @property
    def links(self) -> tuple[tuple[int, int, float], ...]:
        """The strongest link of each target word: (source index, target index, weight).

        A target word without attention to any word has no link.
        """
        best = [max(range(len(row)), key=row.__getitem__, default=None) for row in self.matrix]
        # Words of parts that were not translated together have weights of 0, and no links.
        return tuple(
            (source, target, self.matrix[target][source])
            for target, source in enumerate(best)
            if source is not None and self.matrix[target][source] > 0.0
        )

    def plain(self) -> dict[str, Any]:
        """Words, links between them and weights as JSON data."""
        return {
            "source": list(self.source_words),
            "target": list(self.target_words),
            "links": [[source, target] for source, target, _ in self.links],
            "weights": [[round(weight, 4) for weight in row] for row in self.matrix],
        }


def copied_alignment(text: str) -> Alignment:
    """Return the alignment of a text with itself."""
    words = tuple(text[start:end] for start, end in word_spans(text))
    rows = range(len(words))
    return Alignment(words, words, tuple(tuple(float(a == b) for b in rows) for a in rows))


def join_alignments(parts: Sequence[Alignment]) -> Alignment:
    """Join the alignments of a text's parts, whose words attend only to their own part."""
    if len(parts) == 1:
        return parts[0]
    source = tuple(word for part in parts for word in part.source_words)
    target = tuple(word for part in parts for word in part.target_words)
    rows: list[tuple[float, ...]] = []
    before = 0
    for part in parts:
        after = len(source) - before - len(part.source_words)
        # Block-diagonal: zeros for the source words of earlier and of later parts.
        rows += ((0.0,) * before + row + (0.0,) * after for row in part.matrix)
        before += len(part.source_words)
    return Alignment(source, target, tuple(rows))


Matrices = npt.NDArray[np.float64]


def align(
    weights: Matrices,
    source: tuple[TextTokenizer, Sequence[int], str],
    target: tuple[TextTokenizer, Sequence[int], str],
) -> Alignment:
    """Gather attention between tokens into attention between words.

    Rows of a target word's tokens are averaged, columns of a source word's tokens are added.

    Args:
        weights: attention [T, S] of target tokens to the encoder's tokens, special ones included;
            further rows and columns are ignored.
        source: tokenizer, ids and text of the source; words are taken from the text.
        target: tokenizer, ids and text of the translation.
    """
    source_words, source_word_of = token_words(*source)
    target_words, target_word_of = token_words(*target)
    first = len(source[0].first)  # tokens that the tokenizer puts before every source
    token_weights = weights[: len(target_word_of), first : first + len(source_word_of)]
    # Sums over source tokens and means over target tokens: a row stays a distribution.
    columns = _sum_columns(token_weights, source_word_of, len(source_words))
    rows = _sum_columns(columns.T, target_word_of, len(target_words)).T
    # A word without tokens has a row of zeros, not of 0 / 0.
    counts = np.bincount(target_word_of, minlength=len(target_words)).clip(min=1)
    matrix = (rows / counts[:, None]).tolist()
    return Alignment(tuple(source_words), tuple(target_words), tuple(map(tuple, matrix)))


def _sum_columns(tokens: Matrices, word_of: Sequence[int], words: int) -> Matrices:
    """Sum the columns [R, tokens] of each word to [R, words]."""
    result = np.zeros((len(tokens), words))
    if word_of:
        # Tokens of a word are adjacent, so runs are summed; `reduceat` refuses an empty list.
        starts = [0, *(i for i in range(1, len(word_of)) if word_of[i] != word_of[i - 1])]
        result[:, [word_of[i] for i in starts]] = np.add.reduceat(tokens, starts, axis=1)
    return result


def token_words(
    tokenizer: TextTokenizer, ids: Sequence[int], text: str
) -> tuple[list[str], list[int]]:
    """Return the words of a text and, for each of its tokens, the index of its word.

    In scripts without spaces a word is a character, or all characters of a token.

    Args:
        tokenizer: tokenizer of the ids.
        ids: token ids of the text, without special tokens.
        text: the text. Where it has as many words as the decoded ids, its words are returned in
            their original spelling.
    """
    # Words are found in the decoded text: normalisation and unknown characters change offsets.
    decoded = tokenizer.decode(ids)
    spans = word_spans(decoded)
    if not spans:
        return [], []
    word_ranges = _word_ranges(tokenizer, ids, decoded, spans)
    joined = [False] * len(spans)  # True for a word that shares a token with the one before it
    for first, last in word_ranges:
        if last > first:
            joined[first + 1 : last + 1] = [True] * (last - first)
    # The loop begins at 1, as no word precedes the first one.
    number = [*itertools.accumulate(not with_previous for with_previous in joined)]
    if text != decoded:
        written = word_spans(text)
        if len(written) == len(spans):
            decoded, spans = text, written
    starts = [start for (start, _), inner in zip(spans, joined, strict=True) if not inner]
    ends = [end for (_, end), inner in zip(spans, [*joined[1:], False], strict=True) if not inner]
    words = [decoded[start:end] for start, end in zip(starts, ends, strict=True)]
    return words, [number[first] - 1 for first, _ in word_ranges]


def _word_ranges(
    tokenizer: TextTokenizer, ids: Sequence[int], decoded: str, spans: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the first and last word of each token's characters; the next word if it has none."""
    word_at: list[int] = []  # word of each character; of a space the word that follows
    for word, (_, end) in enumerate(spans):
        word_at += [word] * (end - len(word_at))
    # There is one entry more than characters, as a token without any may stand at the very end.
    word_at += [len(spans) - 1] * (len(decoded) + 1 - len(word_at))
    ranges: list[tuple[int, int]] = []
    start = 0
    for end in _ends(tokenizer, ids, decoded):
        last = max(start, end - 1)
        # A token may end with the space before the next word, which is not part of it.
        while last > start and decoded[last].isspace():
            last -= 1
        ranges.append((word_at[start], word_at[last]))
        start = max(start, end)
    return ranges


def _ends(tokenizer: TextTokenizer, ids: Sequence[int], decoded: str) -> list[int]:
    """Return the number of characters that are decoded up to each token."""
    pieces = tokenizer.pieces(ids)
    joined = "".join(pieces).replace(MARK, " ")
    before = len(joined) - len(decoded)  # 1 for the space that marks the first word
    if before in (0, 1) and joined == " " * before + decoded:
        return [max(0, end - before) for end in itertools.accumulate(map(len, pieces))]
    # Bytes of a character or removed spaces: decode every prefix, in quadratic time.
    return [len(tokenizer.decode(ids[:count])) for count in range(1, len(ids) + 1)]


_SHADES = " ░▒▓█"
_CELL = 2  # columns of a terminal: a wide character, and nearly a square


def draw_alignment(alignment: Alignment, *, width: int = 100) -> str:
    """Draw a table of shades: source words along the top, target words down the side.

    Source words are written downwards. A table that is too wide is cut into several.

    Args:
        alignment: alignment to draw.
        width: width of the terminal in columns.
    """
    if not alignment.source_words or not alignment.target_words:
        return ""
    margin = max(map(display_width, alignment.target_words))
    at_once = max(1, (width - margin - 1) // (_CELL + 1))
    tables = [
        _table(alignment, margin, start, start + at_once)
        for start in range(0, len(alignment.source_words), at_once)
    ]
    return "\n\n".join(tables)


def _table(alignment: Alignment, margin: int, start: int, stop: int) -> str:
    tall = max(map(len, alignment.source_words[start:stop]))
    heads = [word.rjust(tall) for word in alignment.source_words[start:stop]]
    lines = [
        " " * margin
        + "".join(f" {head[row]}{' ' * (_CELL - display_width(head[row]))}" for head in heads)
        for row in range(tall)
    ]
    for word, weights in zip(alignment.target_words, alignment.matrix, strict=True):
        cells = "".join(" " + _shade(weight) * _CELL for weight in weights[start:stop])
        lines.append(" " * (margin - display_width(word)) + word + cells)
    return "\n".join(line.rstrip() for line in lines)


def _shade(weight: float) -> str:
    level = int(min(max(weight, 0.0), 1.0) * len(_SHADES))
    return _SHADES[min(level, len(_SHADES) - 1)]


def display_width(text: str) -> int:
    """Return the width of a text on a terminal in columns."""
    return sum(
        # Combining marks and invisible format characters take no column.
        0
        if unicodedata.category(c) in ("Mn", "Me", "Cf")
        else 1 + (unicodedata.east_asian_width(c) in ("W", "F"))
        for c in text
    )
