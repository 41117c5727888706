"""The loss of autoencoders of images, and the metrics of their codes.

All terms of the loss are functions of a batch alone. The table of codes is a weight that gradients
move, so resuming, accumulating and sharing batches among processes need nothing of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.data.encoded_images import ImageBatch, LabelledImages
from heedful.device import Precision
from heedful.engines.training.training_engine import prepare_training
from heedful.evaluate.task_metrics import scores_by_name
from heedful.models.images.autoencoder import (
    Reconstruction,
    code_perplexity,
    nearest,
    used_codes,
)
from heedful.train.objective import LossContext, LossSum, penalties_of, penalty_of
from heedful.train.tasks.image_source import in_order
from heedful.train.validation import Measure, Measured


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


def code_measure(metrics: Sequence[str], images: LabelledImages, size: int) -> Measure:
    """Make the metrics of the codes of validation images.

    Args:
        metrics: names of the metrics.
        images: validation images.
        size: images of a batch.
    """

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
        own = {
            "codes_used": lambda: used_codes(counts),
            "code_perplexity": lambda: code_perplexity(counts),
        }
        return Measured(scores_by_name(metrics, own, [], []))

    return Measure(len(images.labels), score)
