"""The preprocessing of images as data. No torch here."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Resampling


class PixelSpec(Config):
    """Preprocessing of pixels, 0 to 255: resized, times `rescale`, normalised by channel."""

    resample: Resampling | None = Field(
        None, description="resampling filter for images of other sizes; they are refused if unset"
    )
    shorter_side: PositiveInt | None = Field(
        None,
        description="length to which the shorter side of an image is resized before its middle is "
        "cut out (CLIP); both sides are resized to the model's if unset",
    )
    rescale: Annotated[float, Field(gt=0)] = Field(1 / 255, description="factor on pixels")
    mean: tuple[float, ...] = Field(description="mean of each channel after rescale")
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(description="deviation of each channel")

    @model_validator(mode="after")
    def _resizes(self) -> Self:
        if self.shorter_side is not None and self.resample is None:
            raise ValueError("shorter_side needs a filter: resample")
        return self
