"""The config tree of denoisers of images that read a caption. No torch here."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt
from heedful.models.images.vision_spec import PatchedSpec
from heedful.models.stack_spec import StackSpec
from heedful.nn.spec import EmbeddingSpec


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
