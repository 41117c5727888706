"""The part that the config trees of all models of images have in common. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt
from heedful.models.model_spec import CommonSpec, Prediction
from heedful.nn.pixel_spec import PixelSpec


class ImageModelSpec(CommonSpec):
    """Size and preprocessing of images, and the classes that they are given."""

    image_size: PositiveInt = Field(224, description="height and width of an image in pixels")
    channels: PositiveInt = Field(3, description="number of colour channels")
    labels: tuple[str, ...] = Field((), description="names of the classes")
    num_classes: PositiveInt | None = Field(
        None,
        description="number of classes without names; no classifier if unset and without labels",
    )
    pixels: PixelSpec | None = Field(None, description="preprocessing of pixels; unset if unknown")

    @model_validator(mode="after")
    def _classes_and_pixels_fit(self) -> Self:
        # Imported models may give both, as Hugging Face does; then they must agree.
        if self.labels and self.num_classes not in (None, len(self.labels)):
            raise ValueError(f"num_classes {self.num_classes}, but {len(self.labels)} labels")
        if self.pixels and not (len(self.pixels.mean) == len(self.pixels.std) == self.channels):
            raise ValueError(f"pixels needs a mean and std for each of {self.channels} channels")
        shorter = self.pixels.shorter_side if self.pixels else None
        if shorter is not None and shorter < self.image_size:
            raise ValueError(f"{self.image_size} pixels cannot be cut out of pixels.shorter_side")
        return self

    reads = "images"

    @property
    def longest_text(self) -> None:
        """None, as the input is no text."""
        return None

    @property
    def predicts(self) -> Prediction | None:
        """The class of the image; None without a classifier."""
        return "label" if self.class_names else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels, or LABEL_0, LABEL_1 … for classes without names."""
        return self.labels or tuple(f"LABEL_{i}" for i in range(self.num_classes or 0))

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return a copy that tells other classes apart.

        Args:
            labels: names of the classes.
        """
        return self.model_copy(update={"labels": tuple(labels), "num_classes": None})

    @property
    def image_options(self) -> dict[str, Any]:
        """The values of `[images]` in the settings of a run that gives such a network."""
        return {"size": self.image_size, "channels": self.channels}

    @property
    def num_states(self) -> int:
        """Number of states of an image, which are the positions that it takes in a batch."""
        raise NotImplementedError
