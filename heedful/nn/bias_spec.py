"""Specs of position biases that few models have; no other model waits for this module."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt
from heedful.nn.spec import CommonBiasSpec


class TransformerXLSpec(CommonBiasSpec):
    """A key for each distance, projected from its sinusoids, and two trained queries (Dai 2019)."""

    module = "heedful.nn.attention.relative_positions:TransformerXL"
    kind: Literal["transformer_xl"] = "transformer_xl"

    def check_width(self, width: int) -> None:
        """Refuse odd widths, as sinusoids come in pairs (ValueError)."""
        if width % 2:
            raise ValueError(f"width {width} is odd, but sinusoids of transformer_xl come in pairs")


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
