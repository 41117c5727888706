"""Images and captions in one space: two encoders trained to tell which belong together (CLIP)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from heedful.data.batch_plan import Indices, plan_files
from heedful.data.captioned_images import CaptionBatch, CaptionedImages
from heedful.data.encoded_images import Augmentation
from heedful.device import Precision
from heedful.engines.training.training_engine import prepare_training
from heedful.errors import ConfigError
from heedful.evaluate.retrieval import retrieval_recall
from heedful.evaluate.task_metrics import scores_by_name
from heedful.models.images.two_towers_spec import TwoTowersSpec
from heedful.models.shape_to_spec import encoder_spec
from heedful.nn.losses import contrastive_loss
from heedful.train.batch_source import EpochBatches, FixedBatches
from heedful.train.objective import LossContext, LossSum, penalties_of, penalty_of
from heedful.train.task import Setup, Task, check_several, plural
from heedful.train.tasks.encoder_task import encoder_tokenizers
from heedful.train.tasks.image_task import check_shape, in_order, labelled_spec, read_images
from heedful.train.validation import Measure, Measured


@dataclass(frozen=True)
class ContrastObjective:
    """Contrastive loss of the pairs of a batch, each of which is compared with all others.

    Args:
        label_smoothing: share of smoothing in training; evaluation uses none.
    """

    label_smoothing: float

    def loss(self, model: Any, batch: CaptionBatch, context: LossContext) -> LossSum:
        """Return the loss summed over the batch's pairs."""
        captures = penalties_of(model), penalties_of(model)
        scores = model(batch.images, batch.ids, batch.positions, *captures)
        smoothing = self.label_smoothing if model.training else 0.0
        sums = contrastive_loss(scores, batch.targets, smoothing)
        count = batch.target_tokens
        loss = sums.loss + count * (penalty_of(captures[0]) + penalty_of(captures[1]))
        return LossSum(loss, count, {"nll": sums.nll})


def prepare(setup: Setup) -> Task:
    """Read and check captioned images, and train the tokenizer of the captions.

    Raises:
        DataError: when images or captions are unusable.
        ConfigError: when a batch has no room for two images, or a setting is not for this task.
    """
    settings, data = setup.settings, setup.settings.data
    _refuse_settings(setup)
    images = read_images(setup, "train", None)
    check_several(images.label_names, "caption", "captioned images", images.name(0))
    tokenizers = setup.tokenizers(lambda: encoder_tokenizers(setup, images.label_names))
    vision = labelled_spec(setup, images, (), None)
    assert vision.pixels is not None
    texts = encoder_spec(settings.model, tokenizers.source.size, data.max_length, ())
    spec = TwoTowersSpec(width=settings.model.width, images=vision, texts=texts)
    size = data.budget // vision.num_states  # pairs of a batch
    if size < 2:
        raise ConfigError(
            f"A batch of {data.budget} positions has no room for two images, each of which has "
            f"{vision.num_states} (its patches), and a single pair has nothing to differ from",
            where="data.batch_tokens",
            remedy="Raise it, or raise images.patch_size",
        )
    captioned = (tokenizers.source, vision.pixels, data.max_length)
    training = CaptionedImages(images, *captioned)
    _note(setup, "training", training)
    validation = measure = None
    if data.valid:
        valid_images = read_images(setup, "valid", None)
        check_shape(valid_images, images)
        valid = CaptionedImages(valid_images, *captioned)
        _note(setup, "validation", valid)
        validation = FixedBatches(list(in_order(len(valid.numbers), size)), valid.batch)
        measure = Measure(len(valid.numbers), _recall(settings.validation.metrics, valid, size))
    weights = [corpus.weight for corpus in data.train]
    content = f"{images.fingerprint} {weights} {tokenizers.fingerprint}"
    filling = tuple(mean / vision.pixels.rescale for mean in vision.pixels.mean)
    augmentation = Augmentation(settings.augment, settings.seed, filling)
    # Captions are short, so a batch is as large as its images.
    sizes = np.full(len(images), vision.num_states, np.int64)

    def plan(epoch: int) -> list[Indices]:
        return plan_files(sizes, images.starts.tolist(), data, seed=settings.seed, epoch=epoch)

    def make(indices: Indices, epoch: int) -> CaptionBatch:
        return training.batch(indices, augmentation, epoch)

    return Task(
        tokenizers,
        hashlib.sha256(content.encode()).hexdigest(),
        EpochBatches(plan, make, images.name),
        lambda: setup.new_model(spec, tokenizers),
        ContrastObjective(settings.objective.label_smoothing),
        validation,
        measure,
    )


def _refuse_settings(setup: Setup) -> None:
    settings = setup.settings
    if settings.init is not None:
        raise ConfigError(
            "A model of images and texts is trained anew", where="init", remedy="Leave it out"
        )
    parallel = settings.parallel
    parts = {name: getattr(parallel, name) for name in ("shard", "tensor", "context", "parts")}
    for name, number in parts.items():
        if (number or 1) > 1:
            # `parts` is also set where there are more processes than batches of an update.
            raise ConfigError(
                "The loss compares all pairs of a batch, which is computed as a whole by one "
                "process",
                where=f"parallel.{name} = {number}",
                remedy="Train with one process, or with as many as optimizer.accumulate has "
                "batches",
            )


def _note(setup: Setup, name: str, captioned: CaptionedImages) -> None:
    setup.events.note(f"{name}: {plural(len(captioned.captions), 'different caption')}")
    if captioned.num_cut:
        length = setup.settings.data.max_length
        setup.events.note(
            f"{name}: {plural(captioned.num_cut, 'caption')} cut at data.max_length = {length}"
        )


def _recall(
    metrics: tuple[str, ...], valid: CaptionedImages, size: int
) -> Callable[[Any, int, Precision, Callable[[], None]], Measured]:
    """Return the function of a `Measure`: the mean of both directions' recall at 1."""

    def score(
        model: Any, count: int, precision: Precision, on_batch: Callable[[], None]
    ) -> Measured:
        device = next(model.parameters()).device
        engine = prepare_training(model, device)
        # Only captions of the images that are measured are to be found.
        known, numbers = np.unique(valid.numbers[:count], return_inverse=True)
        images, texts = [], []
        with precision.autocast(), engine.active():
            for indices in in_order(count, size):
                batch = valid.batch(indices).to(device)
                images.append(_array(model.image_vectors(batch.images)))
                on_batch()
            for places in in_order(len(known), size):
                ids, positions = valid.tokens(known[places])
                texts.append(_array(model.text_vectors(ids.to(device), positions.to(device))))
        of_images, of_texts = np.concatenate(images), np.concatenate(texts)

        def recall() -> float:
            return sum(retrieval_recall(of_images, of_texts, numbers, (1,)).values()) / 2

        nearest = known[(of_images @ of_texts.T).argmax(1)]
        outputs = [valid.captions[number] for number in nearest]
        references = [[valid.captions[number]] for number in valid.numbers[:count]]
        return Measured(scores_by_name(metrics, {"recall": recall}, outputs, references))

    return score


def _array(vectors: Tensor) -> Any:
    return vectors.float().cpu().numpy()
