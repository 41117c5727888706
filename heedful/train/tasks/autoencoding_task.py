"""Autoencoders of images: reconstruction through the nearest codes of a learned table."""

from __future__ import annotations

import hashlib

from heedful.data.encoded_images import LabelledImages
from heedful.models.images.autoencoder_spec import AutoencoderSpec
from heedful.train.batch_source import FixedBatches
from heedful.train.task import Setup, Task
from heedful.train.tasks.autoencoder_loss import AutoencoderObjective, code_measure
from heedful.train.tasks.image_network import PATCH_SIZE
from heedful.train.tasks.image_source import (
    augmentation_of,
    images_of_batch,
    in_order,
    normalisation,
    read_images,
    training_batches,
)
from heedful.train.warm_start import initial_image_spec


def prepare(setup: Setup) -> Task:
    """Read and check images; their labels or captions are not used.

    Raises:
        DataError: when images are unusable.
        ConfigError: when a batch has no room for an image, or a setting contradicts the initial
            model.
        ModelError: when the initial model is missing or of another kind.
    """
    settings, data = setup.settings, setup.settings.data
    spec = initial_image_spec(settings)
    images = read_images(setup, "train", spec)
    if spec is None:
        channels, side, _ = images.shape
        shape, own = settings.model, settings.images
        patch_size = own.patch_size or PATCH_SIZE
        codes = {name: getattr(own, name) for name in ("codes", "code_width") if getattr(own, name)}
        pixels = normalisation(images)
        spec = AutoencoderSpec.of_shape(shape, side, channels, patch_size, pixels, **codes)
    size = images_of_batch(data.budget, spec.num_states)
    training = LabelledImages(images, images.label_names, spec.pixels)
    augmentation = augmentation_of(setup, spec.pixels)
    content = f"{images.fingerprint} {[corpus.weight for corpus in data.train]}"
    validation = measure = None
    if data.valid:
        valid = read_images(setup, "valid", spec, images)
        held_out = LabelledImages(valid, valid.label_names, spec.pixels)
        validation = FixedBatches(list(in_order(len(valid), size)), held_out.batch)
        measure = code_measure(settings.validation.metrics, held_out, size)
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
        AutoencoderObjective(settings.objective.commitment),
        validation,
        measure,
    )
