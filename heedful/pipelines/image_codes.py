"""Codes of images, and images of codes: an autoencoder with its preprocessing of pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.device import Precision
from heedful.engines.inference.prepare import HeldModel
from heedful.errors import DataError
from heedful.models.images.autoencoder import Autoencoder, code_perplexity, used_codes
from heedful.nn.patches import denormalized
from heedful.pipelines.batching import check_is_list
from heedful.pipelines.image_input import BATCH_TOKENS, ImageInput, Picture, pictures_of
from heedful.pipelines.text_pipeline import ModelPipeline, checked

Codes = npt.NDArray[np.int64]
"""The codes of an image [s, s], row by row."""

_AT_ONCE = 1000  # images in memory


class CodePipeline(ModelPipeline[Autoencoder]):
    """An autoencoder of images.

    Args:
        model: model, with the normalisation of pixels in its spec.
        precision: precision of the forward passes; float32 if unset.
    """

    kind = Autoencoder
    verbs = ("encode", "decode")
    refusal = "This model is no autoencoder of images"
    remedy = "Give one that was trained by --task autoencode"

    def __init__(
        self,
        model: Autoencoder | HeldModel[Autoencoder],
        *,
        precision: Precision | None = None,
    ) -> None:
        super().__init__(model, precision=precision)
        self._input = ImageInput(self.spec)

    def encode(self, images: Sequence[Picture], *, batch_tokens: int = BATCH_TOKENS) -> list[Codes]:
        """Return the codes of images, [s, s] each.

        Args:
            images: files or pixels.
            batch_tokens: positions in a batch: images × patches.

        Raises:
            DataError: when a file is no image; it is named.
            ConfigError: when Pillow is needed, to read files or to resize, and not installed.
        """
        side, weight = self.spec.side, self.engine.codebook.weight

        def run(pixels: Tensor) -> Tensor:
            with self.computing():
                return self.engine.encode(pixels.to(weight.device, weight.dtype))

        found = self._input.run(images, run, None, batch_tokens)
        return [codes.cpu().reshape(side, side).numpy() for batch in found for codes in batch]

    def decode(
        self, codes: Sequence[object], *, batch_tokens: int = BATCH_TOKENS
    ) -> list[npt.NDArray[np.uint8]]:
        """Return the images of codes: grey pixels [h, w], or colours [h, w, 3].

        Args:
            codes: codes of an image each, as `encode` gives them, or nested lists.
            batch_tokens: positions in a batch: images × patches.

        Raises:
            DataError: when an item is no square of codes of the model's; it is named.
        """
        check_is_list(codes, "codes")
        grids = [self.checked_codes(each, f"item {n}") for n, each in enumerate(codes, start=1)]

        def run(part: list[int]) -> Tensor:
            with self.computing():
                chosen = torch.from_numpy(np.stack([grids[number].flatten() for number in part]))
                images = self.engine.decode(chosen.to(self.engine.codebook.weight.device))
                return denormalized(checked(images), self._input.pixels)

        found = self._input.in_batches(len(grids), run, None, batch_tokens)
        return [picture for batch in found for picture in pictures_of(batch)]

    def distortion(self, images: Sequence[Picture]) -> dict[str, float]:
        """Return how far images come back from their codes, and how evenly codes are used.

        Args:
            images: files or pixels, at least one.

        Returns:
            The mean squared error of pixels between 0 and 1, the ratio of signal to noise in
            decibels, the number of codes that occur, and the perplexity of their distribution,
            which is their number if all are equally frequent.

        Raises:
            DataError, ConfigError: as `encode` does.
        """
        total, pixels = 0.0, 0
        counts = torch.zeros(self.spec.codes, dtype=torch.float64)
        for start in range(0, len(images), _AT_ONCE):
            part = images[start : start + _AT_ONCE]
            codes = self.encode(part)
            counts += torch.bincount(
                torch.from_numpy(np.stack(codes)).flatten(), minlength=len(counts)
            )
            # In the model's size, which is that of the answers.
            given = pictures_of(torch.from_numpy(self._input.squares(part)))
            for known, found in zip(given, self.decode(codes), strict=True):
                away = (known.astype(np.float64) - found) / 255
                total, pixels = total + float((away**2).sum()), pixels + away.size
        error = total / pixels
        return {
            "mean_squared_error": error,
            "signal_to_noise": -10 * math.log10(max(error, 1e-12)),
            "codes_used": used_codes(counts),
            "code_perplexity": code_perplexity(counts),
        }

    def checked_codes(self, value: object, where: str) -> Codes:
        """Return the codes of an image as an array [s, s].

        Args:
            value: array or nested list.
            where: name of the item in errors.

        Raises:
            DataError: when they are no square of the model's codes.
        """
        side, count = self.spec.side, self.spec.codes
        try:
            codes = np.asarray(value)
        except ValueError:  # rows of different lengths
            codes = np.array(None)
        fits = codes.shape == (side, side) and codes.dtype.kind in "iu"
        if not fits or codes.min() < 0 or codes.max() >= count:
            raise DataError(
                f"These are no codes of the model: {side} rows of {side} whole numbers from 0 to "
                f"{count - 1}",
                where=where,
                remedy="Give codes that this model, or one trained on its codes, has written",
            )
        return codes.astype(np.int64)
