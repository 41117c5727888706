"""The config tree of autoencoders of images with discrete codes. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt, Probability
from heedful.models.model_spec import CommonSpec
from heedful.models.shape_to_spec import vision_spec
from heedful.models.stack_spec import StackSpec
from heedful.nn.pixel_spec import PixelSpec

if TYPE_CHECKING:
    from heedful.models.shape import TranslatorShape


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

    @classmethod
    def of_shape(
        cls,
        shape: TranslatorShape,
        image_size: int,
        channels: int,
        patch_size: int,
        pixels: PixelSpec,
        **codes: int,
    ) -> Self:
        """Return the spec of a new autoencoder; both stacks have blocks of an encoder of images.

        Args:
            shape: options of the architecture.
            image_size, channels, patch_size, pixels: fields of the spec.
            **codes: the fields `codes` and `code_width`, where they are set.

        Raises:
            ConfigError: when patches do not fill the image, or positions are not learned.
        """
        sizes = {"image_size": image_size, "channels": channels, "patch_size": patch_size}
        # The decoder sees all codes at once, so it is an encoder as well, of its own depth.
        stacks = {
            name: vision_spec(
                shape.model_copy(update={"encoder_layers": layers}),
                **sizes,
                pooling="mean",
                labels=(),
                pixels=pixels,
            ).encoder
            for name, layers in (
                ("encoder", shape.encoder_layers),
                ("decoder", shape.decoder_layers),
            )
        }
        more = {**sizes, **stacks, **codes, "dropout": shape.dropout, "pixels": pixels}
        return cls(width=shape.width, **more)

    reads = "images"

    @property
    def image_options(self) -> dict[str, Any]:
        """The values of `[images]` in the settings of a run that gives such a model."""
        own = {name: getattr(self, name) for name in ("patch_size", "codes", "code_width")}
        return {"size": self.image_size, "channels": self.channels, **own}

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
