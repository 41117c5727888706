"""Masks with gaps: patterns that leave out most pairs of a long sequence to save their cost.

A window costs L · size instead of L², but information travels far only through many layers.
Strides, summaries, global tokens and random blocks add a few far keys to each query, so that two
layers are enough. Combine them: `Window(256) | GlobalTokens(2)` is Longformer's pattern.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from heedful.config import PositiveInt
from heedful.nn.attention.masks import FAR, Intervals, Mask, Pass, TokenPositions, Without

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Dilated(Mask):
    """A window with gaps: keys at distances 0, d, 2d … on both sides (Longformer 2020).

    `Causal() & Dilated(size, d)` shows `size` keys: the query's own and those before it.

    Args:
        size: number of visible keys on each side, including the query's own.
        dilation: distance d between neighbouring visible keys; with 1 it is a window.
    """

    kind: Literal["dilated"] = field(default="dilated", init=False)
    size: PositiveInt
    dilation: PositiveInt = 2

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        distance = (key.position - query.position).abs()
        return (distance <= self._reach) & (distance % self.dilation == 0)

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((max(lo - self._reach, 0), min(hi + self._reach, FAR)),)

    def reaches(self, lo: int, hi: int, key: Tensor) -> Tensor:
        # Among the queries lo … hi at a multiple of d from the key, the nearest decides: if the key
        # is beyond its reach, it is beyond that of the others.
        above, below = lo + (key - lo) % self.dilation, hi - (hi - key) % self.dilation
        query = above.where(key < lo, below.where(key > hi, key))
        return (query >= lo) & (query <= hi) & ((query - key).abs() <= self._reach)

    def passes(self) -> tuple[Pass, ...]:
        # Sorted by position modulo d, a dilated window is a plain one.
        return (Pass(self, self.dilation),)

    @property
    def span(self) -> int:
        return self._reach + 1

    def describe(self) -> str:
        if self.dilation == 1:
            return f"keys less than {self.size} positions away"
        return f"every {_ordinal(self.dilation)} key up to {self._reach} positions away"

    @property
    def _reach(self) -> int:
        return (self.size - 1) * self.dilation


@dataclass(frozen=True)
class Strided(Mask):
    """Keys nearer than `stride`, and keys at its multiples, are visible (Child 2019, "strided").

    Made for data that repeat at the stride, such as the rows of an image.

    Args:
        stride: distance between far keys; the square root of the length is usual.
    """

    kind: Literal["strided"] = field(default="strided", init=False)
    stride: PositiveInt

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        distance = (key.position - query.position).abs()
        return (distance < self.stride) | (distance % self.stride == 0)

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((0, FAR),)

    def reaches(self, lo: int, hi: int, key: Tensor) -> Tensor:
        near = (key > lo - self.stride) & (key < hi + self.stride)
        # Some query of lo … hi is at a multiple of the stride from this key.
        return near | ((key - lo) % self.stride <= hi - lo)

    def passes(self) -> tuple[Pass, ...]:
        # Two passes, as each has full blocks in an order of its own: by position, and by position
        # modulo the stride. What the first shows is left out of the second.
        near = Dilated(self.stride, 1)
        return Pass(near), Pass(Without(self, near), self.stride)

    @property
    def span(self) -> int:
        return self.stride  # shorter sequences see everything

    def describe(self) -> str:
        nth = _ordinal(self.stride)
        return f"keys less than {self.stride} positions away and every {nth} key before and after"


@dataclass(frozen=True)
class Fixed(Mask):
    """Keys of the query's own block, and the last `summary` keys of every block (Child 2019).

    The model can learn to summarise a block at its last positions.

    Args:
        stride: length of a block in tokens.
        summary: number of last tokens of a block that all queries see.
    """

    kind: Literal["fixed"] = field(default="fixed", init=False)
    stride: PositiveInt
    summary: PositiveInt = 8

    def __post_init__(self) -> None:
        if self.summary > self.stride:
            raise ValueError(f"summary {self.summary} exceeds the block of stride {self.stride}")

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        same = key.position // self.stride == query.position // self.stride
        return same | self._is_summary(key.position)

    def bounds(self, lo: int, hi: int) -> Intervals:
        return ((0, FAR),)

    def reaches(self, lo: int, hi: int, key: Tensor) -> Tensor:
        block = key // self.stride
        near = (block >= lo // self.stride) & (block <= hi // self.stride)
        return near | self._is_summary(key)

    @property
    def span(self) -> int:
        return self.stride  # shorter sequences see everything

    def describe(self) -> str:
        return f"keys of its own block of {self.stride} and the last {self.summary} of every block"

    def _is_summary(self, key: Tensor) -> Tensor:
        # Every block, not only earlier ones: combined with `Causal()` it is the paper's pattern.
        return key % self.stride >= self.stride - self.summary


@dataclass(frozen=True)
class GlobalTokens(Mask):
    """The first `count` positions see every key and are seen by every query (Longformer 2020).

    With a window it is Longformer's pattern, with random blocks as well BigBird's.
    """

    kind: Literal["global"] = field(default="global", init=False)
    count: PositiveInt = 1

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        return (key.position < self.count) | (query.position < self.count)

    def bounds(self, lo: int, hi: int) -> Intervals:
        # One global query among lo … hi is enough to need every key.
        return ((0, FAR),) if lo < self.count else ((0, self.count - 1),)

    @property
    def span(self) -> int:
        return self.count  # in shorter sequences every token is global

    def describe(self) -> str:
        return f"the first {self.count} positions, or every key if it is one of them"


@dataclass(frozen=True)
class RandomBlocks(Mask):
    """Each block of queries sees `count` blocks of keys drawn at random (BigBird; Zaheer 2020).

    The blocks depend on the seed and the index of the query's block, not on the length of a
    sequence, so training, decoding and other batches see the same. Blocks of queries past `length`
    repeat the draws of the first ones.

    Args:
        size: length of a block in tokens.
        count: number of distinct blocks of keys for each block of queries.
        length: number of positions whose blocks are drawn from.
        seed: random seed of the draw; required.
    """

    kind: Literal["random"] = field(default="random", init=False)
    size: PositiveInt
    count: PositiveInt
    length: PositiveInt
    seed: Annotated[int, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        if self.seed is None:
            raise ValueError(
                "random blocks need a seed: without one the model would see other keys each time "
                "it is loaded"
            )
        blocks = -(-self.length // self.size)  # rounded up
        if self.count > blocks:
            raise ValueError(
                f"{self.count} blocks cannot be drawn: {self.length} positions make {blocks} "
                f"blocks of {self.size}"
            )

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        from heedful.nn.positions import constant  # imports torch, which the settings do not need

        table = constant(query.position.device, _draws(self))
        # Padding at −1 is hidden later; here its block must only be an index of the table.
        drawn = table[(query.position // self.size) % len(table)]
        # [..., count] blocks of the query against the block of the key.
        return (drawn == (key.position // self.size)[..., None]).any(-1)

    def bounds(self, lo: int, hi: int) -> Intervals:
        merged: list[tuple[int, int]] = []
        for block in sorted(self._seen(lo, hi)):
            first, last = block * self.size, (block + 1) * self.size - 1
            # Neighbouring blocks are one interval, as `Intervals` have a gap between any two.
            if merged and merged[-1][1] + 1 == first:
                first = merged.pop()[0]
            merged.append((first, last))
        return tuple(merged)

    @property
    def span(self) -> int:
        return self.length

    @property
    def reach(self) -> None:
        return None  # the drawn blocks do not move with the query

    def describe(self) -> str:
        return (
            f"{self.count} of the blocks of {self.size} among the first {self.length} positions, "
            f"drawn with seed {self.seed}"
        )

    def _seen(self, lo: int, hi: int) -> set[int]:
        """Return the indices of the key blocks that queries at these positions see."""
        table = _draws(self)
        first, last = lo // self.size, hi // self.size
        # After len(table) blocks the rows repeat, so a long range need not visit them again.
        rows = range(first, min(last, first + len(table) - 1) + 1)
        return {block for row in rows for block in table[row % len(table)]}


@dataclass(frozen=True)
class Window2d(Mask):
    """Keys near in an image, whose tokens follow row by row (Image Transformer; Parmar 2018).

    A window of the Image Transformer is centred at a block of queries; here each query has its own.

    Args:
        columns: number of tokens in a row of the image.
        height: number of visible rows on each side, including the query's own.
        width: number of visible columns on each side, likewise.
        first: position of the top left token; tokens before it, such as a class token, see
            everything and are seen by all.
    """

    kind: Literal["window_2d"] = field(default="window_2d", init=False)
    columns: PositiveInt
    height: PositiveInt
    width: PositiveInt
    first: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        # A wider window would wrap around the end of a row into the next one.
        if self.width > self.columns:
            raise ValueError(
                f"a window of width {self.width} is wider than a row of {self.columns} columns"
            )

    def sees(self, query: TokenPositions, key: TokenPositions) -> Tensor:
        at, to = query.position - self.first, key.position - self.first
        # Reading order: position = row · columns + column, counted from `first`.
        rows = (to // self.columns - at // self.columns).abs() < self.height
        columns = (to % self.columns - at % self.columns).abs() < self.width
        return (rows & columns) | (at < 0) | (to < 0)

    def bounds(self, lo: int, hi: int) -> Intervals:
        # Tokens before the image, such as a class token, see everything.
        if lo < self.first:
            return ((0, FAR),)
        top, bottom = ((each - self.first) // self.columns for each in (lo, hi))
        # Whole rows of the image: columns are left to `reaches`, as bounds are few ranges.
        start = max(top - self.height + 1, 0) * self.columns + self.first
        stop = (bottom + self.height) * self.columns + self.first
        if not self.first or start == self.first:
            return ((0 if start == self.first else start, stop - 1),)
        return (0, self.first - 1), (start, stop - 1)

    def reaches(self, lo: int, hi: int, key: Tensor) -> Tensor:
        within = super().reaches(lo, hi, key)
        at, until = lo - self.first, hi - self.first
        # Only queries within one row have a common range of columns; of several rows the ranges of
        # columns may cover all of it.
        if at < 0 or at // self.columns != until // self.columns:
            return within
        column, to = (key - self.first) % self.columns, key - self.first
        left, right = at % self.columns - self.width, until % self.columns + self.width
        return within & ((to < 0) | ((column > left) & (column < right)))

    @property
    def reach(self) -> int | None:
        # `bounds` covers whole rows, whose beginning is at a different distance from each column.
        return None if self.first else (self.height - 1) * self.columns + self.width - 1

    def describe(self) -> str:
        return (
            f"keys less than {self.height} rows and {self.width} columns away in rows of "
            f"{self.columns}"
        )


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


@functools.lru_cache(maxsize=16)
def _draws(mask: RandomBlocks) -> tuple[tuple[int, ...], ...]:
    """Return, for each block of queries, the ascending blocks of keys that it sees."""
    blocks = -(-mask.length // mask.size)
    return tuple(
        # A generator for each block, so that a draw does not depend on the number of blocks.
        tuple(sorted(random.Random(f"{mask.seed} {block}").sample(range(blocks), mask.count)))
        for block in range(blocks)
    )
