"""Word alignment between a passage and its translation, sentence by sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heedful.search.alignment import Alignment
from heedful.text.pretokenization import joins_without_space, word_spans

Span = tuple[int, int]


@dataclass(frozen=True)
class TranslatedSentence:
    """A translation of a sentence.

    Args:
        text: the translation.
        alignment: word alignment; without it words are assumed to keep their order.
    """

    text: str
    alignment: Alignment | None = None


@dataclass(frozen=True)
class Region:
    """A range of a passage, and the corresponding range of the translation.

    Args:
        source, target: ranges of characters.
        is_copy: true if both have the same characters.
        source_words, target_words: ranges of word indices.
    """

    source: Span
    target: Span
    is_copy: bool
    source_words: Span
    target_words: Span


@dataclass(frozen=True)
class LineUp:
    """A passage and its translation.

    Args:
        source, target: texts of both.
        source_words, target_words: character ranges of their words.
        weights: [T, S], share of each target word that comes from each source word; a row sums
            to at most 1.
        regions: regions from the first character to the last.
    """

    source: str
    target: str
    source_words: tuple[Span, ...]
    target_words: tuple[Span, ...]
    weights: npt.NDArray[np.float64]
    regions: tuple[Region, ...]

    def copied(self, offset: int, *, after: bool) -> int | None:
        """Return the offset in the translation of a copied character; None if it was not copied.

        Args:
            offset: offset in the source.
            after: true for the character after the offset, false for the one before it.
        """
        for region in self.regions:
            start, end = region.source
            inside = start <= offset < end if after else start < offset <= end
            if region.is_copy and inside:
                return region.target[0] + offset - start
        return None


def line_up(
    text: str,
    sentences: Sequence[Span],
    translations: Sequence[TranslatedSentence],
    breaks: Collection[int] = (),
) -> LineUp:
    """Align a passage with its translation.

    Args:
        text: text of the passage.
        sentences: ranges that were translated, in order; characters between them are copied, but
            spaces are those of the target's script.
        translations: translation of each range; a copy if only white space differs.
        breaks: offsets of spaces that stand for line breaks, which stay.
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
        of_source, of_target, weights = _words(text[start:end], written, piece)
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


def _gap(text: str, span: Span, left: str, right: str) -> TranslatedSentence | None:
    """Return the space between two translations; None if it is the source's."""
    start, end = span
    spaceless = joins_without_space(left, right)
    if text[start:end].strip(" ") or spaceless == joins_without_space(text[:start], text[end:]):
        return None
    return TranslatedSentence("" if spaceless else " ")


def one_space(text: str) -> str:
    """Return a text with single spaces in place of white space, as a translator gets it."""
    return " ".join(text.split())


def _words(
    source: str, target: str, translation: TranslatedSentence | None
) -> tuple[list[Span], list[Span], npt.NDArray[np.float64]]:
    """Return the words of a sentence and its translation, and weights between them."""
    alignment = None if translation is None else translation.alignment
    if alignment is not None:
        of_source = _locate(alignment.source_words, source)
        of_target = _locate(alignment.target_words, target)
        if of_source is not None and of_target is not None:
            shape = (len(of_target), len(of_source))
            return of_source, of_target, np.array(alignment.matrix).reshape(shape)
    of_source, of_target = word_spans(source), word_spans(target)
    weights = np.zeros((len(of_target), len(of_source)))
    if of_source:
        for row in range(len(of_target)):  # the diagonal: words at the same relative position
            weights[row, int((row + 0.5) * len(of_source) / len(of_target))] = 1.0
    return of_source, of_target, weights


def _locate(words: Sequence[str], text: str) -> list[Span] | None:
    """Return the ranges of words in a text, or None if they do not all occur in order."""
    spans: list[Span] = []
    done = 0
    for word in words:
        start = text.find(word, done)
        if start < 0:
            return None
        done = start + len(word)
        spans.append((start, done))
    return spans
