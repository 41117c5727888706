"""Input of models of images: files or pixels, resized and normalised, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.image_files import as_pixels, from_array, read_image, to_square
from heedful.errors import ConfigError, ModelError
from heedful.nn.patches import normalized
from heedful.nn.pixel_spec import PixelSpec
from heedful.pipelines.batching import check_is_list, split_on_oom

Picture = str | Path | npt.NDArray[np.uint8]
"""A PNG or JPEG file, or pixels [h, w] or [h, w, C], 0 to 255."""

BATCH_TOKENS = 4096
"""Default number of positions of a batch; each patch of an image is one position."""


def pictures_of(images: Tensor) -> list[npt.NDArray[np.uint8]]:
    """Return images [B, C, h, w] uint8 as files have them: [h, w] in grey, [h, w, 3] in colour."""
    grey = images.shape[1] == 1
    return [each[0] if grey else each.transpose(1, 2, 0) for each in images.cpu().numpy()]


class ImageInput:
    """Maker of a model's input from images.

    Args:
        spec: spec of the model, with the normalisation of pixels.

    Raises:
        ModelError: when the spec has no normalisation of pixels.
    """

    def __init__(self, spec: Any) -> None:
        # Pixels normalised otherwise than in training give wrong labels without an error.
        if spec.pixels is None:
            raise ModelError(
                "The model does not say how pixels become the numbers it reads",
                remedy="Put the preprocessor_config.json it was published with beside its "
                "config.json, then use or import that directory again",
            )
        self.spec = spec
        self.pixels: PixelSpec = spec.pixels

    def prepare(self, images: Sequence[Picture]) -> Tensor:
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

    def run(
        self,
        images: Sequence[Picture],
        compute: Callable[[Tensor], Tensor],
        batch_size: int | None,
        batch_tokens: int,
    ) -> Iterator[Tensor]:
        """Yield the result of each batch of images, in order.

        Args:
            images: files or pixels.
            compute: function from normalised pixels [B, C, h, w] to a result.
            batch_size: images in a batch, instead of `batch_tokens`; it changes no result.
            batch_tokens: positions in a batch: images × patches.

        Raises:
            DataError: when a file is no image; it is named.
            ConfigError: when Pillow is needed and not installed, or a batch size is below 1.
        """
        check_is_list(images, "images")

        def work(part: list[int]) -> Tensor:
            # Files are read batch by batch, as all images at once may not fit into memory.
            return compute(self.prepare([images[number] for number in part]))

        return self.in_batches(len(images), work, batch_size, batch_tokens)

    def in_batches(
        self,
        count: int,
        work: Callable[[list[int]], Tensor],
        batch_size: int | None,
        batch_tokens: int,
    ) -> Iterator[Tensor]:
        """Yield the result of each batch, in order, in smaller batches where memory runs out.

        Args:
            count: number of images.
            work: function from numbers of images to a row for each.
            batch_size: images in a batch, instead of `batch_tokens`.
            batch_tokens: positions in a batch.

        Raises:
            ConfigError: when a batch size is below 1.
        """
        for name, asked in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
            if asked is not None and asked < 1:
                raise ConfigError("At least 1 must be asked for", where=f"{name} = {asked}")
        # All images have the same number of positions, so there is no padding to save by sorting.
        size = batch_size or max(1, batch_tokens // self.spec.num_states)
        plan = [range(first, min(first + size, count)) for first in range(0, count, size)]
        return (result for _, result in split_on_oom(plan, work))

    def _square(self, image: Picture, number: int) -> npt.NDArray[np.uint8]:
        spec = self.spec
        if isinstance(image, str | Path):
            picture, where = read_image(Path(image), spec.channels), str(image)
        else:
            where = f"image {number}"
            image = as_pixels(image, where)
            # Grey images of the right size, such as MNIST's digits, need no Pillow.
            whole = self.pixels.shorter_side in (None, spec.image_size)
            if whole and spec.channels == 1 and image.shape == (spec.image_size, spec.image_size):
                return image[None]
            picture = from_array(image, spec.channels, where)
        pixels = self.pixels
        return to_square(picture, spec.image_size, pixels.resample, where, pixels.shorter_side)
