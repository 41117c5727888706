"""The config tree of autoencoders of images with discrete codes. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt, Probability
from heedful.models.model_spec import CommonSpec
from heedful.models.stack_spec import StackSpec
from heedful.nn.spec import PixelSpec


class AutoencoderSpec(CommonSpec):
    """Images as grids of codes from a learned table, and back (van den Oord 2017)."""

    kind: Literal["autoencoder"] = "autoencoder"
    width: PositiveInt
    image_size: PositiveInt = Field(description="height and width of an image in pixels")
    patch_size: PositiveInt = Field(description="height and width of a patch in pixels")
    channels: PositiveInt = Field(1, description="number of colour channels")
    encoder: StackSpec
    decoder: StackSpec
    codes: Annotated[int, Field(ge=2)] = Field(512, description="number of codes")
    code_width: PositiveInt = Field(16, description="width of the vector of a code")
    dropout: Probability = Field(0.0, description="dropout probability of embeddings")
    pixels: PixelSpec

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for stack in (self.encoder, self.decoder):
            stack.check_width(self.width)
            # Codes replace the memory: whatever else the decoder read would have to be stored, too.
            if stack.has_memory:
                raise ValueError("a stack of an autoencoder has no memory to cross-attend to")
        if self.image_size % self.patch_size:  # pixels left at the border would have no code
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}"
            )
        if not (len(self.pixels.mean) == len(self.pixels.std) == self.channels):
            raise ValueError(f"pixels needs a mean and std for each of {self.channels} channels")
        return self

    reads = "images"

    @property
    def side(self) -> int:
        """Number of codes in a row or a column of an image."""
        return self.image_size // self.patch_size

    @property
    def num_states(self) -> int:
        """Number of states of an image in either stack, one for each patch."""
        return self.side**2

    @property
    def num_positions(self) -> int:
        """Number of learned positions of either stack, one for each patch."""
        return self.num_states

    @property
    def longest_text(self) -> None:
        """None, as the input is no text."""
        return None
