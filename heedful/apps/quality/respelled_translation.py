"""Edits of translations and their sources, with adapted alignments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from heedful.apps.quality.respelling import Respelling, Span
from heedful.pipelines.text_splitting import Translation
from heedful.search.alignment import Alignment
from heedful.text.pretokenization import word_spans


def every(translation: Translation, change: Callable[[Translation], Translation]) -> Translation:
    """Apply a change to a translation and its next-best translations."""
    best, *others = map(change, translation.n_best)
    best.others = tuple(others)
    return best


def respelled(translation: Translation, respelling: Respelling) -> Translation:
    """Return a translation after edits of its text."""
    if not respelling.edits:
        return translation
    result = Translation(respelling.result, **vars(translation))
    if translation.alignment is not None:
        result.alignment = realigned(translation.alignment, target=respelling)
    return result


def with_source(translation: Translation, respelling: Respelling) -> Translation:
    """Return a translation aligned with its source before the source's edits."""
    if not respelling.edits or translation.alignment is None:
        return translation
    result = Translation(translation, **vars(translation))
    result.alignment = realigned(translation.alignment, source=respelling)
    return result


def realigned(
    alignment: Alignment, *, source: Respelling | None = None, target: Respelling | None = None
) -> Alignment:
    """Return an alignment between the words of edited texts.

    If a source word becomes several words, they share its weight; if a target word replaces several
    words, it gets their mean weight.

    Args:
        alignment: alignment between the edited source and the target before its edits.
        source: edits of the source before translation, which are undone; none if unset.
        target: edits of the target; none if unset.
    """
    weights = np.array(alignment.matrix, float).reshape(
        len(alignment.target_words), len(alignment.source_words)
    )
    source_words, target_words = alignment.source_words, alignment.target_words
    if source is not None:
        spans = word_spans(source.text)
        source_words = tuple(source.text[a:b] for a, b in spans)
        old = _locate(alignment.source_words, source.result)
        shares = _overlaps([source.origin(span) for span in old], spans)
        weights = weights @ (shares / shares.sum(1, keepdims=True).clip(1))
    if target is not None:
        spans = word_spans(target.result)
        target_words = tuple(target.result[a:b] for a, b in spans)
        old = _locate(alignment.target_words, target.text)
        shares = _overlaps([target.origin(span) for span in spans], old)
        weights = (shares / shares.sum(1, keepdims=True).clip(1)) @ weights
    return Alignment(source_words, target_words, tuple(map(tuple, weights.tolist())))


def _overlaps(left: Sequence[Span], right: Sequence[Span]) -> npt.NDArray[np.float64]:
    """Return a matrix with 1 where two spans overlap, else 0."""
    a, b = (np.array(spans, int).reshape(-1, 2) for spans in (left, right))
    shared = np.minimum(a[:, None, 1], b[None, :, 1]) - np.maximum(a[:, None, 0], b[None, :, 0])
    result: npt.NDArray[np.float64] = (shared > 0).astype(float)
    return result


def _locate(words: Sequence[str], text: str) -> list[Span]:
    """Return the ranges of consecutive words in a text."""
    spans: list[Span] = []
    done = 0
    for word in words:
        start = max(text.find(word, done), done)
        done = start + len(word)
        spans.append((start, done))
    return spans
