"""Image classification: a network trained on labelled images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
from heedful.models.images.image_spec import ImageModelSpec
from heedful.nn.pixel_spec import PixelSpec
from heedful.train.batch_source import EpochBatches, FixedBatches
from heedful.train.objective import LabelObjective, PenaltyCapture
from heedful.train.task import Setup, Task, check_several, note_labels
from heedful.train.tasks.image_network import check_network, network_spec
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
    initial: ImageModelSpec | None = initial_image_spec(settings)
    check_network(settings, settings.model_kind if initial is None else initial.kind)
    images = read_images(setup, "train", initial)
    labels = images.label_names
    check_several(labels, "label", "labelled images", images.name(0))
    # Fewer labels than the model knows: its classifier is kept whole, in its own order.
    if initial is not None and set(labels) <= set(initial.class_names):
        labels = list(initial.class_names)
    note_labels(setup.events, labels)
    spec = network_spec(settings, images, labels, initial)
    assert spec.pixels is not None
    size = data.budget // spec.num_states  # images of a batch
    if size < 1:
        raise ConfigError(
            f"A batch of {data.budget} positions has no room for an image, which has "
            f"{spec.num_states} (its patches, or places of the last feature map)",
            where="data.batch_tokens",
            remedy="Raise it, or raise images.patch_size",
        )
    training = LabelledImages(images, labels, spec.pixels)
    valid = None
    if data.valid:
        valid_images = read_images(setup, "valid", initial)
        check_shape(valid_images, images)
        valid = LabelledImages(valid_images, labels, spec.pixels)
    weights = [corpus.weight for corpus in data.train]
    content = f"{images.fingerprint} {weights} {spec.labels}"
    augmentation = augmentation_of(setup, spec.pixels)
    # Every image has as many positions as any other: its patches and the class token, or places.
    sizes = np.full(len(images), spec.num_states, np.int64)

    def plan(epoch: int) -> list[Indices]:
        return plan_files(sizes, images.starts.tolist(), data, seed=settings.seed, epoch=epoch)

    def make(indices: Indices, epoch: int) -> ImageBatch:
        return training.batch(indices, augmentation, epoch)

    validation = measure = None
    if valid is not None:
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
        EpochBatches(plan, make, images.name),
        lambda: setup.new_model(spec, None),
        LabelObjective(image_scores, settings.objective.label_smoothing),
        validation,
        measure,
    )


def image_scores(model: Any, batch: ImageBatch, capture: PenaltyCapture) -> Tensor:
    """Return scores [B, labels] of images."""
    scores: Tensor = model.class_logits(model(batch.images, capture=capture))
    return scores


def read_images(
    setup: Setup, role: Literal["train", "valid"], initial: ImageModelSpec | None
) -> EncodedImages:
    """Read labelled images, resized for the initial model if there is one.

    Args:
        setup: setup of the task.
        role: `train` or `valid`.
        initial: spec of the initial model, or None.

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
    return images


def in_order(count: int, size: int) -> Iterator[Indices]:
    """Yield the numbers 0 … count − 1 in batches of `size`."""
    for first in range(0, count, size):
        yield np.arange(first, min(first + size, count))


def augmentation_of(setup: Setup, pixels: PixelSpec) -> Augmentation:
    """Return the random changes of training images that the settings name."""
    # The mean colour in pixel values: after normalisation, areas outside a shifted image are 0.
    filling = tuple(mean / pixels.rescale for mean in pixels.mean)
    return Augmentation(setup.settings.augment, setup.settings.seed, filling)


def check_shape(valid: EncodedImages, images: EncodedImages) -> None:
    """Refuse validation images of another shape than those to train on.

    Raises:
        DataError: when they differ; it names both shapes.
    """
    if valid.shape != images.shape:
        there, here = (" × ".join(map(str, shape)) for shape in (valid.shape, images.shape))
        raise DataError(
            f"The validation images are {there} (channels × height × width), those to train on "
            f"{here}",
            where=valid.name(0),
            remedy="Set images.size and images.channels, to which all are then brought",
        )
