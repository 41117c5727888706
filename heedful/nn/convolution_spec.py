"""The spec of convolutions over tokens, as data; nothing here imports torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt, Probability
from heedful.nn.mixer_spec import CommonPartSpec


class ConvolutionSpec(CommonPartSpec):
    """A convolution over neighbouring tokens with gated linear units (Dauphin 2017)."""

    module = "heedful.nn.mixers.convolution:Convolution"
    module_with = (("columns", "heedful.nn.mixers.convolution_2d:Convolution2d"),)
    label = "Gated convolution"
    section = "convolution"
    dropout_option = "dropout"
    kind: Literal["convolution"] = "convolution"
    kernel_width: PositiveInt = Field(
        3, description="number of tokens that an output depends on, or side of a square kernel"
    )
    causal: bool = Field(False, description="hide later tokens")
    dropout: Probability = Field(0.0, description="dropout probability of the input")
    columns: PositiveInt | None = Field(
        None,
        description="tokens in a row of an image whose rows follow each other, for square kernels; "
        "one dimension if unset",
    )
    first: Annotated[int, Field(ge=0)] = Field(
        0, description="position of the top left token of the image"
    )

    @model_validator(mode="after")
    def _is_of_an_image(self) -> Self:
        if self.columns is None:
            if self.first:
                raise ValueError("first is the beginning of an image: it needs columns")
            return self
        if not self.causal:
            raise ValueError("columns is for models without an encoder, which hide later tokens")
        # A wider kernel would see the same columns twice.
        if self.kernel_width // 2 >= self.columns:
            raise ValueError(
                f"kernel_width {self.kernel_width} reaches past a row of {self.columns} columns"
            )
        return self

    @model_validator(mode="after")
    def _has_a_middle(self) -> Self:
        if (not self.causal or self.columns is not None) and self.kernel_width % 2 == 0:
            raise ValueError(
                f"kernel_width {self.kernel_width} has no middle, where the token itself stands: "
                "use an odd one, or causal = true without columns"
            )
        return self

    @property
    def reads_ahead(self) -> str | None:
        """The reason why the part cannot generate token by token; None if it can."""
        return None if self.causal else "a convolution without causal = true reads later tokens"
