"""Attention masks: small values, functions of positions, True where a key is visible.

Masks are hashable, combine exactly with `&` and `|`, and describe themselves in a sentence. A mask
describes its visible pairs in three ways of growing precision: `bounds` are ranges of key
positions; `reaches` tests single keys, for patterns with gaps; `passes` divides a pattern into
masks each of which can be computed in blocks that are nearly full. Patterns with gaps are in
`sparse_masks`. Shapes: B batch, H heads, Lq queries, Lk keys.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import NamedTuple, TypeAlias

from torch import Tensor

from heedful.errors import ModelError
from heedful.nn.mask_spec import MaskSpec
from heedful.nn.positions import Positions, TokenPositions

FAR = 2**62
"""A key position beyond every real one: the upper bound of masks without an end."""

Intervals: TypeAlias = tuple[tuple[int, int], ...]
"""Ascending ranges of positions, first and last inclusive, with a gap between any two."""


class Pass(NamedTuple):
    """A part of a pattern that kernels compute separately.

    Args:
        mask: mask of the part's pairs.
        period: divisor of the distance between every query and the keys that it sees.
    """

    mask: Mask
    period: int = 1


Band = tuple[int, int]
"""Numbers of visible keys before and after a query; −1 for all."""


class Mask(ABC):
    """A rule for the keys that a query may see; masks of equal kind and settings are equal."""

    @abstractmethod
    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        """Return whether queries at some positions may see keys at others, element by element.

        Args:
            query: positions of queries, in any shape.
            key: positions of keys, in a shape that broadcasts with it.

        Returns:
            Bool, of a shape that broadcasts to theirs.
        """

    @abstractmethod
    def bounds(self, lo: int, hi: int) -> Intervals:
        """Return the key positions that queries at positions `lo` to `hi` could see.

        Positions lie between 0 and `FAR`; no interval means that no key is visible.
        """

    def reaches(self, lo: int, hi: int, key: Tensor) -> Tensor:
        """Return the key positions that some query at positions `lo` to `hi` could see.

        Kernels skip all others. Exact for a single query; for several it may include more.

        Args:
            lo: first position.
            hi: last position, inclusive.
            key: positions of any shape, 0 or more.

        Returns:
            Bool, of the shape of `key`.
        """
        # All false, as key positions are 0 or more, in the shape of `key`.
        within = key < 0
        for first, last in self.bounds(lo, hi):
            within = within | ((key >= first) & (key <= last))
        return within

    def passes(self) -> tuple[Pass, ...]:
        """Return masks that show each visible pair exactly once, to be computed one by one.

        A strided pattern has few pairs, but a block of neighbouring queries together sees every
        key. With queries and keys sorted by their position modulo the period the blocks are full.
        Patterns without a period have a single pass.
        """
        return (Pass(self),)

    def band(self) -> Band | None:
        """Return the numbers of visible keys before and after a query; None for other masks."""
        return None

    @property
    def parts_segments(self) -> bool:
        """True where a query sees only keys of its own segment."""
        return False

    def within_segments(self, positions: Positions) -> Mask:
        """Return a mask under which sequences that share a row do not see each other.

        It is the mask itself where each row is one sequence, or where it heeds segments already.
        """
        packed = positions.query_segment is not None or positions.key_segment is not None
        return self & SameSegment() if packed and not self.parts_segments else self

    @abstractmethod
    def describe(self) -> str:
        """Return the end of a sentence about a query: "keys at or before its own position"."""

    def __and__(self, other: Mask) -> Mask:
        # The neutral element is dropped, so that equal rules are equal values: derived tensors and
        # compiled blocks are found by the mask.
        if self == Everything():
            return other
        if other == Everything():
            return self
        return AllOf((*_parts(self, AllOf), *_parts(other, AllOf)))

    def __or__(self, other: Mask) -> Mask:
        if Everything() in (self, other):
            return Everything()
        return AnyOf((*_parts(self, AnyOf), *_parts(other, AnyOf)))


@dataclass(frozen=True)
class Everything(Mask):
    """Every key is visible."""

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return key.position == key.position  # true everywhere, in the shape of the keys

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((0, FAR),)

    def band(self) -> Band:
        return -1, -1

    def describe(self) -> str:
        return "every key"


@dataclass(frozen=True)
class Causal(Mask):
    """Keys at the query's own position or before it are visible."""

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return key.position <= query.position

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((0, hi),)

    def band(self) -> Band:
        return -1, 0

    def describe(self) -> str:
        return "keys at or before its own position"


@dataclass(frozen=True)
class SameSegment(Mask):
    """Keys of the query's own segment are visible: several sequences packed into one row.

    Positions without segments are one single segment.
    """

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        # Segments on one side alone are a caller's mistake: comparing with nothing hides no key.
        if query.segment is None and key.segment is None:
            return Everything().sees(query, key)
        if query.segment is None or key.segment is None:
            raise ModelError(
                "A segment mask needs the segments of both queries and keys, or of neither",
                remedy="Give query_segment and key_segment",
            )
        return query.segment == key.segment

    def bounds(self, lo: int, hi: int) -> Intervals:
        # The segment of a key does not follow from its position.
        return ((0, FAR),)

    def band(self) -> Band:
        return -1, -1

    @property
    def parts_segments(self) -> bool:
        return True

    def describe(self) -> str:
        return "keys of its own segment"


@dataclass(frozen=True)
class AllOf(Mask):
    """Keys that every part shows are visible; of no parts, every key."""

    parts: tuple[Mask, ...]

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        allowed = Everything().sees(query, key)
        for part in self.parts:
            allowed = allowed & part.sees(query, key)
        return allowed

    def bounds(self, lo: int, hi: int) -> Intervals:
        common: Intervals = ((0, FAR),)
        for part in self.parts:
            other = part.bounds(lo, hi)
            # Both lists ascend and have gaps, so the intersections do as well.
            pairs = [(max(a, c), min(b, d)) for a, b in common for c, d in other]
            common = tuple((first, last) for first, last in pairs if first <= last)
        return common

    def reaches(self, lo: int, hi: int, key: Tensor) -> Tensor:
        within = key >= 0
        for part in self.parts:
            within = within & part.reaches(lo, hi, key)
        return within

    def passes(self) -> tuple[Pass, ...]:
        # All combinations of passes: a pair that every part shows is in exactly one pass of each.
        combined = [Pass(AllOf(()))]
        for part in self.parts:
            combined = [
                Pass(
                    AllOf((*_parts(one.mask, AllOf), other.mask)),
                    math.lcm(one.period, other.period),  # a multiple of both is one of their lcm
                )
                for one in combined
                for other in part.passes()
            ]
        return tuple(combined) if _is_periodic(combined) else (Pass(self),)

    def band(self) -> Band | None:
        bands = [part.band() for part in self.parts]
        known = [each for each in bands if each is not None]
        if len(known) < len(bands):
            return None
        # The narrowest finite side wins; −1 means no bound and must not win as the smallest.
        before = min((each[0] for each in known if each[0] >= 0), default=-1)
        after = min((each[1] for each in known if each[1] >= 0), default=-1)
        return before, after

    @property
    def parts_segments(self) -> bool:
        return any(part.parts_segments for part in self.parts)

    def describe(self) -> str:
        return _list([part.describe() for part in self.parts], "that are also", "every key")


@dataclass(frozen=True)
class AnyOf(Mask):
    """Keys that at least one part shows are visible; of no parts, none."""

    parts: tuple[Mask, ...]

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        allowed = ~Everything().sees(query, key)
        for part in self.parts:
            allowed = allowed | part.sees(query, key)
        return allowed

    def bounds(self, lo: int, hi: int) -> Intervals:
        merged: list[tuple[int, int]] = []
        for first, last in sorted(each for part in self.parts for each in part.bounds(lo, hi)):
            # Adjacent ranges merge as well: `Intervals` have a gap between any two.
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], last)
            else:
                merged.append((first, last))
        return tuple(merged)

    def reaches(self, lo: int, hi: int, key: Tensor) -> Tensor:
        within = key < 0
        for part in self.parts:
            within = within | part.reaches(lo, hi, key)
        return within

    def passes(self) -> tuple[Pass, ...]:
        passes = [each for part in self.parts for each in part.passes()]
        if not _is_periodic(passes):
            return (Pass(self),)
        # The softmax sums passes up, so a pair that two parts show must be in one pass alone: each
        # periodic part leaves out what earlier passes have shown.
        plain = AnyOf(tuple(each.mask for each in passes if each.period == 1))
        result = [Pass(plain)] if plain.parts else []
        before = plain
        for mask, period in passes:
            if period > 1:
                rest = Without(mask, before) if before.parts else mask
                result.append(Pass(rest, period))
                before = AnyOf((*before.parts, mask))
        return tuple(result)

    def describe(self) -> str:
        return _list([part.describe() for part in self.parts], "and also", "no key")


@dataclass(frozen=True)
class Without(Mask):
    """Keys that one mask shows and another does not are visible."""

    mask: Mask
    other: Mask

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return self.mask.sees(query, key) & ~self.other.sees(query, key)

    def bounds(self, lo: int, hi: int) -> Intervals:
        # An upper bound is enough; ranges of `other` may themselves have gaps.
        return self.mask.bounds(lo, hi)

    def reaches(self, lo: int, hi: int, key: Tensor) -> Tensor:
        within = self.mask.reaches(lo, hi, key)
        # Of several queries, one may see a key by `mask` that `other` shows to another one only.
        return within & ~self.other.reaches(lo, hi, key) if lo == hi else within

    def describe(self) -> str:
        return f"{self.mask.describe()}, except {self.other.describe()}"


def _parts(mask: Mask, kind: type[AllOf] | type[AnyOf]) -> tuple[Mask, ...]:
    return mask.parts if isinstance(mask, kind) else (mask,)


def _is_periodic(passes: list[Pass]) -> bool:
    return any(each.period > 1 for each in passes)


def _list(sentences: list[str], joint: str, nothing: str) -> str:
    # A part that is itself a combination gets brackets, so that the sentence has one reading.
    wrapped = [f"({s})" if " also " in s else s for s in sentences]
    return f", {joint} ".join(wrapped) or nothing


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


_SPARSE = "heedful.nn.attention.sparse_masks"

# By name: few models have a mask with gaps. Here, as the specs are read without loading torch.
_MASKS: Mapping[str, str] = {
    "everything": f"{__name__}:Everything",
    "causal": f"{__name__}:Causal",
    "window": f"{__name__}:Window",
    "prefix": f"{__name__}:Prefix",
    "segment": f"{__name__}:SameSegment",
    "dilated": f"{_SPARSE}:Dilated",
    "strided": f"{_SPARSE}:Strided",
    "fixed": f"{_SPARSE}:Fixed",
    "global": f"{_SPARSE}:GlobalTokens",
    "random": f"{_SPARSE}:RandomBlocks",
    "window_2d": f"{_SPARSE}:Window2d",
    "all_of": f"{__name__}:AllOf",
    "any_of": f"{__name__}:AnyOf",
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
