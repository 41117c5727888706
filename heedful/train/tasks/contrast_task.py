"""Images and captions in one space: two encoders trained to tell which belong together (CLIP)."""

from __future__ import annotations

import hashlib
from typing import Any

from heedful.data.captioned_images import CaptionedImages
from heedful.errors import ConfigError
from heedful.models.images.two_towers_spec import TwoTowersSpec
from heedful.models.shape_to_spec import encoder_spec
from heedful.train.batch_source import FixedBatches
from heedful.train.objective import ContrastObjective
from heedful.train.task import Setup, Task, check_several, plural
from heedful.train.tasks.encoder_task import encoder_tokenizers
from heedful.train.tasks.image_network import network_spec
from heedful.train.tasks.image_source import (
    augmentation_of,
    in_order,
    read_images,
    training_batches,
)
from heedful.train.validation import recall_measure


def prepare(setup: Setup) -> Task:
    """Read and check captioned images, and train the tokenizer of the captions.

    Raises:
        DataError: when images or captions are unusable.
        ConfigError: when a batch has no room for two images, or a setting is not for this task.
    """
    settings, data = setup.settings, setup.settings.data
    _refuse_settings(setup)
    images = read_images(setup, "train")
    check_several(images.label_names, "caption", "captioned images", images.name(0))
    tokenizers = setup.tokenizers(lambda: encoder_tokenizers(setup, images.label_names))
    vision: Any = network_spec(settings, images, (), None)
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
        valid = CaptionedImages(read_images(setup, "valid", like=images), *captioned)
        _note(setup, "validation", valid)
        validation = FixedBatches(list(in_order(len(valid.numbers), size)), valid.batch)
        measure = recall_measure(
            settings.validation.metrics, valid, lambda count: in_order(count, size)
        )
    weights = [corpus.weight for corpus in data.train]
    content = f"{images.fingerprint} {weights} {tokenizers.fingerprint}"
    augmentation = augmentation_of(setup, vision.pixels)
    return Task(
        tokenizers,
        hashlib.sha256(content.encode()).hexdigest(),
        # Captions are short, so a batch is as large as its images.
        training_batches(
            setup,
            images,
            vision.num_states,
            lambda numbers, epoch: training.batch(numbers, augmentation, epoch),
        ),
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
