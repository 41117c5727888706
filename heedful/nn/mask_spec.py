"""Specs of attention masks, the rules for the keys that a query may see, as data; torch-free."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, cast

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt


class CommonMaskSpec(Config):
    """The properties that the spec of every mask has.

    Attributes:
        follows_task: True for a mask that the task decides, and no option of a model.
    """

    follows_task: ClassVar[bool] = False

    @property
    def conjuncts(self) -> tuple[MaskSpec, ...]:
        """The masks whose intersection this one is: itself, where it is no intersection."""
        return (cast("MaskSpec", self),)

    @property
    def heeds_segments(self) -> bool:
        """True where sequences that share a row do not see each other."""
        return any(part.heeds_segments for part in getattr(self, "parts", ()))

    @property
    def span(self) -> int:
        """The shortest sequence length at which the mask shows its full pattern."""
        return max((part.span for part in getattr(self, "parts", ())), default=1)

    @property
    def reach(self) -> int | None:
        """The number of earlier positions that a query may see; None if it is unbounded."""
        return None


class EverythingSpec(CommonMaskSpec):
    """Every real key is visible."""

    follows_task = True
    kind: Literal["everything"] = "everything"


class CausalSpec(CommonMaskSpec):
    """Keys at the query's position or before it are visible."""

    follows_task = True
    kind: Literal["causal"] = "causal"


class WindowSpec(CommonMaskSpec):
    """Keys at a distance of less than `size` are visible, on both sides (Longformer 2020).

    Together with `causal` a query sees `size` keys, itself among them.
    """

    kind: Literal["window"] = "window"
    size: PositiveInt = Field(
        description="half width of the window, including the query's position"
    )

    @property
    def span(self) -> int:
        """The size: shorter sequences see everything."""
        return self.size

    @property
    def reach(self) -> int:
        """The window without the query's own position."""
        return self.size - 1


class PrefixSpec(CommonMaskSpec):
    """Keys at positions below `length` are visible (prefix language model; Raffel 2020)."""

    kind: Literal["prefix"] = "prefix"
    length: Annotated[int, Field(ge=0, description="length of the prefix in tokens")]


class SegmentSpec(CommonMaskSpec):
    """Keys of the query's own segment are visible (packed sequences)."""

    follows_task = True
    kind: Literal["segment"] = "segment"

    @property
    def heeds_segments(self) -> bool:
        """True: the mask is made for packed rows."""
        return True


class DilatedSpec(CommonMaskSpec):
    """A window with gaps: keys at distances 0, d, 2d … on both sides (Longformer 2020).

    With a dilation of 1 it is a window. Together with `causal` a query sees `size` keys.
    """

    kind: Literal["dilated"] = "dilated"
    size: PositiveInt = Field(
        description="number of visible keys on each side, including the query's own"
    )
    dilation: PositiveInt = Field(2, description="distance between neighbouring visible keys")

    @property
    def span(self) -> int:
        """The distance of the farthest key, plus the query."""
        return (self.size - 1) * self.dilation + 1


class StridedSpec(CommonMaskSpec):
    """Keys nearer than `stride`, and keys at its multiples, are visible (Child 2019, "strided")."""

    kind: Literal["strided"] = "strided"
    stride: PositiveInt = Field(description="distance between far keys; sqrt(length) is usual")

    @property
    def span(self) -> int:
        """The stride: shorter sequences see everything."""
        return self.stride


class FixedSpec(CommonMaskSpec):
    """Keys of the query's own block, and the last `summary` keys of every block (Child 2019)."""

    kind: Literal["fixed"] = "fixed"
    stride: PositiveInt = Field(description="length of a block in tokens")
    summary: PositiveInt = Field(8, description="last tokens of a block, visible to all")

    @model_validator(mode="after")
    def _summary_is_part_of_a_block(self) -> Self:
        if self.summary > self.stride:
            raise ValueError(f"summary {self.summary} exceeds the block of stride {self.stride}")
        return self

    @property
    def span(self) -> int:
        """The block: shorter sequences see everything."""
        return self.stride


class GlobalSpec(CommonMaskSpec):
    """The first `count` positions see every key and are seen by every query (Longformer 2020).

    With `window` it is Longformer's pattern, with `random` as well BigBird's.
    """

    kind: Literal["global"] = "global"
    count: PositiveInt = Field(1, description="number of global positions")

    @property
    def span(self) -> int:
        """The count: in shorter sequences every token is global."""
        return self.count


class RandomSpec(CommonMaskSpec):
    """Each block of queries sees `count` blocks of keys drawn at random (BigBird; Zaheer 2020).

    The blocks are drawn once, by the seed, among the blocks of the first `length` positions.
    """

    kind: Literal["random"] = "random"
    size: PositiveInt = Field(description="length of a block in tokens")
    count: PositiveInt = Field(description="number of visible blocks for each block of queries")
    length: PositiveInt = Field(description="number of positions whose blocks may be drawn")
    seed: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="random seed of the blocks; required, so that a loaded model sees the same",
    )

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
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
        return self

    @property
    def span(self) -> int:
        """The number of positions whose blocks are drawn from."""
        return self.length


class Window2dSpec(CommonMaskSpec):
    """Keys near in an image, whose tokens follow row by row (Image Transformer; Parmar 2018).

    A query sees keys less than `height` rows and less than `width` columns away. Positions before
    `first`, such as a class token's, see everything and are seen by all.
    """

    kind: Literal["window_2d"] = "window_2d"
    columns: PositiveInt = Field(description="number of tokens in a row of the image")
    height: PositiveInt = Field(description="number of visible rows on each side, its own included")
    width: PositiveInt = Field(description="number of visible columns on each side, likewise")
    first: Annotated[int, Field(ge=0)] = Field(0, description="position of the top left token")

    # A wider window would reach around the end of a row into the next one.
    @model_validator(mode="after")
    def _fits_a_row(self) -> Self:
        if self.width > self.columns:
            raise ValueError(
                f"a window of width {self.width} is wider than a row of {self.columns} columns"
            )
        return self


class AllOfSpec(CommonMaskSpec):
    """Keys that all parts show are visible."""

    kind: Literal["all_of"] = "all_of"
    parts: tuple[MaskSpec, ...]

    @property
    def conjuncts(self) -> tuple[MaskSpec, ...]:
        """The parts."""
        return self.parts

    @property
    def reach(self) -> int | None:
        """The reach of the narrowest part."""
        # An intersection is bounded as soon as one part is; a union is not, so it keeps None.
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
    """Return a mask without the rules that follow from the task: causality and segments."""
    rules = [rule for rule in _rules(mask) if not rule.follows_task]
    if not rules:
        return EverythingSpec()
    return rules[0] if len(rules) == 1 else AllOfSpec(parts=tuple(rules))


def _rules(mask: MaskSpec) -> list[MaskSpec]:
    """Return the masks, none of them an intersection, whose intersection is the given mask."""
    parts = mask.conjuncts
    return [mask] if parts == (mask,) else [rule for part in parts for rule in _rules(part)]
