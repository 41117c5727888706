"""Attention masks: small values, functions of positions, True where a key is visible.

Masks are hashable, combine exactly with `&` and `|`, bound the key positions that a range of
queries could see (so that kernels skip the rest), and describe themselves in a sentence.
Patterns with gaps are in `sparse_masks`. Shapes: B batch, H heads, Lq queries, Lk keys.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name

from torch import Tensor

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
)
from heedful.nn.mask_spec import MaskSpec
from heedful.nn.positions import Positions, TokenPositions

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
    settings = {name: value for name, value in spec if name != "kind"}
    if "parts" in settings:
        # `build_mask` and not the constructor: parts of equal specs are one object as well.
        settings["parts"] = tuple(map(build_mask, settings["parts"]))
    return _unique(resolve_name(_MASKS[spec.kind])(**settings))


@functools.lru_cache(maxsize=256)
def _unique(mask: Mask) -> Mask:
    # The cache keeps the first of equal masks.
    return mask


_ALGEBRA, _SPARSE = (f"heedful.nn.attention.{name}" for name in ("mask_algebra", "sparse_masks"))

# By name: few models have a mask with gaps. Here, as the specs are read without loading torch.
_MASKS: Mapping[str, str] = {
    "everything": f"{_ALGEBRA}:Everything",
    "causal": f"{_ALGEBRA}:Causal",
    "window": f"{__name__}:Window",
    "prefix": f"{__name__}:Prefix",
    "segment": f"{_ALGEBRA}:SameSegment",
    "dilated": f"{_SPARSE}:Dilated",
    "strided": f"{_SPARSE}:Strided",
    "fixed": f"{_SPARSE}:Fixed",
    "global": f"{_SPARSE}:GlobalTokens",
    "random": f"{_SPARSE}:RandomBlocks",
    "window_2d": f"{_SPARSE}:Window2d",
    "all_of": f"{_ALGEBRA}:AllOf",
    "any_of": f"{_ALGEBRA}:AnyOf",
}
"""The class of each kind of mask, whose fields are the settings of its spec."""


def picture(mask: Mask, positions: Positions) -> str:
    """Draw a mask as text: a line per query, a column per key, ■ visible, · hidden.

    Args:
        mask: mask to draw.
        positions: positions of the tokens; only the first row of the batch is drawn.
    """
    visible = positions.visible(mask)[0, 0].tolist()
    return "\n".join("".join("■" if seen else "·" for seen in row) for row in visible)
