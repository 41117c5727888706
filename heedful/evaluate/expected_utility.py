"""Expected chrF of each of several translations, with all of them as references.

Minimum Bayes risk decoding (Kumar and Byrne 2004; Eikema and Aziz 2020) returns the sample that
agrees most with all samples. chrF (Popović 2015) is that of sacreBLEU: character n-grams of up to
6 without white space, β = 2, precision and recall averaged over orders first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ORDERS = 6
_RECALL = 2.0**2
"""β², the weight of recall relative to precision."""


def expected_chrf(texts: Sequence[str]) -> list[float]:
    """Return the mean chrF of each text against all texts, itself included, 0 to 100.

    Args:
        texts: sampled translations of one sentence; repetitions count.
    """
    # The matrix is quadratic, and confident models repeat samples: each is scored once.
    counts = Counter(texts)
    scores = chrf_matrix(list(counts))
    weights = np.array(list(counts.values())) / len(texts)
    utility = dict(zip(counts, (scores @ weights).tolist(), strict=True))
    return [utility[text] for text in texts]


def chrf_matrix(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return chrF of each text (row) against each text as the reference (column) [n, n]."""
    compact = ["".join(text.split()) for text in texts]
    shape = (len(texts), len(texts))
    precision, recall, orders = (np.zeros(shape) for _ in range(3))
    for order in range(1, ORDERS + 1):
        table = _count_ngrams(compact, order)
        totals = table.sum(1)
        # Row by row: all at once would take n² times the number of n-grams.
        matches = np.stack([np.minimum(row, table).sum(1) for row in table])
        both = (totals[:, None] > 0) & (totals[None, :] > 0)  # only n-grams that both texts have
        precision += np.where(both, matches / np.maximum(totals[:, None], 1), 0.0)
        recall += np.where(both, matches / np.maximum(totals[None, :], 1), 0.0)
        orders += both
    precision, recall = (values / np.maximum(orders, 1) for values in (precision, recall))
    divisor = _RECALL * precision + recall
    return 100 * (1 + _RECALL) * precision * recall / np.where(divisor > 0, divisor, 1.0)


def _count_ngrams(texts: Sequence[str], order: int) -> npt.NDArray[np.int64]:
    """Count the n-grams of each text [n, different n-grams]."""
    columns: dict[str, int] = {}
    places: list[tuple[int, int]] = []
    for row, text in enumerate(texts):
        for start in range(len(text) - order + 1):
            column = columns.setdefault(text[start : start + order], len(columns))
            places.append((row, column))
    # At least one column, so that texts without n-grams of this order sum to 0.
    table = np.zeros((len(texts), max(1, len(columns))), dtype=np.int64)
    if places:
        np.add.at(table, tuple(np.array(places).T), 1)
    return table
