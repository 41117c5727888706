"""The spec of Mamba 2's mixer; no other model waits for this module."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt
from heedful.nn.mixer_spec import CommonPartSpec


class Mamba2Spec(CommonPartSpec):
    """A state space of heads, each with one decay (Dao and Gu 2024)."""

    module = "heedful.nn.mixers.mamba2:Mamba2"
    label = "Mamba 2"
    is_one_way = True
    kind: Literal["mamba2"] = "mamba2"
    num_heads: PositiveInt = Field(description="number of heads")
    head_width: PositiveInt = Field(64, description="channels of a head")
    num_groups: PositiveInt = Field(1, description="groups of heads that write and read alike")
    state_size: PositiveInt = Field(128, description="size of the state of a channel")
    convolution: PositiveInt = Field(4, description="kernel width of the convolution")
    bias: bool = Field(False, description="bias vectors of the input and output projections")
    norm_epsilon: Annotated[float, Field(gt=0)] = Field(
        1e-5, description="epsilon of the norm of gated outputs"
    )

    @model_validator(mode="after")
    def _heads_group(self) -> Self:
        if self.num_heads % self.num_groups:
            raise ValueError("num_heads must be a multiple of num_groups")
        return self

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return the mixer of a shape, with inner channels twice as wide as the model."""
        width = max(2 * shape.width // shape.num_heads, 1)
        return cls(num_heads=shape.num_heads, head_width=width, state_size=shape.state_size or 16)
