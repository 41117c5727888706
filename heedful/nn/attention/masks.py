"""Attention masks: small values, functions of positions, True where a key is visible.

Masks are hashable, combine exactly with `&` and `|`, know which key positions a range of queries
could see (so that kernels skip the rest), and describe themselves in a sentence or a picture.
Shapes: B batch, H heads, Lq queries, Lk keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from heedful.errors import ModelError
from heedful.nn.positions import Positions
from heedful.nn.spec import MaskSpec

FAR = 2**62
"""A key position beyond every real one: the upper bound of masks that have none."""

Intervals: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of positions, first and last inclusive: ascending, with a gap between any two."""


class Place(NamedTuple):
    """Positions of tokens, in any shape, and their segments if they have them."""

    position: Tensor
    segment: Tensor | None = None


class Mask(ABC):
    """A rule for the keys that a query may see; equal to another of the same kind and settings."""

    @abstractmethod
    def sees(self, query: Place, key: Place) -> Tensor:
        """Return whether queries at some places may see keys at others, element by element.

        Args:
            query: places of any shape.
            key: places of a shape that broadcasts with it.

        Returns:
            Bool, of a shape that broadcasts to theirs.
        """

    def allow(self, positions: Positions) -> Tensor:
        """Return the pairs that the mask allows, whether or not both ends are really there.

        Returns:
            Bool [B|1, H|1, Lq, Lk].
        """
        query, query_segment = positions.query, positions.query_segment
        key, key_segment = positions.key, positions.key_segment
        allowed = self.sees(
            Place(
                query[:, None, :, None],
                None if query_segment is None else query_segment[:, None, :, None],
            ),
            Place(
                key[:, None, None, :],
                None if key_segment is None else key_segment[:, None, None, :],
            ),
        )
        return allowed.expand(-1, -1, query.shape[1], key.shape[1])

    @abstractmethod
    def bounds(self, lo: int, hi: int) -> Intervals:
        """Return the key positions that queries at positions `lo` to `hi` could see.

        Positions lie between 0 and `FAR`; no interval means that no key is visible.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return the end of a sentence about a query: "keys at or before its own position"."""

    def __and__(self, other: Mask) -> Mask:
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

    def sees(self, query: Place, key: Place) -> Tensor:
        return key.position == key.position

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((0, FAR),)

    def describe(self) -> str:
        return "every key"


@dataclass(frozen=True)
class Causal(Mask):
    """Keys at the query's own position or before it are visible."""

    def sees(self, query: Place, key: Place) -> Tensor:
        return key.position <= query.position

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((0, hi),)

    def describe(self) -> str:
        return "keys at or before its own position"


@dataclass(frozen=True)
class Window(Mask):
    """Keys at a distance of less than `size` are visible, on both sides (Beltagy 2020).

    `Causal() & Window(size)` shows `size` keys: the query's own and the size − 1 before it.
    """

    size: int

    def __post_init__(self) -> None:
        assert self.size > 0, self.size

    def sees(self, query: Place, key: Place) -> Tensor:
        return (key.position - query.position).abs() < self.size

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((max(lo - self.size + 1, 0), hi + self.size - 1),)

    def describe(self) -> str:
        return f"keys less than {self.size} positions away"


@dataclass(frozen=True)
class Prefix(Mask):
    """Keys at positions below `length` are visible to every query (Raffel 2020).

    A prefix language model is `Causal() | Prefix(length)`.
    """

    length: int

    def sees(self, query: Place, key: Place) -> Tensor:
        return key.position < self.length

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((0, self.length - 1),) if self.length > 0 else ()

    def describe(self) -> str:
        return f"the first {self.length} positions"


@dataclass(frozen=True)
class SameSegment(Mask):
    """Keys of the query's own segment are visible: several sequences packed into one row.

    Positions without segments are one single segment.
    """

    def sees(self, query: Place, key: Place) -> Tensor:
        if query.segment is None and key.segment is None:
            return Everything().sees(query, key)
        if query.segment is None or key.segment is None:
            raise ModelError(
                "A segment mask needs the segments of both queries and keys, or of neither",
                remedy="Give query_segment and key_segment",
            )
        return query.segment == key.segment

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((0, FAR),)

    def describe(self) -> str:
        return "keys of its own segment"


@dataclass(frozen=True)
class AllOf(Mask):
    """Keys that every part shows are visible; of no parts, every key."""

    parts: tuple[Mask, ...]

    def sees(self, query: Place, key: Place) -> Tensor:
        allowed = Everything().sees(query, key)
        for part in self.parts:
            allowed = allowed & part.sees(query, key)
        return allowed

    def bounds(self, lo: int, hi: int) -> Intervals:
        common: Intervals = ((0, FAR),)
        for part in self.parts:
            other = part.bounds(lo, hi)
            pairs = [(max(a, c), min(b, d)) for a, b in common for c, d in other]
            common = tuple((first, last) for first, last in pairs if first <= last)
        return common

    def describe(self) -> str:
        return _list([part.describe() for part in self.parts], "that are also", "every key")


@dataclass(frozen=True)
class AnyOf(Mask):
    """Keys that at least one part shows are visible; of no parts, none."""

    parts: tuple[Mask, ...]

    def sees(self, query: Place, key: Place) -> Tensor:
        allowed = ~Everything().sees(query, key)
        for part in self.parts:
            allowed = allowed | part.sees(query, key)
        return allowed

    def bounds(self, lo: int, hi: int) -> Intervals:
        merged: list[tuple[int, int]] = []
        for first, last in sorted(each for part in self.parts for each in part.bounds(lo, hi)):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], last)
            else:
                merged.append((first, last))
        return tuple(merged)

    def describe(self) -> str:
        return _list([part.describe() for part in self.parts], "and also", "no key")


def build_mask(spec: MaskSpec) -> Mask:
    """The mask that a piece of configuration stands for."""
    return _BUILDERS[spec.kind](spec)


_BUILDERS: Mapping[str, Callable[[Any], Mask]] = {
    "everything": lambda spec: Everything(),
    "causal": lambda spec: Causal(),
    "window": lambda spec: Window(spec.size),
    "prefix": lambda spec: Prefix(spec.length),
    "segment": lambda spec: SameSegment(),
    "all_of": lambda spec: AllOf(tuple(map(build_mask, spec.parts))),
    "any_of": lambda spec: AnyOf(tuple(map(build_mask, spec.parts))),
}


def picture(mask: Mask, positions: Positions) -> str:
    """Draw who sees whom as text: a line per query, a column per key, ■ visible, · hidden.

    Args:
        mask: what to draw.
        positions: where the tokens stand; only the first row of the batch is drawn.
    """
    visible = positions.visible(mask)[0, 0].tolist()
    return "\n".join("".join("■" if seen else "·" for seen in row) for row in visible)


def _parts(mask: Mask, kind: type[AllOf] | type[AnyOf]) -> tuple[Mask, ...]:
    return mask.parts if isinstance(mask, kind) else (mask,)


def _list(sentences: list[str], joint: str, nothing: str) -> str:
    wrapped = [f"({s})" if " also " in s else s for s in sentences]
    return f", {joint} ".join(wrapped) or nothing
