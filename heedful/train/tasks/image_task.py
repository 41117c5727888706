"""Image classification: a network trained on labelled images."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from torch import Tensor

from heedful.data.batch_plan import Indices, plan_files
from heedful.data.encoded_images import (
    Augmentation,
    ImageBatch,
    LabelledImages,
)
from heedful.models.images.image_spec import ImageModelSpec
from heedful.train.batch_source import EpochBatches, FixedBatches
from heedful.train.objective import LabelObjective, PenaltyCapture
from heedful.train.task import Setup, Task, check_several, note_labels
from heedful.train.tasks.image_network import check_network, network_spec
from heedful.train.tasks.image_source import check_room, check_shape, in_order, read_images
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
    wanted = settings.images
    if initial is not None:
        # Its table of learned positions has one entry a patch.
        size_of_model = {"size": initial.image_size, "channels": initial.channels}
        wanted = wanted.model_copy(update=size_of_model)
    images = read_images(setup, "train", wanted)
    labels = images.label_names
    check_several(labels, "label", "labelled images", images.name(0))
    # Fewer labels than the model knows: its classifier is kept whole, in its own order.
    if initial is not None and set(labels) <= set(initial.class_names):
        labels = list(initial.class_names)
    note_labels(setup.events, labels)
    spec = network_spec(settings, images, labels, initial)
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
