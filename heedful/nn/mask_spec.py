"""Specs of attention masks: the rules of who may see whom, as data. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt


class CommonMaskSpec(Config):
    """The questions that the spec of every mask answers."""

    @property
    def heeds_segments(self) -> bool:
        """Return whether texts that share a row do not see each other."""
        return any(part.heeds_segments for part in getattr(self, "parts", ()))

    @property
    def span(self) -> int:
        """The number of positions that there must be for the mask to differ from a smaller one."""
        return max((part.span for part in getattr(self, "parts", ())), default=1)

    @property
    def reach(self) -> int | None:
        """The number of positions before its own that a query may see; None if there is no end."""
        return None


class EverythingSpec(CommonMaskSpec):
    """Every real key is visible."""

    kind: Literal["everything"] = "everything"


class CausalSpec(CommonMaskSpec):
    """Keys at the query's position or before it are visible."""

    kind: Literal["causal"] = "causal"


class WindowSpec(CommonMaskSpec):
    """Keys at a distance of less than `size` are visible, on both sides (Longformer 2020).

    Together with `causal` a query sees `size` keys, itself among them.
    """

    kind: Literal["window"] = "window"
    size: PositiveInt

    @property
    def span(self) -> int:
        """A window as long as a text shows all of it."""
        return self.size

    @property
    def reach(self) -> int:
        """All of the window but the query's own position."""
        return self.size - 1


class PrefixSpec(CommonMaskSpec):
    """Keys at positions below `length` are visible (prefix language model; Raffel 2020)."""

    kind: Literal["prefix"] = "prefix"
    length: Annotated[int, Field(ge=0)]


class SegmentSpec(CommonMaskSpec):
    """Keys of the query's own segment are visible (packed sequences)."""

    kind: Literal["segment"] = "segment"

    @property
    def heeds_segments(self) -> bool:
        """Always."""
        return True


class DilatedSpec(CommonMaskSpec):
    """A window with gaps: keys at distances 0, d, 2d … on both sides (Longformer 2020).

    With a dilation of 1 it is a window. Together with `causal` a query sees `size` keys.
    """

    kind: Literal["dilated"] = "dilated"
    size: PositiveInt = Field(description="keys seen on each side, the query's own among them")
    dilation: PositiveInt = Field(2, description="distance from one key that is seen to the next")

    @property
    def span(self) -> int:
        """The distance of the farthest key, and the query."""
        return (self.size - 1) * self.dilation + 1


class StridedSpec(CommonMaskSpec):
    """Keys nearer than `stride`, and those at its multiples (Child 2019, "strided")."""

    kind: Literal["strided"] = "strided"
    stride: PositiveInt = Field(description="near the square root of the length")

    @property
    def span(self) -> int:
        """As a window."""
        return self.stride


class FixedSpec(CommonMaskSpec):
    """Keys of the query's own block, and the last `summary` keys of every block (Child 2019)."""

    kind: Literal["fixed"] = "fixed"
    stride: PositiveInt = Field(description="positions of a block")
    summary: PositiveInt = Field(8, description="positions at its end that every query sees")

    @model_validator(mode="after")
    def _summary_is_part_of_a_block(self) -> Self:
        if self.summary > self.stride:
            raise ValueError(f"summary {self.summary} exceeds the block of stride {self.stride}")
        return self

    @property
    def span(self) -> int:
        """A block as long as a text shows all of it."""
        return self.stride


class GlobalSpec(CommonMaskSpec):
    """The first `count` positions see every key and are seen by every query (Longformer 2020).

    With `window` it is Longformer's pattern, with `random` as well BigBird's.
    """

    kind: Literal["global"] = "global"
    count: PositiveInt = 1

    @property
    def span(self) -> int:
        """If all positions are global, all see everything."""
        return self.count


class RandomSpec(CommonMaskSpec):
    """Each block of queries sees `count` blocks of keys drawn at random (BigBird; Zaheer 2020).

    The blocks are drawn once, from the seed, among those of the first `length` positions.
    """

    kind: Literal["random"] = "random"
    size: PositiveInt = Field(description="positions of a block")
    count: PositiveInt = Field(description="blocks of keys that a block of queries sees")
    length: PositiveInt = Field(description="positions that there are to draw from")
    seed: Annotated[int, Field(ge=0)] | None = Field(
        None, description="of the draw; without one, another process would see other keys"
    )

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        if self.seed is None:
            raise ValueError(
                "random blocks need a seed: without one the model would see other keys each time "
                "it is loaded"
            )
        blocks = -(-self.length // self.size)
        if self.count > blocks:
            raise ValueError(
                f"{self.count} blocks cannot be drawn: {self.length} positions make {blocks} "
                f"blocks of {self.size}"
            )
        return self

    @property
    def span(self) -> int:
        """The positions that are drawn from."""
        return self.length


class Window2dSpec(CommonMaskSpec):
    """Keys near in an image, whose tokens follow row by row (Image Transformer; Parmar 2018).

    A query sees keys less than `height` rows and less than `width` columns away. Positions before
    `first`, such as a class token's, see everything and are seen by all.
    """

    kind: Literal["window_2d"] = "window_2d"
    columns: PositiveInt = Field(description="tokens of a row of the image")
    height: PositiveInt
    width: PositiveInt
    first: Annotated[int, Field(ge=0)] = Field(0, description="position of the top left token")

    @model_validator(mode="after")
    def _fits_a_row(self) -> Self:
        if self.width > self.columns:
            raise ValueError(
                f"a window of width {self.width} is wider than a row of {self.columns} columns"
            )
        return self


class AllOfSpec(CommonMaskSpec):
    """Keys that every part shows are visible."""

    kind: Literal["all_of"] = "all_of"
    parts: tuple[MaskSpec, ...]

    @property
    def reach(self) -> int | None:
        """That of the narrowest part."""
        ends = (part.reach for part in self.parts)
        return min((end for end in ends if end is not None), default=None)


class AnyOfSpec(CommonMaskSpec):
    """Keys that at least one part shows are visible."""

    kind: Literal["any_of"] = "any_of"
    parts: tuple[MaskSpec, ...]


MaskSpec = Annotated[
    EverythingSpec
    | CausalSpec
    | WindowSpec
    | PrefixSpec
    | SegmentSpec
    | DilatedSpec
    | StridedSpec
    | FixedSpec
    | GlobalSpec
    | RandomSpec
    | Window2dSpec
    | AllOfSpec
    | AnyOfSpec,
    Field(discriminator="kind"),
]


def own_rules(mask: MaskSpec) -> MaskSpec:
    """Return a mask without what follows from the task: not after the query, not another text."""
    rules = [rule for rule in _rules(mask) if rule.kind not in ("everything", "causal", "segment")]
    if not rules:
        return EverythingSpec()
    return rules[0] if len(rules) == 1 else AllOfSpec(parts=tuple(rules))


def _rules(mask: MaskSpec) -> list[MaskSpec]:
    """Return masks all of which show a key that is seen."""
    if mask.kind != "all_of":
        return [mask]
    return [rule for part in mask.parts for rule in _rules(part)]
