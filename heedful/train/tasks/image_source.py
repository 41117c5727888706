"""Shared parts of tasks on images: reading them, and batches of a fixed number of positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from heedful.data.batch_plan import Indices
from heedful.data.corpus_spec import ImageSpec
from heedful.data.encoded_images import EncodedImages, encode_images
from heedful.data.image_files import image_reader
from heedful.errors import ConfigError, DataError
from heedful.train.task import Setup


def check_room(budget: int, positions: int) -> int:
    """Return the number of images of a batch.

    Args:
        budget: positions of a batch.
        positions: positions of an image.

    Raises:
        ConfigError: when a batch has no room for an image.
    """
    if budget < positions:
        raise ConfigError(
            f"A batch of {budget} positions has no room for an image, which has {positions} "
            "(its patches, or places of the last feature map)",
            where="data.batch_tokens",
            remedy="Raise it, or raise images.patch_size",
        )
    return budget // positions


def read_images(setup: Setup, role: Literal["train", "valid"], spec: ImageSpec) -> EncodedImages:
    """Read the images of the training or validation data, in the size and channels of a spec."""
    readers = [image_reader(corpus, spec) for corpus in getattr(setup.settings.data, role)]
    images = encode_images(readers, setup.cache, notice=setup.events.warn)
    channels, height, width = images.shape
    name = "training" if role == "train" else "validation"
    kind = "grey" if channels == 1 else "colour"
    setup.events.note(f"{name}: {len(images):,} {kind} images of {height} × {width} pixels")
    return images


def in_order(count: int, size: int) -> Iterator[Indices]:
    """Yield the numbers 0 … count − 1 in batches of `size`."""
    for first in range(0, count, size):
        yield np.arange(first, min(first + size, count))


def check_shape(valid: EncodedImages, images: EncodedImages) -> None:
    """Refuse validation images of another size than the training images.

    Raises:
        DataError: when sizes or channels differ; both are named.
    """
    if valid.shape != images.shape:
        there, here = (" × ".join(map(str, shape)) for shape in (valid.shape, images.shape))
        raise DataError(
            f"The validation images are {there} (channels × height × width), those to train on "
            f"{here}",
            where=valid.name(0),
            remedy="Set images.size and images.channels, to which all are then brought",
        )
