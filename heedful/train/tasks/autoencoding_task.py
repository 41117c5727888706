"""Autoencoders of images: reconstruction through the nearest codes of a learned table.

All terms of the loss are functions of a batch alone. The table of codes is a weight that gradients
move, so resuming, accumulating and sharing batches among processes need nothing of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.data.encoded_images import ImageBatch, LabelledImages
from heedful.device import Precision
from heedful.engines.training.training_engine import prepare_training
from heedful.evaluate.task_metrics import scores_by_name
from heedful.models.images.autoencoder import Reconstruction, nearest
from heedful.models.images.autoencoder_spec import AutoencoderSpec
from heedful.train.batch_source import FixedBatches
from heedful.train.objective import LossContext, LossSum, penalties_of, penalty_of
from heedful.train.task import Setup, Task
from heedful.train.tasks.image_network import PATCH_SIZE
from heedful.train.tasks.image_source import (
    augmentation_of,
    images_of_batch,
    in_order,
    normalisation,
    read_images,
    training_batches,
)
from heedful.train.validation import Measure, Measured
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
        measure = _measure(setup, held_out, size)
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


@dataclass(frozen=True)
class AutoencoderObjective:
    """Squared error of the pixels, and of the vectors that codes stand for (van den Oord 2017).

    Args:
        commitment: weight of the distance from vectors to their codes, β in the paper.
    """

    commitment: float

    def loss(self, model: Any, batch: ImageBatch, context: LossContext) -> LossSum:
        """Return the loss summed over images; `nll` is the error of the pixels alone.

        The error is the mean over the pixels of an image, in units of their variance.
        """
        capture = penalties_of(model)
        made: Reconstruction = model(batch.images, capture=capture)
        error = (made.images.float() - batch.images).square().mean((1, 2, 3)).sum()
        loss = error
        if model.training:
            loss = loss + self._codebook_loss(made)
        count = batch.target_tokens
        return LossSum(loss + count * penalty_of(capture), count, {"nll": error.detach()})

    def _codebook_loss(self, made: Reconstruction) -> Tensor:
        """Return the distances between vectors and codes [], a mean over an image's patches."""
        chosen = made.table[made.codes]
        codebook = (chosen - made.vectors.detach()).square().sum()
        commitment = (made.vectors - chosen.detach()).square().sum()
        patches = made.codes.shape[1]
        return (codebook + self.commitment * commitment + _revival(made)) / patches


def _revival(made: Reconstruction) -> Tensor:
    """Return the distances [] from codes that no patch has to the vectors nearest to them.

    Without it a code that no vector is near never gets a gradient again. Each counts as much as a
    patch; as soon as it is the nearest code of one, it learns like all others.
    """
    vectors, table = made.vectors.detach().flatten(0, 1), made.table
    closest = vectors[nearest(table, vectors)]
    # No indexing by a mask and no `bincount`: on a GPU the host would wait for either.
    unused = torch.ones(len(table), device=table.device)
    unused[made.codes.flatten()] = 0.0
    return ((table - closest).square().sum(1) * unused).sum()


def _measure(setup: Setup, images: LabelledImages, size: int) -> Measure:
    """Make the metrics of the codes of validation images."""

    def score(
        model: Any, count: int, precision: Precision, on_batch: Callable[[], None]
    ) -> Measured:
        device = next(model.parameters()).device
        engine = prepare_training(model, device)
        counts = torch.zeros(model.spec.codes, dtype=torch.float64)
        for indices in in_order(count, size):
            batch = images.batch(indices).to(device)
            with precision.autocast(), engine.active():
                codes = model.encode(batch.images)
            counts += torch.bincount(codes.flatten().cpu(), minlength=len(counts))
            on_batch()
        own = {"codes_used": lambda: used(counts), "code_perplexity": lambda: perplexity(counts)}
        return Measured(scores_by_name(setup.settings.validation.metrics, own, [], []))

    return Measure(len(images.labels), score)


def used(counts: Tensor) -> float:
    """Return the number of codes that occur, from the number of times [K] that each does."""
    return float((counts > 0).sum())


def perplexity(counts: Tensor) -> float:
    """Return the exponential of the entropy of codes from their counts [K]: K if all are equal."""
    shares = counts / counts.sum()
    return float(torch.special.entr(shares).sum().exp())
