"""The config tree of residual networks of convolutions. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt
from heedful.models.images.image_spec import ImageModelSpec


class ResNetSpec(ImageModelSpec):
    """A residual network of 3 × 3 convolutions (He 2016, section 4.2).

    A stage is a number of residual blocks. From stage to stage the channels double and the sides of
    the feature maps halve.
    """

    kind: Literal["resnet"] = "resnet"
    width: PositiveInt = Field(16, description="channels of the first stage")
    blocks: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(
        (2, 2, 2), description="numbers of residual blocks of the stages"
    )
    stem_stride: Literal[1, 2] = Field(
        1, description="stride of the first convolution; 2 halves the sides of all feature maps"
    )

    @model_validator(mode="after")
    def _last_map_has_places(self) -> Self:
        # Batch normalisation of one image needs more than one number for each channel.
        if self.last_side < 2:
            raise ValueError(
                f"images of {self.image_size} pixels are too small for {len(self.blocks)} stages: "
                "the last feature map would be a single place"
            )
        return self

    @property
    def image_options(self) -> dict[str, Any]:
        """The values of `[images]` that give this size of images and stages."""
        own = {"stage_width": self.width, "stem_stride": self.stem_stride, "blocks": self.blocks}
        return super().image_options | {"network": "resnet"} | own

    @property
    def num_states(self) -> int:
        """Number of places of the last feature map."""
        return self.last_side**2

    @property
    def last_side(self) -> int:
        """Height and width of the last feature map."""
        stride: int = self.stem_stride * 2 ** (len(self.blocks) - 1)
        return -(-self.image_size // stride)  # ceiling, as borders are padded

    @property
    def state_width(self) -> int:
        """Channels of the last stage, the width D of the states."""
        width: int = self.width * 2 ** (len(self.blocks) - 1)
        return width
