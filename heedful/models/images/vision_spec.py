"""The config trees of models over patches of images: encoders and denoisers. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt, Probability
from heedful.models.images.image_spec import ImageModelSpec
from heedful.models.model_spec import CommonSpec
from heedful.models.stack_spec import StackSpec
from heedful.nn.spec import EmbeddingSpec, NormSpec


class VisionSpec(ImageModelSpec):
    """An encoder of images cut into patches (Dosovitskiy 2021)."""

    kind: Literal["vision"] = "vision"
    width: PositiveInt
    patch_size: PositiveInt = Field(16, description="height and width of a patch in pixels")
    patch_bias: bool = Field(True, description="bias of the linear map of patches")
    input_norm: NormSpec | None = Field(
        None, description="norm of patches with their positions (CLIP, Radford 2021)"
    )
    encoder: StackSpec
    pooling: Literal["first", "mean", "attention"] = Field(
        "first",
        description="state of the whole image: that of a [CLS] token, the mean, or that of a "
        "learned query which reads all states by attention",
    )
    pooling_head: StackSpec | None = Field(
        None, description="stack by which a learned query reads the states (SigLIP, Zhai 2023)"
    )
    distillation: Literal["token", "classifier"] | None = Field(
        None,
        description="a token after [CLS] that learned a teacher's labels (DeiT, Touvron 2021), "
        "without a classifier or with one, whose logits are averaged with the other's",
    )
    pooler: bool = Field(False, description="dense layer and tanh over the pooled state")
    dropout: Probability = Field(0.0, description="dropout probability of embeddings")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.encoder.check_width(self.width)
        _check_patches(self.image_size, self.patch_size)
        if (self.pooling == "attention") != (self.pooling_head is not None):
            raise ValueError("pooling_head belongs to pooling = 'attention'")
        if self.pooling_head is not None:
            self.pooling_head.check_width(self.width)
            if not self.pooling_head.has_memory:
                raise ValueError("the block of pooling_head needs cross_attention")
        if self.distillation and self.pooling != "first":
            raise ValueError("a distillation token stands after [CLS]: pooling = 'first'")
        if self.distillation == "classifier" and not self.class_names:
            raise ValueError("a classifier of the distillation token needs classes")
        if self.encoder.has_memory:
            raise ValueError("an encoder of images has no memory to cross-attend to")
        return self

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return a copy that tells other classes apart.

        A pooler of a model without classifier was trained for another purpose and is left out.
        """
        pooler = self.pooler and bool(self.class_names)
        return super().with_labels(labels).model_copy(update={"pooler": pooler})

    @property
    def image_options(self) -> dict[str, Any]:
        """The values of `[images]` that give this size of images and patches."""
        own = {"network": "vit", "patch_size": self.patch_size, "pooling": self.pooling}
        return super().image_options | own

    @property
    def num_positions(self) -> int:
        """Number of learned positions, one for each state."""
        return self.num_states

    @property
    def num_tokens(self) -> int:
        """Number of states before those of patches: of the class and distillation tokens if any."""
        return (self.pooling == "first") + (self.distillation is not None)

    @property
    def num_states(self) -> int:
        """Number of states of an image: one for each token before the patches, and each patch."""
        return self.num_tokens + (self.image_size // self.patch_size) ** 2


class DenoiserSpec(CommonSpec):
    """A Transformer over noisy patches (Peebles 2023) with cross-attention to a caption's encoder.

    Cross-attention is the way in which Rombach (2022) brings texts to a denoiser.
    """

    kind: Literal["denoiser"] = "denoiser"
    width: PositiveInt
    image_size: PositiveInt = Field(32, description="height and width of an image in pixels")
    patch_size: PositiveInt = Field(4, description="height and width of a patch in pixels")
    channels: PositiveInt = Field(3, description="number of colour channels")
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
        _check_patches(self.image_size, self.patch_size)
        self.embedding.refuse_width()
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


def _check_patches(image_size: int, patch_size: int) -> None:
    """Raise a ValueError when patches do not fill an image."""
    if image_size % patch_size:  # pixels left at the border would belong to no patch
        raise ValueError(f"image_size {image_size} is not a multiple of patch_size {patch_size}")
