"""Images in, their labels out: a vision Transformer and what it asks of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Self, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.image_files import from_array, read_image, to_square
from heedful.device import Precision, RunningPrecision, resolve_device
from heedful.engines.inference.prepare import precision_of, prepare
from heedful.errors import ConfigError, ModelError
from heedful.models.checkpoint import ReadModel, load_model
from heedful.models.vision import VisionModel
from heedful.nn.patches import normalized
from heedful.nn.spec import PixelSpec
from heedful.pipelines.batching import split_on_oom
from heedful.pipelines.predictions import Label

Picture = str | Path | npt.NDArray[np.uint8]
"""A PNG or JPEG file, or pixels [h, w] or [h, w, C], 0 to 255."""

BATCH_TOKENS = 4096
"""Positions that are encoded together if nothing else is asked for; an image has one a patch."""


class ImagePipeline:
    """A classifier of images.

    Args:
        model: with a classifier, and a spec that says how pixels become numbers.
        precision: of the forward passes; float32 if unset.

    Raises:
        ModelError: when the model has no classifier or does not say what it asks of pixels.
    """

    def __init__(self, model: VisionModel, *, precision: Precision | None = None) -> None:
        if not model.spec.class_names:
            raise ModelError(
                "The model has no classifier",
                remedy="Give one that was trained on labelled images",
            )
        if model.spec.pixels is None:
            raise ModelError(
                "The model does not say how pixels become the numbers it reads",
                remedy="Put the preprocessor_config.json it was published with beside its "
                "config.json, then use or import that directory again",
            )
        self.model = model
        self.pixels: PixelSpec = model.spec.pixels
        self.precision = precision

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        precision: RunningPrecision = "auto",
        read: ReadModel = load_model,
    ) -> Self:
        """Load a model directory.

        Args:
            path: a model directory or a run directory (its best model).
            device: auto, cpu, cuda, cuda:1 or mps.
            precision: auto (float32, on the fastest route that is as exact), fp32, bf16, fp16
                or int8.
            read: what reads a directory.

        Raises:
            ModelError: when there is no model, or one that does not label images.
            ConfigError: when the device or precision is not to be had.
        """
        where = resolve_device(device)
        model, _ = read(Path(path))
        if model.spec.reads != "images":
            raise ModelError(
                f"This model reads no images; its kind is {model.spec.kind!r}",
                where=str(path),
                remedy="Give a vision Transformer",
            )
        engine = prepare(cast("VisionModel", model), precision, where, donate=True)
        return cls(engine, precision=precision_of(engine))

    def prepare(self, images: Sequence[Picture]) -> torch.Tensor:
        """Images as the model reads them: grey or colour, resized, in its scale.

        Args:
            images: files, or pixels.

        Returns:
            [B, C, h, w] float32.

        Raises:
            DataError: naming the file that is no picture.
            ConfigError: when Pillow is not installed, which files and other sizes need.
        """
        return normalized(torch.from_numpy(self.squares(images)), self.pixels)

    def squares(self, images: Sequence[Picture]) -> npt.NDArray[np.uint8]:
        """Images in the model's size and channels, before its scale.

        Args:
            images: files, or pixels.

        Returns:
            [B, C, h, w].

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
        """Labels of images.

        Args:
            images: files, or pixels.
            top: labels for each; all if unset.
            batch_size: images run together, instead of `batch_tokens`; no answer depends on it.
            batch_tokens: positions run together: images × patches.

        Returns:
            For each image its labels, the most probable first.

        Raises:
            DataError: naming the file that is no picture.
            ConfigError: when Pillow is not installed, which files and other sizes need, or no
                labels or no images a batch are asked for.
        """
        for name, asked in (
            ("top", top),
            ("batch_size", batch_size),
            ("batch_tokens", batch_tokens),
        ):
            if asked is not None and asked < 1:
                raise ConfigError("At least 1 must be asked for", where=f"{name} = {asked}")
        spec = self.model.spec
        size = batch_size or max(1, batch_tokens // spec.num_states)
        device = self.model.positions.weight.device
        results: list[list[Label]] = []

        def run(part: list[int]) -> Tensor:
            pixels = self.prepare([images[number] for number in part]).to(device)
            autocast = self.precision.autocast() if self.precision else nullcontext()
            with torch.inference_mode(), autocast:
                return self.model.class_logits(self.model(pixels)).float()

        plan = [
            range(first, min(first + size, len(images))) for first in range(0, len(images), size)
        ]
        for _, logits in split_on_oom(plan, run):
            best = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
            for values, numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                pairs = zip(numbers[:top], values[:top], strict=True)
                results.append([Label(spec.class_names[n], value) for n, value in pairs])
        return results

    def _square(self, image: Picture, number: int) -> npt.NDArray[np.uint8]:
        spec = self.model.spec
        if isinstance(image, str | Path):
            picture, where = read_image(Path(image), spec.channels), str(image)
        else:
            where = f"image {number}"
            if spec.channels == 1 and image.shape == (spec.image_size, spec.image_size):
                return image[None]
            picture = from_array(image, spec.channels, where)
        return to_square(picture, spec.image_size, self.pixels.resample, where)
