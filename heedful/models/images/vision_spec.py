"""The config trees of models over patches of images: encoders and denoisers. No torch here."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt, Probability
from heedful.models.model_spec import CommonSpec, Prediction
from heedful.models.stack_spec import StackSpec
from heedful.nn.spec import EmbeddingSpec, PixelSpec


class PatchedSpec(CommonSpec):
    """The part that the specs of models over patches of images have in common."""

    image_size: PositiveInt = Field(224, description="height and width of an image in pixels")
    patch_size: PositiveInt = Field(16, description="height and width of a patch in pixels")
    channels: PositiveInt = Field(3, description="number of colour channels")

    def check_patches(self) -> None:
        """Raise a ValueError when patches do not fill an image."""
        if self.image_size % self.patch_size:  # pixels left at the border would belong to no patch
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}"
            )


class VisionSpec(PatchedSpec):
    """An encoder of images cut into patches (Dosovitskiy 2021)."""

    kind: Literal["vision"] = "vision"
    encoder: StackSpec
    pooling: Literal["first", "mean"] = Field(
        "first", description="state of the whole image: that of a [CLS] token, or the mean"
    )
    pooler: bool = Field(False, description="dense layer and tanh over the pooled state")
    labels: tuple[str, ...] = Field((), description="names of the classes")
    num_classes: PositiveInt | None = Field(
        None,
        description="number of classes without names; no classifier if unset and without labels",
    )
    dropout: Probability = Field(0.0, description="dropout probability of embeddings")
    pixels: PixelSpec | None = Field(None, description="preprocessing of pixels; unset if unknown")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.encoder.check_width(self.width)
        self.check_patches()
        # Imported models may give both, as Hugging Face does; then they must agree.
        if self.labels and self.num_classes not in (None, len(self.labels)):
            raise ValueError(f"num_classes {self.num_classes}, but {len(self.labels)} labels")
        if self.pixels and not (len(self.pixels.mean) == len(self.pixels.std) == self.channels):
            raise ValueError(f"pixels needs a mean and std for each of {self.channels} channels")
        if self.encoder.has_memory:
            raise ValueError("an encoder of images has no memory to cross-attend to")
        return self

    reads = "images"

    @property
    def num_positions(self) -> int:
        """Number of learned positions, one for each state."""
        return self.num_states

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

    @property
    def num_states(self) -> int:
        """Number of states of an image: one for each patch, and one for the class token if any."""
        return (self.image_size // self.patch_size) ** 2 + (self.pooling == "first")


class DenoiserSpec(PatchedSpec):
    """A Transformer over noisy patches (Peebles 2023) with cross-attention to a caption's encoder.

    Cross-attention is the way in which Rombach (2022) brings texts to a denoiser.
    """

    kind: Literal["denoiser"] = "denoiser"
    vocabulary: PositiveInt
    embedding: EmbeddingSpec = EmbeddingSpec()
    encoder: StackSpec
    decoder: StackSpec
    max_length: PositiveInt = Field(32, description="maximum length of a caption in tokens")
    words: tuple[str, ...] = Field(
        (), description="words of the captions that it was trained on; unset if there are too many"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.check_patches()
        for stack in (self.encoder, self.decoder):
            stack.check_width(self.width)
        if self.encoder.has_memory:
            raise ValueError("an encoder has no memory to read: it makes the memory")
        if not self.decoder.has_memory:
            raise ValueError("the decoder's block needs cross_attention")
        return self

    reads = "captions"

    @property
    def num_patches(self) -> int:
        """Number of patches of an image, which are the positions of the decoder."""
        return (self.image_size // self.patch_size) ** 2
