"""Which pairs can be trained on, and why the others cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from heedful.data.encoded import EncodedPairs, text_digest
from heedful.data.spec import DataSpec

Indices = npt.NDArray[np.int64]
Reason = Literal["empty source", "empty target", "both empty", "too long", "length ratio"]


@dataclass(frozen=True)
class Selection:
    """The pairs to use and those left out.

    Args:
        kept: numbers of the pairs to use, ascending.
        left_out: numbers of the others by reason; every reason is a key.
    """

    kept: Indices
    left_out: dict[Reason, Indices]


def select_pairs(pairs: EncodedPairs, spec: DataSpec) -> Selection:
    """Leave out pairs with an empty side, over-long ones, and lopsided ones if a limit is set.

    A side is too long past `spec.max_length` tokens, or when it alone would not fit a batch.

    Args:
        pairs: the encoded corpora.
        spec: the limits.
    """
    source_empty = _empty(pairs, "source")
    target_empty = _empty(pairs, "target")
    longer = np.maximum(pairs.source_lengths, pairs.target_lengths)
    shorter = np.minimum(pairs.source_lengths, pairs.target_lengths)
    limit = min(spec.max_length, spec.budget - 1)
    lopsided = np.zeros(len(pairs), dtype=bool)
    if spec.max_length_ratio is not None:
        lopsided = longer > spec.max_length_ratio * shorter
    tests: dict[Reason, npt.NDArray[np.bool_]] = {
        "both empty": source_empty & target_empty,
        "empty source": source_empty,
        "empty target": target_empty,
        "too long": longer > limit,
        "length ratio": lopsided,
    }
    remaining = np.ones(len(pairs), dtype=bool)
    left_out: dict[Reason, Indices] = {reason: np.empty(0, np.int64) for reason in get_args(Reason)}
    for reason, fails in tests.items():
        left_out[reason] = np.flatnonzero(fails & remaining)
        remaining &= ~fails
    return Selection(np.flatnonzero(remaining), left_out)


def _empty(pairs: EncodedPairs, side: Literal["source", "target"]) -> npt.NDArray[np.bool_]:
    """Which pairs have nothing but white space on a side."""
    blank = np.uint64(text_digest(""))
    flags = [np.asarray(corpus.digests(side) == blank) for corpus in pairs.corpora]
    return np.concatenate(flags) if flags else np.zeros(0, dtype=bool)
