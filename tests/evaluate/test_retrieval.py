"""Recall of retrieval, compared with sorting by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.evaluate import retrieval
from heedful.evaluate.retrieval import retrieval_recall


def by_hand(cosines: np.ndarray, right: np.ndarray, rank: int) -> float:
    """The share of rows with a right column among the first; what ties goes before it."""
    found = []
    for row, own in zip(cosines, right, strict=True):
        best = max(c for c, mine in zip(row, own, strict=True) if mine)
        before = sum(c >= best for c, mine in zip(row, own, strict=True) if not mine)
        found.append(before < rank)
    return sum(found) / len(found)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 9), st.sampled_from([2, 1024]))
def test_both_ways_are_those_of_sorting(seed: int, texts: int, more: int, at_once: int) -> None:
    draw = np.random.default_rng(seed)
    numbers = np.concatenate([np.arange(texts), draw.integers(0, texts, more)])
    # Few values, so that cosines are often equal.
    images, said = (draw.integers(-1, 2, (n, 2)).astype(np.float32) for n in (len(numbers), texts))
    right = numbers[:, None] == np.arange(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "_AT_ONCE", at_once)
        found = retrieval_recall(images, said, numbers, (1, 3))
    for rank in (1, 3):
        # One text is right for an image, several images may be for a text.
        assert found[f"text_recall_at_{rank}"] == by_hand(images @ said.T, right, rank)
        assert found[f"image_recall_at_{rank}"] == by_hand(said @ images.T, right.T, rank)


def test_vectors_that_are_all_alike_find_nothing() -> None:
    alike = np.ones((4, 2), np.float32)
    found = retrieval_recall(alike, alike[:2], np.array([0, 1, 0, 1]), (1,))
    assert found == {"text_recall_at_1": 0.0, "image_recall_at_1": 0.0}
