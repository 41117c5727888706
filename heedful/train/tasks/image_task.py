"""Image classification: a vision Transformer trained on labelled images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from heedful.data.batch_plan import Indices, plan_files
from heedful.data.corpus_spec import ImageSpec
from heedful.data.encoded_images import (
    Augmentation,
    EncodedImages,
    ImageBatch,
    LabelledImages,
)
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.shape_to_spec import vision_spec
from heedful.nn.spec import PixelSpec
from heedful.train.batch_source import EpochBatches, FixedBatches
from heedful.train.objective import LabelObjective, PenaltyCapture
from heedful.train.task import Setup, Task, check_several, note_labels
from heedful.train.tasks.image_source import (
    PATCH_SIZE,
    check_room,
    check_shape,
    in_order,
    read_images,
)
from heedful.train.validation import label_measure
from heedful.train.warm_start import initial_vision_spec


def prepare(setup: Setup) -> Task:
    """Read and check labelled images.

    Raises:
        DataError: when images or labels are unusable.
        ConfigError: when a batch has no room for an image, or a setting contradicts the initial
            model.
        ModelError: when the initial model is missing or of another kind.
    """
    settings, data = setup.settings, setup.settings.data
    initial: VisionSpec | None = initial_vision_spec(settings)
    wanted = _wanted(settings.images, initial)
    images = read_images(setup, "train", wanted)
    labels = images.label_names
    check_several(labels, "label", "labelled images", images.name(0))
    # Fewer labels than the model knows: its classifier is kept whole, in its own order.
    if initial is not None and set(labels) <= set(initial.class_names):
        labels = list(initial.class_names)
    note_labels(setup.events, labels)
    spec = _spec_for(setup, images, labels, initial)
    assert spec.pixels is not None
    size = check_room(data.budget, spec.num_states)
    training = LabelledImages(images, labels, spec.pixels)
    valid = None
    if data.valid:
        valid_images = read_images(setup, "valid", wanted)
        check_shape(valid_images, images)
        valid = LabelledImages(valid_images, labels, spec.pixels)
    weights = [corpus.weight for corpus in data.train]
    content = f"{images.fingerprint} {weights} {spec.labels}"
    # The mean colour in pixel values: after normalisation, areas outside a shifted image are 0.
    filling = tuple(mean / spec.pixels.rescale for mean in spec.pixels.mean)
    augmentation = Augmentation(settings.augment, settings.seed, filling)
    # Every image has as many positions as any other: its patches and the class token.
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


def _wanted(spec: ImageSpec, initial: VisionSpec | None) -> ImageSpec:
    """Return the size and channels of images: those of the initial model if there is one."""
    if initial is None:
        return spec
    # Its table of learned positions has one entry a patch.
    return spec.model_copy(update={"size": initial.image_size, "channels": initial.channels})


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
    mean, std = (tuple(value / 255 for value in values) for values in images.statistics())
    channels, side, _ = images.shape
    pixels = PixelSpec(resample="bilinear", mean=mean, std=std)
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
