"""How images are read, cut and changed in training, as data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config, PositiveInt, Probability


class ImageSpec(Config):
    """Images: the size they have and how they are cut into patches."""

    size: PositiveInt | None = Field(
        None,
        description="height and width in pixels that every image is resized to; if unset all must "
        "be squares of one size",
    )
    channels: Literal[1, 3] | None = Field(
        None, description="1 for grey, 3 for colour; if unset 1 for IDX files, 3 for PNG and JPEG"
    )
    patch_size: PositiveInt | None = Field(
        None, description="side of a patch in pixels, which divides the size; 4 if unset"
    )
    pooling: Literal["first", "mean"] | None = Field(
        None,
        description="what stands for an image: a [CLS] vector before its patches (first), which it "
        "is if unset, or their mean",
    )


class AugmentSpec(Config):
    """Images: how each is changed at random in training, anew in every epoch."""

    shift: Annotated[int, Field(ge=0)] = Field(
        0, description="most pixels an image is moved in each direction; what comes in is black"
    )
    rotate: Annotated[float, Field(ge=0, le=180)] = Field(
        0.0, description="most degrees it is turned, either way"
    )
    scale: Probability = Field(
        0.0, description="0.1: it becomes between 0.9 and 1.1 times as large"
    )
    flip: bool = Field(False, description="half of the images are mirrored left to right")
    erase: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="share of the images of which a rectangle is hidden (Zhong 2020)"
    )
