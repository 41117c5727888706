"""Shared parts of tasks on images: reading them, and batches of a fixed number of positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from heedful.data.batch_plan import Indices, plan_files
from heedful.data.encoded_images import Augmentation, EncodedImages, encode_images
from heedful.data.image_files import image_reader
from heedful.errors import ConfigError, DataError
from heedful.nn.pixel_spec import PixelSpec
from heedful.train.batch_source import Batch, EpochBatches
from heedful.train.task import Setup


def images_of_batch(budget: int, positions: int) -> int:
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


def read_images(
    setup: Setup,
    role: Literal["train", "valid"],
    initial: Any | None = None,
    like: EncodedImages | None = None,
) -> EncodedImages:
    """Read images, resized for the initial model if there is one.

    Args:
        setup: setup of the task.
        role: corpora to read.
        initial: spec of the initial model, or None.
        like: images whose size and channels they must have; None for any.

    Raises:
        DataError: when an image cannot be used; it is named.
    """
    spec = setup.settings.images
    if initial is not None:
        # Its table of learned positions has one entry a patch.
        size = {"size": initial.image_size, "channels": initial.channels}
        spec = spec.model_copy(update=size)
    readers = [image_reader(corpus, spec) for corpus in getattr(setup.settings.data, role)]
    images = encode_images(readers, setup.cache, notice=setup.events.warn)
    channels, height, width = images.shape
    name = "training" if role == "train" else "validation"
    kind = "grey" if channels == 1 else "colour"
    setup.events.note(f"{name}: {len(images):,} {kind} images of {height} × {width} pixels")
    if like is not None and images.shape != like.shape:
        there, here = (" × ".join(map(str, each.shape)) for each in (images, like))
        raise DataError(
            f"The validation images are {there} (channels × height × width), those to train on "
            f"{here}",
            where=images.name(0),
            remedy="Set images.size and images.channels, to which all are then brought",
        )
    return images


def normalisation(images: EncodedImages) -> PixelSpec:
    """Return the normalisation by which each channel has mean 0 and standard deviation 1."""
    mean, std = (tuple(value / 255 for value in values) for values in images.statistics())
    return PixelSpec(resample="bilinear", mean=mean, std=std)


def in_order(count: int, size: int) -> Iterator[Indices]:
    """Yield the numbers 0 … count − 1 in batches of `size`."""
    for first in range(0, count, size):
        yield np.arange(first, min(first + size, count))


def augmentation_of(setup: Setup, pixels: PixelSpec) -> Augmentation:
    """Return the random changes of training images that the settings name."""
    # The mean colour in pixel values: after normalisation, areas outside a shifted image are 0.
    filling = tuple(mean / pixels.rescale for mean in pixels.mean)
    return Augmentation(setup.settings.augment, setup.settings.seed, filling)


def training_batches(
    setup: Setup,
    images: EncodedImages,
    positions: int,
    make: Callable[[Indices, int], Batch],
) -> EpochBatches[Indices]:
    """Return the batches of training images, in an order of its own in each epoch.

    Args:
        setup: setup of the task.
        images: training images.
        positions: positions of each, which are as many as any other's.
        make: function from numbers of images and the epoch to a batch.
    """
    settings, starts = setup.settings, images.starts.tolist()
    sizes = np.full(len(images), positions, np.int64)

    def plan(epoch: int) -> list[Indices]:
        return plan_files(sizes, starts, settings.data, seed=settings.seed, epoch=epoch)

    return EpochBatches(plan, make, images.name)
