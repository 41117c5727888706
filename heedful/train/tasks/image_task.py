"""Image classification: a vision Transformer or a residual network, trained on labelled images."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor

from heedful.data.encoded_images import ImageBatch, LabelledImages
from heedful.models.images.image_spec import ImageModelSpec
from heedful.train.batch_source import FixedBatches
from heedful.train.objective import LabelObjective, PenaltyCapture
from heedful.train.task import Setup, Task, check_several, note_labels
from heedful.train.tasks.image_network import check_network, network_spec
from heedful.train.tasks.image_source import (
    augmentation_of,
    images_of_batch,
    in_order,
    read_images,
    training_batches,
)
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
    size = images_of_batch(data.budget, spec.num_states)
    training = LabelledImages(images, labels, spec.pixels)
    augmentation = augmentation_of(setup, spec.pixels)
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
        training_batches(
            setup,
            images,
            spec.num_states,
            lambda numbers, epoch: training.batch(numbers, augmentation, epoch),
        ),
        lambda: setup.new_model(spec, None),
        LabelObjective(image_scores, settings.objective.label_smoothing),
        validation,
        measure,
    )


def image_scores(model: Any, batch: ImageBatch, capture: PenaltyCapture) -> Tensor:
    """Return scores [B, labels] of images."""
    scores: Tensor = model.class_logits(model(batch.images, capture=capture))
    return scores
