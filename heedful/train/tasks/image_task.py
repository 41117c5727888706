"""Image classification: a vision Transformer trained on labelled images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor

from heedful.data.batch_plan import Indices, plan_files
from heedful.data.encoded_images import (
    Augmentation,
    EncodedImages,
    ImageBatch,
    LabelledImages,
    encode_images,
)
from heedful.data.image_files import image_reader
from heedful.errors import ConfigError, DataError
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.shape_to_spec import vision_spec
from heedful.nn.spec import PixelSpec
from heedful.train.batch_source import EpochBatches, FixedBatches
from heedful.train.objective import LabelObjective, PenaltyCapture
from heedful.train.task import Setup, Task, check_several, note_labels
from heedful.train.validation import label_measure
from heedful.train.warm_start import initial_image_spec


def prepare(setup: Setup) -> Task:
    """Read and check labelled images.

    Raises:
        DataError: when images or labels are unusable.
        ConfigError: when a batch has no room for an image, or a setting contradicts the initial
            model.
        ModelError: when the initial model is missing or of another kind.
    """
    settings, data = setup.settings, setup.settings.data
    initial: VisionSpec | None = initial_image_spec(settings)
    images = read_images(setup, "train", initial)
    labels = images.label_names
    check_several(labels, "label", "labelled images", images.name(0))
    # Fewer labels than the model knows: its classifier is kept whole, in its own order.
    if initial is not None and set(labels) <= set(initial.class_names):
        labels = list(initial.class_names)
    note_labels(setup.events, labels)
    spec = _spec_for(setup, images, labels, initial)
    assert spec.pixels is not None
    size = images_of_batch(data.budget, spec.num_states)
    source = training_batches(setup, LabelledImages(images, labels, spec.pixels), spec.num_states)
    weights = [corpus.weight for corpus in data.train]
    content = f"{images.fingerprint} {weights} {spec.labels}"
    validation = measure = None
    if data.valid:
        valid = LabelledImages(read_images(setup, "valid", initial, images), labels, spec.pixels)
        validation = FixedBatches(list(in_order(len(valid.labels), size)), valid.batch)
        measure = label_measure(
            settings.validation.metrics,
            image_scores,
            valid.labels,
            labels,
            lambda count: in_order(count, size),
            valid.batch,
        )
    return Task(
        None,
        hashlib.sha256(content.encode()).hexdigest(),
        source,
        lambda: setup.new_model(spec, None),
        LabelObjective(image_scores, settings.objective.label_smoothing),
        validation,
        measure,
    )


def image_scores(model: Any, batch: ImageBatch, capture: PenaltyCapture) -> Tensor:
    """Return scores [B, labels] of images."""
    scores: Tensor = model.class_logits(model(batch.images, capture=capture))
    return scores


def images_of_batch(budget: int, positions: int) -> int:
    """Return the number of images of a batch.

    Args:
        budget: positions of a batch.
        positions: positions of an image.

    Raises:
        ConfigError: when it has no room for an image.
    """
    if budget < positions:
        raise ConfigError(
            f"A batch of {budget} positions has no room for an image, which has "
            f"{positions} (its patches)",
            where="data.batch_tokens",
            remedy="Raise it, or raise images.patch_size",
        )
    return budget // positions


def training_batches(
    setup: Setup, training: LabelledImages, positions: int
) -> EpochBatches[Indices]:
    """Return the batches of training images, augmented as the settings say.

    Args:
        setup: setup of the task.
        training: training images.
        positions: positions of each, which are as many as any other's.
    """
    settings, images, pixels = setup.settings, training.images, training.pixels
    # The mean colour in pixel values: after normalisation, areas outside a shifted image are 0.
    filling = tuple(mean / pixels.rescale for mean in pixels.mean)
    augmentation = Augmentation(settings.augment, settings.seed, filling)
    sizes = np.full(len(images), positions, np.int64)
    starts, data = images.starts.tolist(), settings.data

    def plan(epoch: int) -> list[Indices]:
        return plan_files(sizes, starts, data, seed=settings.seed, epoch=epoch)

    def make(indices: Indices, epoch: int) -> ImageBatch:
        return training.batch(indices, augmentation, epoch)

    return EpochBatches(plan, make, images.name)


def read_images(
    setup: Setup,
    role: Literal["train", "valid"],
    initial: Any | None,
    like: EncodedImages | None = None,
) -> EncodedImages:
    """Read images, resized for the initial model if there is one.

    Args:
        setup: setup of the task.
        role: corpora to read.
        initial: spec of the initial model, or None.
        like: images whose size and channels they must have; None for any.

    Raises:
        DataError: when an image is unusable, or is not `like` others.
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
    if like is not None:
        _check_shape(images, like)
    return images


def in_order(count: int, size: int) -> Iterator[Indices]:
    """Yield the numbers 0 … count − 1 in batches of `size`."""
    for first in range(0, count, size):
        yield np.arange(first, min(first + size, count))


def _check_shape(valid: EncodedImages, images: EncodedImages) -> None:
    if valid.shape != images.shape:
        there, here = (" × ".join(map(str, shape)) for shape in (valid.shape, images.shape))
        raise DataError(
            f"The validation images are {there} (channels × height × width), those to train on "
            f"{here}",
            where=valid.name(0),
            remedy="Set images.size and images.channels, to which all are then brought",
        )


PATCH_SIZE = 4
"""Default side of a new model's patches, in pixels."""


def normalisation(images: EncodedImages) -> PixelSpec:
    """Return the normalisation by which each channel has mean 0 and standard deviation 1."""
    mean, std = (tuple(value / 255 for value in values) for values in images.statistics())
    return PixelSpec(resample="bilinear", mean=mean, std=std)


def _spec_for(
    setup: Setup,
    images: EncodedImages,
    labels: Sequence[str],
    initial: VisionSpec | None,
) -> VisionSpec:
    """Return the spec for labelled images: a new one, or the initial model's with their labels.

    In a new model, and in one whose preprocessing is unknown, each channel of the training images
    is normalised to mean 0 and standard deviation 1.

    Args:
        setup: setup of the task.
        images: training images.
        labels: labels of the images.
        initial: spec of the initial model, or None.

    Raises:
        ConfigError: when patches do not fill the image, or positions are not learned.
    """
    settings = setup.settings
    channels, side, _ = images.shape
    pixels = normalisation(images)
    if initial is None:
        return vision_spec(
            settings.model,
            image_size=side,
            channels=channels,
            patch_size=settings.images.patch_size or PATCH_SIZE,
            pooling=settings.images.pooling or "first",
            labels=tuple(labels),
            pixels=pixels,
        )
    changes = {
        "labels": tuple(labels),
        "num_classes": None,
        # A pooler of a model without classifier was trained for another purpose.
        "pooler": initial.pooler and bool(initial.class_names),
        # Training images are resized by this filter, so the model directory must say so.
        "pixels": (initial.pixels or pixels).model_copy(update={"resample": pixels.resample}),
    }
    return initial.model_copy(update=changes)
