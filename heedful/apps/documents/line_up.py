"""Word alignment between a passage and its translation, sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heedful.pipelines.aligned_text import LineUp, Region, Span, aligned_words
from heedful.search.alignment import Alignment


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
    text: str, sentences: Sequence[Span], translations: Sequence[TranslatedSentence]
) -> LineUp:
    """Align a passage with its translation.

    Args:
        text: text of the passage.
        sentences: ranges that were translated, in order; characters between them are copied.
        translations: translation of each range; a copy if only white space differs.
    """
    pieces: list[tuple[Span, TranslatedSentence | None]] = []
    done = 0
    for (start, end), translation in zip(sentences, translations, strict=True):
        pieces.append(((done, start), None))
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
        if start == end:
            continue
        written = text[start:end] if piece is None else piece.text
        alignment = None if piece is None else piece.alignment
        of_source, of_target, weights = aligned_words(text[start:end], written, alignment)
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


def one_space(text: str) -> str:
    """Return a text with single spaces in place of white space, as a translator gets it."""
    return " ".join(text.split())
