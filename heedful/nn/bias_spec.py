"""Specs of position biases: terms of attention scores that depend on distances, as data.

Nothing here imports torch, as in `heedful.nn.spec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from heedful.config import Config, PositionScheme, PositiveInt, open_class, open_union

_BIASES = "heedful.nn.attention.relative_positions"


class CommonBiasSpec(Config):
    """Base of the specs of position biases."""

    family: ClassVar[str] = "position bias"
    module: ClassVar[str]  # `package.module:name` of its `Bias`, which `of_spec` makes
    is_shared: ClassVar[bool] = False  # true for one bias of all layers, as in T5

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return the bias for a shape's options; see `CommonPartSpec.of_shape`."""
        return cls()


class AlibiSpec(CommonBiasSpec):
    """A penalty linear in distance, a slope per head (Press 2022)."""

    module = f"{_BIASES}:Alibi"
    kind: Literal["alibi"] = "alibi"


class T5BiasSpec(CommonBiasSpec):
    """A trained bias per head and distance bucket (Raffel 2020)."""

    module = f"{_BIASES}:T5Bias"
    is_shared = True
    kind: Literal["t5"] = "t5"
    num_buckets: PositiveInt = 32
    max_distance: PositiveInt = 128
    bidirectional: bool = True

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return the bias, with buckets for each side where later tokens are visible."""
        return cls(bidirectional=not causal)


class KerpleSpec(CommonBiasSpec):
    """A penalty logarithmic in distance, trained for each head (Chi 2022)."""

    module = f"{_BIASES}:Kerple"
    kind: Literal["kerple"] = "kerple"


class RelativeKeysSpec(CommonBiasSpec):
    """A trained key per clipped distance, multiplied with the query (Shaw 2018)."""

    module = f"{_BIASES}:RelativeKeys"
    kind: Literal["relative_keys"] = "relative_keys"
    max_distance: PositiveInt = 16

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return the bias, with keys up to the distance that a shape names."""
        return cls(max_distance=shape.relative_distance)


class TransformerXLSpec(CommonBiasSpec):
    """A key for each distance, projected from its sinusoids, and two trained queries (Dai 2019)."""

    module = f"{_BIASES}:TransformerXL"
    kind: Literal["transformer_xl"] = "transformer_xl"


class DisentangledSpec(CommonBiasSpec):
    """Products of contents with trained vectors of distances, both ways (DeBERTa, He 2021)."""

    module = "heedful.nn.attention.disentangled:Disentangled"
    kind: Literal["disentangled"] = "disentangled"
    num_buckets: PositiveInt = Field(256, description="number of vectors for each direction")
    max_distance: PositiveInt | None = Field(
        512,
        description="distance from which on all share the last vector, with logarithmic buckets "
        "from half of num_buckets on; a vector for each distance if unset",
    )
    norm_epsilon: Annotated[float, Field(gt=0)] | None = Field(
        1e-7, description="epsilon of the layer norm of the vectors; no norm if unset"
    )
    terms: Literal["both", "content_to_position", "position_to_content"] = Field(
        "both", description="products of queries with distances, of keys with distances, or both"
    )

    @model_validator(mode="after")
    def _buckets_grow(self) -> Self:
        # The logarithm of a ratio of at most 1 would divide by zero or turn the order round.
        middle = self.num_buckets // 2
        if self.max_distance is not None and not 1 <= middle < self.max_distance - 1:
            raise ValueError("max_distance must exceed half of num_buckets, which are at least 2")
        return self


_OwnBias = (
    AlibiSpec | T5BiasSpec | KerpleSpec | RelativeKeysSpec | TransformerXLSpec | DisentangledSpec
)

BIASES: Mapping[str, type[CommonBiasSpec]] = {spec.known_as(): spec for spec in get_args(_OwnBias)}
"""The package's own position biases by their kind."""

if TYPE_CHECKING:  # a registered spec has the same methods
    BiasSpec = _OwnBias
else:
    BiasSpec = open_union("position bias", _OwnBias)


def bias_of_shape(shape: Any, causal: bool) -> BiasSpec | None:
    """Return the position bias that a shape's positions are, if they are one.

    Args:
        shape: options, a `TranslatorShape`.
        causal: restriction of every token to those before it.
    """
    if shape.positions in get_args(PositionScheme) and shape.positions not in BIASES:
        return None
    spec = open_class("position bias", shape.positions, BIASES)
    bias: BiasSpec = spec.of_shape(shape, causal)  # type: ignore[assignment]
    return bias
