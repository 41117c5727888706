"""Recall of retrieval between images and the texts that describe them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

RANKS = (1, 5, 10)
"""Usual numbers of results among which a right one counts."""
_AT_ONCE = 1024  # rows of cosines in memory

Vectors = npt.NDArray[np.float32]


def retrieval_recall(
    images: Vectors, texts: Vectors, numbers: npt.NDArray[np.int64], ranks: Sequence[int] = RANKS
) -> dict[str, float]:
    """Return the recall of texts for images, and of images for texts, 0 to 1.

    `text_recall_at_5` is the share of images whose text is among the five nearest of all different
    texts. `image_recall_at_5` is the share of texts for which one of their images is among the five
    nearest images. Of equal cosines the right one counts as the last.

    Args:
        images: vectors [N, D] of length 1.
        texts: vectors [T, D] of length 1 of different texts, each of an image at least.
        numbers: number of each image's text [N].
        ranks: numbers of results.
    """
    of_texts, of_images = [], []
    for first in range(0, len(images), _AT_ONCE):
        cosines = images[first : first + _AT_ONCE] @ texts.T
        right = np.take_along_axis(cosines, numbers[first : first + _AT_ONCE, None], 1)
        of_texts.append((cosines >= right).sum(1))
    for first in range(0, len(texts), _AT_ONCE):
        cosines = texts[first : first + _AT_ONCE] @ images.T
        own = numbers[None] == np.arange(first, first + len(cosines))[:, None]
        best = np.where(own, cosines, -np.inf).max(1, keepdims=True)
        of_images.append(1 + (~own & (cosines >= best)).sum(1))
    found = {"text": np.concatenate(of_texts), "image": np.concatenate(of_images)}
    return {
        f"{kind}_recall_at_{rank}": float((places <= rank).mean())
        for kind, places in found.items()
        for rank in ranks
    }
