"""The preprocessing of images as data. No torch here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from heedful.config import Config, Resampling


class PixelSpec(Config):
    """Preprocessing of pixels, 0 to 255: resized, times `rescale`, normalised by channel."""

    resample: Resampling | None = Field(
        None, description="resampling filter for images of other sizes; they are refused if unset"
    )
    rescale: Annotated[float, Field(gt=0)] = Field(1 / 255, description="factor on pixels")
    mean: tuple[float, ...] = Field(description="mean of each channel after rescale")
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(description="deviation of each channel")
