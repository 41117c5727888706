"""Word alignment between a passage and its translation, sentence by sentence."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heedful.pipelines.aligned_text import LineUp, Region, Span, aligned_words
from heedful.search.alignment import Alignment
from heedful.text.pretokenization import joins_without_space


@dataclass(frozen=True)
class TranslatedSentence:
    """A translation of a sentence.

    Args:
        text: the translation.
        alignment: word alignment; without it words are assumed to keep their order.
    """

    text: str
    alignment: Alignment | None = None


def line_up(
    text: str,
    sentences: Sequence[Span],
    translations: Sequence[TranslatedSentence],
    breaks: Collection[int] = (),
    borders: Collection[int] = (),
) -> LineUp:
    """Align a passage with its translation.

    Args:
        text: text of the passage.
        sentences: translated ranges, in order; characters between them are copied, except that
            spaces follow the script of the target.
        translations: translation of each range; a translation that differs only in white space is
            replaced by a copy of the range.
        breaks: offsets of spaces that stand for line breaks; line breaks are kept.
        borders: offsets at which words are divided, such as `Error!` and `ID` in `IDError!`.
    """
    pieces: list[tuple[Span, TranslatedSentence | None]] = []
    done, before = 0, ""
    for (start, end), translation in zip(sentences, translations, strict=True):
        gap = None
        if done and not any(done <= each < start for each in breaks):
            gap = _gap(text, (done, start), before, translation.text)
        pieces.append(((done, start), gap))
        before = translation.text
        is_copy = translation.text == one_space(text[start:end])
        pieces.append(((start, end), None if is_copy else translation))
        done = end
    pieces.append(((done, len(text)), None))
    target = ""
    source_words: list[Span] = []
    target_words: list[Span] = []
    regions: list[Region] = []
    blocks: list[npt.NDArray[np.float64]] = []
    for (start, end), piece in pieces:
        written = text[start:end] if piece is None else piece.text
        if start == end and not written:
            continue
        alignment = None if piece is None else piece.alignment
        words = aligned_words(text[start:end], written, alignment)
        for border in borders:
            words = _divided(text[start:end], written, border - start, *words)
        of_source, of_target, weights = words
        regions.append(
            Region(
                (start, end),
                (len(target), len(target) + len(written)),
                piece is None,
                (len(source_words), len(source_words) + len(of_source)),
                (len(target_words), len(target_words) + len(of_target)),
            )
        )
        source_words += [(a + start, b + start) for a, b in of_source]
        target_words += [(a + len(target), b + len(target)) for a, b in of_target]
        blocks.append(weights)
        target += written
    matrix = np.zeros((len(target_words), len(source_words)))
    for region, block in zip(regions, blocks, strict=True):
        matrix[slice(*region.target_words), slice(*region.source_words)] = block
    return LineUp(text, target, tuple(source_words), tuple(target_words), matrix, tuple(regions))


def _divided(
    source: str,
    target: str,
    border: int,
    of_source: list[Span],
    of_target: list[Span],
    weights: npt.NDArray[np.float64],
) -> tuple[list[Span], list[Span], npt.NDArray[np.float64]]:
    """Divide the source word around an offset, and the target word if it is a copy.

    Args:
        source, target: texts of both.
        border: offset in the source.
        of_source, of_target: ranges of the words.
        weights: [T, S], share of each target word that comes from each source word.
    """
    column = bisect_right(of_source, border, key=lambda span: span[1])
    if column == len(of_source) or of_source[column][0] >= border or not len(of_target):
        return of_source, of_target, weights
    start, end = of_source[column]
    of_source[column : column + 1] = [(start, border), (border, end)]
    # What comes from a word with punctuation comes from the word.
    words = [any(map(str.isalnum, source[a:b])) for a, b in of_source[column : column + 2]]
    shares = [0.5, 0.5] if words[0] == words[1] else words
    weights = np.insert(weights, column, weights[:, column], axis=1)
    weights[:, column : column + 2] *= shares
    row = int(weights[:, column : column + 2].sum(1).argmax())
    first, last = of_target[row]
    if (
        target[first:last].casefold() == source[start:end].casefold()
        and last - first == end - start
    ):
        middle = first + border - start
        of_target[row : row + 1] = [(first, middle), (middle, last)]
        weights = np.insert(weights, row, weights[row], axis=0)
        for half in (0, 1):
            weights[row + half] = 0.0
            weights[row + half, column + half] = 1.0
    return of_source, of_target, weights


def _gap(text: str, span: Span, left: str, right: str) -> TranslatedSentence | None:
    """Return the space between two translations; None to copy the space of the source."""
    start, end = span
    spaceless = joins_without_space(left, right)
    if text[start:end].strip(" ") or spaceless == joins_without_space(text[:start], text[end:]):
        return None
    return TranslatedSentence("" if spaceless else " ")


def one_space(text: str) -> str:
    """Return a text with single spaces in place of white space, as a translator gets it."""
    return " ".join(text.split())
