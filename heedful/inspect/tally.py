"""Sums over rows of attention, which the measures of heads are computed from; exact for any batch.

Legend: B sentences, H heads, C kinds of key, Lq queries, Lk keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.inspect.result import Result


@dataclass(frozen=True)
class Share(Result):
    """The share of a head's attention on keys of some kind.

    Args:
        share: mean over the rows in which such a key can be visible_keys.
        baseline: the share of attention spread evenly over the keys that those rows see.
        error: standard error of the share, from its means in each sentence; infinite for fewer than
            two sentences.
        rows: number of these rows.
        sentences: number of sentences with such rows.
    """

    share: float
    baseline: float
    error: float
    rows: int
    sentences: int

    @property
    def evidence(self) -> float:
        """Evidence from 0 for even attention to 1 for all of it, less two standard errors."""
        if self.baseline >= 1.0 or not math.isfinite(self.error):
            return 0.0
        return max(0.0, (self.share - 2 * self.error - self.baseline) / (1.0 - self.baseline))

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON data; an error that is not known is null."""
        return {**super().plain(), "error": self.error if math.isfinite(self.error) else None}


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a batch, before any attention is known.

    Args:
        real: [B, Lq] bool, queries that are no padding.
        visible: [B, H or 1, Lq, Lk] bool, the keys each query sees.
        offset: [B, Lq, Lk] float64, key position minus query position; None across sequences.
        kinds: [B, C, Lq, Lk] bool, for each kind of key.
    """

    real: Tensor
    visible: Tensor
    offset: Tensor | None
    kinds: Tensor


class Tally:
    """Running sums of one layer's heads.

    Args:
        num_heads: H.
        kinds: names of the kinds of key.
    """

    def __init__(self, num_heads: int, kinds: Sequence[str]) -> None:
        self.kinds = tuple(kinds)
        double = torch.float64
        self.rows = 0
        self.sentences = 0
        # Of each head: entropy, its largest value, distance, offset, largest weight.
        self.sums = torch.zeros(5, num_heads, dtype=double)
        # Of each kind and head: shares, baselines, rows, and over sentences: number, means, squares
        self.shares = torch.zeros(6, len(self.kinds), num_heads, dtype=double)

    def add(self, weights: Tensor, rows: Rows) -> None:
        """Count a batch.

        Args:
            weights: [B, H, Lq, Lk]; rows that see nothing are not counted.
            rows: of the same batch.
        """
        weights = weights.detach().double().cpu()
        visible = rows.visible.expand(weights.shape)
        visible_keys = visible.sum(-1)  # [B, H, Lq]
        counted = rows.real[:, None] & (visible_keys > 0)
        self.rows += int(counted[:, 0].sum())
        self.sentences += int(counted[:, 0].any(-1).sum())
        entropy = -torch.special.xlogy(weights, weights).sum(-1)
        offset = torch.zeros_like(entropy)
        distance = offset
        if rows.offset is not None:
            offset = (weights * rows.offset[:, None]).sum(-1)
            distance = (weights * rows.offset[:, None].abs()).sum(-1)
        confidence = weights.amax(-1)
        largest = visible_keys.clamp(min=1).double().log()
        values = torch.stack([entropy, largest, distance, offset, confidence])
        self.sums += (values * counted).sum((1, 3))
        for number in range(len(self.kinds)):
            self._add_share(
                number, weights, visible & rows.kinds[:, number, None], visible_keys, counted
            )

    def _add_share(
        self, kind: int, weights: Tensor, keys: Tensor, visible_keys: Tensor, counted: Tensor
    ) -> None:
        present = counted & keys.any(-1)  # [B, H, Lq]
        share = (weights * keys).sum(-1) * present
        baseline = keys.sum(-1) / visible_keys.clamp(min=1) * present
        rows = present.sum(-1)  # [B, H]
        mean = share.sum(-1) / rows.clamp(min=1)
        sums = self.shares[:, kind]
        sums[0] += share.sum((0, 2))
        sums[1] += baseline.sum((0, 2))
        sums[2] += rows.sum(0)
        sums[3] += (rows > 0).sum(0)
        sums[4] += mean.sum(0)
        sums[5] += mean.square().sum(0)

    def means(self, head: int) -> tuple[float, float, float, float, float]:
        """Return means over rows: entropy, the largest it can be, distance, offset, confidence."""
        entropy, largest, distance, offset, confidence = (
            self.sums[:, head] / max(self.rows, 1)
        ).tolist()
        return entropy, largest, distance, offset, confidence

    def share(self, kind: str, head: int) -> Share | None:
        """Return the share of a kind; None where no row sees a key of it."""
        total, base, rows, sentences, means, squares = self.shares[
            :, self.kinds.index(kind), head
        ].tolist()
        if not rows:
            return None
        error = math.inf
        if sentences > 1:
            variance = max(0.0, squares - means**2 / sentences) / (sentences - 1)
            error = math.sqrt(variance / sentences)
        return Share(total / rows, base / rows, error, int(rows), int(sentences))
