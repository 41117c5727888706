"""Attention masks: frozen values with settings, which decide the keys that each query may see.

A model's specification holds masks by their `kind` and settings. Masks are hashable, combine
exactly with `&` and `|`, and describe themselves in a sentence. A mask describes its visible pairs
in three ways of growing precision: `bounds` are ranges of key positions; `reaches` tests single
keys, for patterns with gaps; `passes` divides a pattern into masks each of which can be computed in
blocks that are nearly full. Patterns with gaps are in `sparse_masks`. Nothing here imports torch,
as the command line reads specifications. Shapes: B batch, H heads, Lq queries, Lk keys.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from heedful.config import Config, PositiveInt, validation_error
from heedful.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

FAR = 2**62
"""A key position beyond every real one: the upper bound of masks without an end."""

Intervals: TypeAlias = tuple[tuple[int, int], ...]
"""Ascending ranges of positions, first and last inclusive, with a gap between any two."""


class TokenPositions(NamedTuple):
    """Positions of tokens, in any shape, and their segments if rows are packed."""

    position: Tensor
    segment: Tensor | None = None


class Pass(NamedTuple):
    """A part of a pattern that kernels compute separately.

    Args:
        mask: mask of the part's pairs.
        period: divisor of the distance between every query and the keys that it sees.
    """

    mask: Mask
    period: int = 1


class Mask(ABC):
    """A rule for the keys that a query may see; masks of equal kind and settings are equal.

    Attributes:
        kind: name in files and in expressions.
        follows_task: True for a mask that follows from the task, not from an option.
    """

    kind: str
    follows_task: ClassVar[bool] = False

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if cls is not Mask:
            return handler(source)
        # A union of all classes would load the module of masks with gaps, which few models have.
        is_mask = core_schema.is_instance_schema(Mask)
        return core_schema.no_info_before_validator_function(_read_settings, is_mask)

    @staticmethod
    def parse(values: Mapping[str, Any], *, where: str | None = None) -> Mask:
        """Make a mask from plain data.

        Args:
            values: `kind` and settings of the mask.
            where: file or expression of the values, for the error message.

        Raises:
            ConfigError: when there is no such kind, or a setting is refused.
        """
        try:
            mask: Mask = _adapter(Mask).validate_python(values)
        except ValidationError as error:
            raise validation_error(Config, error, where) from None
        return mask

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Return the names of the settings, in the order in which expressions have them."""
        return tuple(each.name for each in fields(cls) if each.name != "kind")  # type: ignore[arg-type]

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

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        """The masks, none of them an intersection, whose intersection this one is."""
        return (self,)

    @property
    def disjuncts(self) -> tuple[Mask, ...]:
        """The masks, none of them a union, whose union this one is."""
        return (self,)

    @property
    def heeds_segments(self) -> bool:
        """True where a query sees only keys of its own segment."""
        return False

    @property
    def span(self) -> int:
        """The shortest sequence length at which the mask shows its full pattern."""
        return 1

    @property
    def reach(self) -> int | None:
        """The number of earlier positions that a query may see; None if it is unbounded."""
        here = FAR // 2  # so far from 0 that the beginning cuts off no finite reach
        seen = self.bounds(here, here)
        first = seen[0][0] if seen else here
        return here - first if first > 0 else None

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
        return AllOf((*self.conjuncts, *other.conjuncts))

    def __or__(self, other: Mask) -> Mask:
        if Everything() in (self, other):
            return Everything()
        return AnyOf((*self.disjuncts, *other.disjuncts))


@dataclass(frozen=True)
class Everything(Mask):
    """Every real key is visible."""

    follows_task = True
    kind: Literal["everything"] = field(default="everything", init=False)

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return key.position == key.position  # true everywhere, in the shape of the keys

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((0, FAR),)

    def describe(self) -> str:
        return "every key"


@dataclass(frozen=True)
class Causal(Mask):
    """Keys at the query's position or before it are visible."""

    follows_task = True
    kind: Literal["causal"] = field(default="causal", init=False)

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return key.position <= query.position

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((0, hi),)

    def describe(self) -> str:
        return "keys at or before its own position"


@dataclass(frozen=True)
class SameSegment(Mask):
    """Keys of the query's own segment are visible (packed sequences).

    Positions without segments are one single segment.
    """

    follows_task = True
    kind: Literal["segment"] = field(default="segment", init=False)

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        # Segments on one side alone are a caller's mistake: there is nothing to compare them with.
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

    @property
    def heeds_segments(self) -> bool:
        return True

    def describe(self) -> str:
        return "keys of its own segment"


@dataclass(frozen=True)
class _Combination(Mask):
    """Masks joined by `&` or `|`."""

    kind: str = field(default="", init=False)
    parts: tuple[Mask, ...]

    joined: ClassVar[Any]  # operator between the parts in an expression
    words: ClassVar[tuple[str, str]]  # between descriptions; description of no parts

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return self._join(key.position, [part.sees(query, key) for part in self.parts])

    def reaches(self, lo: int, hi: int, key: Tensor) -> Tensor:
        return self._join(key, [part.reaches(lo, hi, key) for part in self.parts])

    def _join(self, key: Tensor, seen: list[Tensor]) -> Tensor:
        """Join the parts' results; without parts, an intersection shows all and a union nothing."""
        if not seen:
            return key == key if self.joined is operator.and_ else key != key
        joined: Tensor = functools.reduce(self.joined, seen)
        return joined

    @property
    def span(self) -> int:
        return max((part.span for part in self.parts), default=1)

    def describe(self) -> str:
        between, nothing = self.words
        each = [part.describe() for part in self.parts]
        # A part that is itself a combination gets brackets, so that the sentence has one reading.
        return f", {between} ".join(f"({s})" if " also " in s else s for s in each) or nothing


@dataclass(frozen=True)
class AllOf(_Combination):
    """Keys that all parts show are visible; without parts, every key."""

    joined = operator.and_
    words = "that are also", "every key"
    kind: Literal["all_of"] = field(default="all_of", init=False)

    def bounds(self, lo: int, hi: int) -> Intervals:
        common: Intervals = ((0, FAR),)
        for part in self.parts:
            other = part.bounds(lo, hi)
            # Both lists ascend and have gaps, so the intersections do as well.
            pairs = [(max(a, c), min(b, d)) for a, b in common for c, d in other]
            common = tuple((first, last) for first, last in pairs if first <= last)
        return common

    def passes(self) -> tuple[Pass, ...]:
        # All combinations of passes: a pair that every part shows is in exactly one pass of each.
        combined = [Pass(AllOf(()))]
        for part in self.parts:
            combined = [
                Pass(
                    AllOf((*one.mask.conjuncts, other.mask)),
                    math.lcm(one.period, other.period),  # the smallest common period
                )
                for one in combined
                for other in part.passes()
            ]
        return tuple(combined) if any(each.period > 1 for each in combined) else (Pass(self),)

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        return tuple(rule for part in self.parts for rule in part.conjuncts)

    @property
    def heeds_segments(self) -> bool:
        return any(part.heeds_segments for part in self.parts)

    @property
    def reach(self) -> int | None:
        return min((part.reach for part in self.parts if part.reach is not None), default=None)


@dataclass(frozen=True)
class AnyOf(_Combination):
    """Keys that at least one part shows are visible; without parts, no key."""

    joined = operator.or_
    words = "and also", "no key"
    kind: Literal["any_of"] = field(default="any_of", init=False)

    def bounds(self, lo: int, hi: int) -> Intervals:
        merged: list[tuple[int, int]] = []
        for first, last in sorted(each for part in self.parts for each in part.bounds(lo, hi)):
            # Adjacent ranges merge as well: `Intervals` have a gap between any two.
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], last)
            else:
                merged.append((first, last))
        return tuple(merged)

    def passes(self) -> tuple[Pass, ...]:
        passes = [each for part in self.parts for each in part.passes()]
        if all(each.period == 1 for each in passes):
            return (Pass(self),)
        # The softmax adds up all passes, so a pair that two parts show must be in only one of them:
        # each periodic part leaves out what earlier passes have shown.
        plain = AnyOf(tuple(each.mask for each in passes if each.period == 1))
        result = [Pass(plain)] if plain.parts else []
        before = plain
        for mask, period in passes:
            if period > 1:
                rest = Without(mask, before) if before.parts else mask
                result.append(Pass(rest, period))
                before = AnyOf((*before.parts, mask))
        return tuple(result)

    @property
    def disjuncts(self) -> tuple[Mask, ...]:
        return tuple(rule for part in self.parts for rule in part.disjuncts)

    @property
    def heeds_segments(self) -> bool:
        return all(part.heeds_segments for part in self.parts)

    @property
    def reach(self) -> int | None:
        ends = [part.reach for part in self.parts]
        known = [end for end in ends if end is not None]
        return max(known, default=0) if len(known) == len(ends) else None


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
        # With several queries, `other` may show a key to a different query than `mask` does.
        return within & ~self.other.reaches(lo, hi, key) if lo == hi else within

    def describe(self) -> str:
        return f"{self.mask.describe()}, except {self.other.describe()}"


@dataclass(frozen=True)
class Window(Mask):
    """Keys at a distance of less than `size` are visible, on both sides (Longformer 2020).

    `Causal() & Window(size)` shows `size` keys: the query's own and the size − 1 before it.
    """

    kind: Literal["window"] = field(default="window", init=False)
    size: PositiveInt

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return (key.position - query.position).abs() < self.size

    def bounds(self, lo: int, hi: int) -> Intervals:
        # The union of the windows of all queries from lo to hi, which leaves no gap.
        return ((max(lo - self.size + 1, 0), hi + self.size - 1),)

    @property
    def span(self) -> int:
        return self.size  # shorter sequences see everything

    def describe(self) -> str:
        return f"keys less than {self.size} positions away"


@dataclass(frozen=True)
class Prefix(Mask):
    """Keys at positions below `length` are visible (prefix language model; Raffel 2020).

    A prefix language model is `Causal() | Prefix(length)`.
    """

    kind: Literal["prefix"] = field(default="prefix", init=False)
    length: Annotated[int, Field(ge=0)]

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return key.position < self.length

    def bounds(self, lo: int, hi: int) -> Intervals:
        # A prefix of 0 shows no key; (0, −1) would be no valid interval.
        return ((0, self.length - 1),) if self.length > 0 else ()

    def describe(self) -> str:
        return f"the first {self.length} positions"


@functools.lru_cache(maxsize=256)
def canonical(mask: Mask) -> Mask:
    """Return the first mask that was equal to this one, so that equal masks are one object."""
    # The guards of a compiled block compare a mask by identity, not by equality.
    return mask


_SPARSE = "heedful.nn.attention.sparse_masks"

KINDS: Mapping[str, str] = {
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
"""The class of each kind, by name: its module is loaded where a model has such a mask."""

_adapter = functools.cache(TypeAdapter)


def _read_settings(value: Any) -> Any:
    """Return the mask of settings with a `kind`; any other value as it is."""
    if not isinstance(value, Mapping):
        return value
    kind = str(value.get("kind"))
    if kind not in KINDS:
        tags = {"tag": kind, "expected_tags": ", ".join(map(repr, KINDS))}
        raise PydanticKnownError("union_tag_invalid", {"discriminator": "'kind'", **tags})
    found = resolve_name(KINDS[kind])
    if unknown := value.keys() - {"kind", *found.setting_names()}:
        known = ", ".join(found.setting_names()) or "none"
        raise ValueError(f"{kind} has no setting {min(unknown)!r}, but only: {known}")
    # Strict and through JSON, as in `Config.parse`.
    settings = {name: each for name, each in value.items() if name != "kind"}
    return _adapter(found).validate_json(json.dumps(settings), strict=True)
