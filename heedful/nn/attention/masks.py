"""Attention masks: small values, functions of positions, True where a key is visible.

Masks are hashable, combine exactly with `&` and `|`, bound the key positions that a range of
queries could see (so that kernels skip the rest), and describe themselves in a sentence.
Patterns with gaps are in `sparse_masks`. Shapes: B batch, H heads, Lq queries, Lk keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heedful.nn.attention import sparse_masks as sparse
from heedful.nn.attention.mask_algebra import (
    FAR,
    AllOf,
    AnyOf,
    Band,
    Causal,
    Everything,
    Intervals,
    Mask,
    SameSegment,
    TokenPositions,
)
from heedful.nn.mask_spec import MaskSpec
from heedful.nn.positions import Positions

__all__ = [
    "FAR",
    "AllOf",
    "AnyOf",
    "Causal",
    "Everything",
    "Intervals",
    "Mask",
    "Prefix",
    "SameSegment",
    "TokenPositions",
    "Window",
    "build_mask",
    "picture",
]


@dataclass(frozen=True)
class Window(Mask):
    """Keys at a distance of less than `size` are visible, on both sides (Beltagy 2020, section 3).

    `Causal() & Window(size)` shows `size` keys: the query's own and the size − 1 before it.
    """

    size: int

    def __post_init__(self) -> None:
        assert self.size > 0, self.size

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return (key.position - query.position).abs() < self.size

    def bounds(self, lo: int, hi: int) -> Intervals:
        # The union of the windows of all queries from lo to hi, which leaves no gap.
        return ((max(lo - self.size + 1, 0), hi + self.size - 1),)

    def band(self) -> Band:
        return self.size - 1, self.size - 1

    def describe(self) -> str:
        return f"keys less than {self.size} positions away"


@dataclass(frozen=True)
class Prefix(Mask):
    """Keys at positions below `length` are visible to every query (Raffel 2020, section 3.2.1).

    A prefix language model is `Causal() | Prefix(length)`.
    """

    length: int

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return key.position < self.length

    def bounds(self, lo: int, hi: int) -> Intervals:
        # A prefix of 0 shows no key; (0, −1) would be no valid interval.
        return ((0, self.length - 1),) if self.length > 0 else ()

    def describe(self) -> str:
        return f"the first {self.length} positions"


def build_mask(spec: MaskSpec) -> Mask:
    """Build the mask of a spec; equal specs give one and the same object.

    The guards of a compiled block compare a mask by identity, not by equality.
    """
    return _unique(_BUILDERS[spec.kind](spec))


@functools.lru_cache(maxsize=256)
def _unique(mask: Mask) -> Mask:
    # The cache keeps the first of equal masks.
    return mask


_BUILDERS: Mapping[str, Callable[[Any], Mask]] = {
    # Masks are built from specs here and not by the specs, which are read without loading torch.
    "everything": lambda spec: Everything(),
    "causal": lambda spec: Causal(),
    "window": lambda spec: Window(spec.size),
    "prefix": lambda spec: Prefix(spec.length),
    "segment": lambda spec: SameSegment(),
    "dilated": lambda spec: sparse.Dilated(spec.size, spec.dilation),
    "strided": lambda spec: sparse.Strided(spec.stride),
    "fixed": lambda spec: sparse.Fixed(spec.stride, spec.summary),
    "global": lambda spec: sparse.GlobalTokens(spec.count),
    "random": lambda spec: sparse.RandomBlocks(spec.size, spec.count, spec.length, spec.seed),
    "window_2d": lambda spec: sparse.Window2d(spec.columns, spec.height, spec.width, spec.first),
    # `build_mask` and not the constructor: parts of equal specs are one object as well.
    "all_of": lambda spec: AllOf(tuple(map(build_mask, spec.parts))),
    "any_of": lambda spec: AnyOf(tuple(map(build_mask, spec.parts))),
}


def picture(mask: Mask, positions: Positions) -> str:
    """Draw a mask as text: a line per query, a column per key, ■ visible, · hidden.

    Args:
        mask: mask to draw.
        positions: positions of the tokens; only the first row of the batch is drawn.
    """
    visible = positions.visible(mask)[0, 0].tolist()
    return "\n".join("".join("■" if seen else "·" for seen in row) for row in visible)
