"""Diffusion: a denoiser of images that reads their captions, trained by flow matching."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from heedful.data.noisy_images import CaptionTokens, NoisyBatch, NoisyImages, words_of
from heedful.errors import ConfigError
from heedful.models.shape_to_spec import denoiser_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.batch_source import FixedBatches
from heedful.train.objective import LossContext, LossSum, penalties_of, penalty_of
from heedful.train.task import Setup, Task
from heedful.train.tasks.image_network import PATCH_SIZE
from heedful.train.tasks.image_source import (
    images_of_batch,
    in_order,
    read_images,
    training_batches,
)

DROPPED_CAPTIONS = 0.1
"""Share of captions that are left out, so that a model also learns images without (Ho 2022)."""


@dataclass(frozen=True)
class FlowObjective:
    """Squared error of the velocity, the mean over an image's values (Lipman 2023)."""

    def loss(self, model: Any, batch: NoisyBatch, context: LossContext) -> LossSum:
        """Return the loss summed over images; `tokens` counts these."""
        capture = penalties_of(model)
        inputs = (batch.images, batch.times, batch.captions, batch.caption_positions)
        # Under autocast velocities are bfloat16, too coarse for a mean of small errors.
        errors = (model(*inputs, capture=capture).float() - batch.velocities).square()
        loss, count = errors.mean((1, 2, 3)).sum(), batch.target_tokens
        return LossSum(loss + count * penalty_of(capture), count, {"nll": loss.detach()})


def prepare(setup: Setup) -> Task:
    """Read and check images with captions.

    Raises:
        DataError: when images or captions are unusable.
        ConfigError: when a batch has no room for an image, or an initial model is set.
    """
    settings, data = setup.settings, setup.settings.data
    if settings.init is not None:
        raise ConfigError("A denoiser begins with new weights", where="init", remedy="Leave it out")
    images = read_images(setup, "train")
    captions = images.label_names
    words = words_of(captions)
    tokenizers = setup.tokenizers(lambda: _tokenizers(setup, captions))
    tokens = CaptionTokens(tokenizers.source, words, data.max_length)
    channels, side, _ = images.shape
    spec = denoiser_spec(
        settings.model,
        tokenizers.source.size,
        data.max_length + 1,  # eos
        image_size=side,
        channels=channels,
        patch_size=settings.images.patch_size or PATCH_SIZE,
        words=words,
    )
    size = images_of_batch(data.budget, spec.num_patches)
    training = NoisyImages(images, tokens)
    setup.events.note(f"{len(captions):,} different captions of {len(words) or 'many'} words")
    validation = None
    if data.valid:
        valid_images = read_images(setup, "valid", like=images)
        valid = NoisyImages(valid_images, tokens)
        # Noise and times of any run's validations are the same, so that losses are comparable.
        validation = FixedBatches(
            list(in_order(len(valid_images), size)), lambda numbers: valid.batch(numbers, 0, 0, 0.0)
        )
    weights = [corpus.weight for corpus in data.train]
    content = f"{images.fingerprint} {weights} {tokenizers.fingerprint}"
    return Task(
        tokenizers,
        hashlib.sha256(content.encode()).hexdigest(),
        training_batches(
            setup,
            images,
            spec.num_patches,
            lambda numbers, epoch: training.batch(numbers, settings.seed, epoch, DROPPED_CAPTIONS),
        ),
        lambda: setup.new_model(spec, tokenizers),
        FlowObjective(),
        validation,
    )


def _tokenizers(setup: Setup, captions: list[str]) -> TokenizerPair:
    tokenizer = train_tokenizer(setup.settings.tokenizer, captions, setup.events.warn)
    return TokenizerPair(tokenizer, tokenizer)
