"""Image classification: preprocessing of pixels and a network of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.image_files import as_pixels, from_array, read_image, to_square
from heedful.device import Precision
from heedful.engines.inference.prepare import HeldModel
from heedful.errors import ConfigError, ModelError
from heedful.models.images.image_model import ImageModel
from heedful.models.images.resnet import ResNet
from heedful.models.images.vision import VisionModel
from heedful.nn.patches import normalized
from heedful.nn.pixel_spec import PixelSpec
from heedful.pipelines.batching import check_is_list, split_on_oom
from heedful.pipelines.predictions import Label
from heedful.pipelines.text_pipeline import ModelPipeline, checked

Picture = str | Path | npt.NDArray[np.uint8]
"""A PNG or JPEG file, or pixels [h, w] or [h, w, C], 0 to 255."""

BATCH_TOKENS = 4096
"""Default number of positions of a batch; each patch of an image is one position."""


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
        # Pixels normalised otherwise than in training give wrong labels without an error.
        if self.spec.pixels is None:
            raise ModelError(
                "The model does not say how pixels become the numbers it reads",
                remedy="Put the preprocessor_config.json it was published with beside its "
                "config.json, then use or import that directory again",
            )
        self.pixels: PixelSpec = self.spec.pixels

    def prepare(self, images: Sequence[Picture]) -> torch.Tensor:
        """Return the model's input for images: grey or colour, resized and normalised.

        Args:
            images: files or pixels.

        Returns:
            Normalised pixels [B, C, h, w] float32.

        Raises:
            DataError: when a file is no image; it is named.
            ConfigError: when Pillow is needed, to read files or to resize, and not installed.
        """
        return normalized(torch.from_numpy(self.squares(images)), self.pixels)

    def squares(self, images: Sequence[Picture]) -> npt.NDArray[np.uint8]:
        """Return images in the model's size and channels, before normalisation.

        Args:
            images: files or pixels.

        Returns:
            Pixels [B, C, h, w] uint8.

        Raises:
            DataError, ConfigError: as `prepare`.
        """
        rows = [self._square(image, number) for number, image in enumerate(images, start=1)]
        return np.stack(rows)

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
            batch_tokens: positions in a batch: images × patches, or places of the last map.

        Returns:
            For each image its labels, the most probable first.

        Raises:
            DataError: when a file is no image; it is named.
            ConfigError: when Pillow is needed, to read files or to resize, and not installed; or
                when `top` or a batch size is below 1.
        """
        for name, asked in (
            ("top", top),
            ("batch_size", batch_size),
            ("batch_tokens", batch_tokens),
        ):
            if asked is not None and asked < 1:
                raise ConfigError("At least 1 must be asked for", where=f"{name} = {asked}")
        check_is_list(images, "images")
        spec = self.spec
        # All images have the same number of positions, so there is no padding to save by sorting.
        size = batch_size or max(1, batch_tokens // spec.num_states)
        network = self.engine
        # An engine in 8 bits has parameters, too: those of norms.
        weight = next(network.parameters())
        results: list[list[Label]] = []

        def run(part: list[int]) -> Tensor:
            with self.computing():
                # Files are read batch by batch, as all images at once may not fit into memory.
                pixels = self.prepare([images[number] for number in part])
                pixels = pixels.to(weight.device, weight.dtype)
                return checked(network.class_logits(network(pixels)))

        plan = [
            range(first, min(first + size, len(images))) for first in range(0, len(images), size)
        ]
        for _, logits in split_on_oom(plan, run):
            # A stable sort: classes of equal probability have the same order on every device.
            best = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
            for values, numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                pairs = zip(numbers[:top], values[:top], strict=True)
                results.append([Label(spec.class_names[n], value) for n, value in pairs])
        return results

    def _square(self, image: Picture, number: int) -> npt.NDArray[np.uint8]:
        spec = self.spec
        if isinstance(image, str | Path):
            picture, where = read_image(Path(image), spec.channels), str(image)
        else:
            where = f"image {number}"
            image = as_pixels(image, where)
            # Grey images of the right size, such as MNIST's digits, need no Pillow.
            if spec.channels == 1 and image.shape == (spec.image_size, spec.image_size):
                return image[None]
            picture = from_array(image, spec.channels, where)
        return to_square(picture, spec.image_size, self.pixels.resample, where)
