"""Word alignment between a passage and its translation, sentence by sentence."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

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
    borders: Sequence[int] = (),
) -> LineUp:
    """Align a passage with its translation.

    Args:
        text: text of the passage.
        sentences: translated ranges, in order; characters between them are copied, except that
            spaces follow the script of the target.
        translations: translation of each range; a translation that differs only in white space is
            replaced by a copy of the range.
        breaks: offsets of spaces that stand for line breaks; line breaks are kept.
        borders: offsets, in order, at which words are divided, such as `IDError!` before `Error!`.
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
        of_source, of_target, weights = _divided(
            text[start:end],
            written,
            [border - start for border in borders],
            *aligned_words(text[start:end], written, alignment),
        )
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
    borders: Sequence[int],
    of_source: list[Span],
    of_target: list[Span],
    weights: npt.NDArray[np.float64],
) -> tuple[list[Span], list[Span], npt.NDArray[np.float64]]:
    """Divide the source words around some offsets, and their copies in the target.

    Args:
        source, target: texts of both.
        borders: offsets in the source, in order.
        of_source, of_target: ranges of the words.
        weights: [T, S], share of each target word that comes from each source word.
    """
    pieces: list[list[Span]] = []
    shares: list[float] = []
    rows: dict[int, int] = {}  # target word that is a copy, and its source word
    for column, (start, end) in enumerate(of_source):
        inside = borders[bisect_right(borders, start) : bisect_left(borders, end)]
        pieces.append([*pairwise([start, *inside, end])])
        words = [any(map(str.isalnum, source[a:b])) for a, b in pieces[-1]]
        # What comes from a word with punctuation comes from the word.
        shares += [(is_word or not any(words)) / max(1, sum(words)) for is_word in words]
        if inside and of_target:
            row = int(weights[:, column].argmax())
            first, last = of_target[row]
            is_copy = target[first:last].casefold() == source[start:end].casefold()
            if is_copy and last - first == end - start:
                rows[row] = column
    if not any(len(each) > 1 for each in pieces):
        return of_source, of_target, weights
    counts = [len(each) for each in pieces]
    starts = [0, *accumulate(counts)]
    repeats = [counts[rows[row]] if row in rows else 1 for row in range(len(of_target))]
    weights = np.repeat(np.repeat(weights, counts, axis=1) * shares, repeats, axis=0)
    divided: list[Span] = []
    for row, (first, last) in enumerate(of_target):
        if row not in rows:
            divided.append((first, last))
            continue
        column = rows[row]
        shift = first - of_source[column][0]
        for number, (start, end) in enumerate(pieces[column], start=starts[column]):
            weights[len(divided)] = 0.0
            weights[len(divided), number] = 1.0
            divided.append((start + shift, end + shift))
    return [span for each in pieces for span in each], divided, weights


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
