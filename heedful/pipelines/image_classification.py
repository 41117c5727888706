"""Image classification: preprocessing of pixels and a network of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.device import Precision
from heedful.engines.inference.prepare import HeldModel
from heedful.errors import ModelError
from heedful.models.images.image_model import ImageModel
from heedful.models.images.resnet import ResNet
from heedful.models.images.vision import VisionModel
from heedful.pipelines.image_input import BATCH_TOKENS, ImageInput, Picture
from heedful.pipelines.predictions import Label, ranked
from heedful.pipelines.text_pipeline import ModelPipeline, checked


class ImagePipeline(ModelPipeline[VisionModel | ResNet]):
    """A classifier of images.

    Args:
        model: model with a classifier, and with the normalisation of pixels in its spec.
        precision: precision of the forward passes; float32 if unset.

    Raises:
        ModelError: when the model has no classifier, or its spec no normalisation of pixels.
    """

    kind = ImageModel
    verbs = ("classify",)
    refusal = "This model reads no images"
    remedy = "Give a vision Transformer or a residual network"

    def __init__(
        self,
        model: VisionModel | ResNet | HeldModel[VisionModel | ResNet],
        *,
        precision: Precision | None = None,
    ) -> None:
        super().__init__(model, precision=precision)
        if not self.spec.class_names:
            raise ModelError(
                "The model has no classifier",
                remedy="Give one that was trained on labelled images",
            )
        self._input = ImageInput(self.spec)
        self.pixels = self._input.pixels

    def prepare(self, images: Sequence[Picture]) -> torch.Tensor:
        """Return the model's input for images; see `ImageInput.prepare`."""
        return self._input.prepare(images)

    def squares(self, images: Sequence[Picture]) -> npt.NDArray[np.uint8]:
        """Return images in the model's size, before normalisation; see `ImageInput.squares`."""
        return self._input.squares(images)

    def classify(
        self,
        images: Sequence[Picture],
        *,
        top: int | None = None,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[list[Label]]:
        """Classify images.

        Args:
            images: files or pixels.
            top: number of labels for each image; all if unset.
            batch_size: images in a batch, instead of `batch_tokens`; it changes no result.
            batch_tokens: positions in a batch: images × patches.

        Returns:
            For each image its labels, the most probable first.

        Raises:
            DataError: when a file is no image; it is named.
            ConfigError: when Pillow is needed, to read files or to resize, and not installed; or
                when `top` or a batch size is below 1.
        """
        network = self.engine
        # An engine in 8 bits has parameters, too: those of norms.
        weight = next(network.parameters())

        def run(pixels: Tensor) -> Tensor:
            with self.computing():
                states = network(pixels.to(weight.device, weight.dtype))
                return checked(network.class_logits(states))

        batches = self._input.run(images, run, batch_size, batch_tokens)
        return [each for logits in batches for each in ranked(logits, self.spec.class_names, top)]
