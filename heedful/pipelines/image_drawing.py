"""Pictures for captions: a denoiser leads noise to images, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heedful.data.idx_files import Pixels
from heedful.data.image_files import from_array
from heedful.data.images.noisy_images import CaptionTokens, noise_of
from heedful.device import Precision
from heedful.engines.inference.prepare import HeldModel
from heedful.errors import ConfigError
from heedful.models.images.denoiser import Denoiser
from heedful.pipelines.batching import check_is_list, split_on_oom
from heedful.pipelines.image_input import pictures_of
from heedful.pipelines.text_pipeline import TextPipeline, checked
from heedful.text.tokenizer import TextTokenizer

STEPS = 30
"""Default number of steps from noise to an image."""
MOST_STEPS = 1000
"""Most steps; the embedding of times tells no more of them apart."""
GUIDANCE = 2.0
"""Default strength of classifier-free guidance."""
BATCH_TOKENS = 4096
"""Default number of positions of a batch; each patch of an image is one position."""


class DrawingPipeline(TextPipeline[Denoiser]):
    """A maker of pictures that captions describe.

    Args:
        model: denoiser, perhaps with its engine.
        tokenizer: tokenizer of the captions.
        precision: precision of the forward passes; float32 if unset.
    """

    kind = Denoiser
    verbs = ("draw",)
    refusal = "This model draws no pictures"
    remedy = "Give a model of --task diffusion"

    def __init__(
        self,
        model: Denoiser | HeldModel[Denoiser],
        tokenizer: TextTokenizer,
        *,
        precision: Precision | None = None,
    ) -> None:
        super().__init__(model, tokenizer, precision=precision)
        # One place of the spec's length is that of eos.
        self._tokens = CaptionTokens(tokenizer, self.spec.words, self.spec.max_length - 1)

    def draw(
        self,
        captions: Sequence[str],
        *,
        steps: int = STEPS,
        guidance: float = GUIDANCE,
        seed: int = 1,
        first: int = 0,
        batch_size: int | None = None,
        place: Callable[[int], str] = lambda number: f"caption {number + 1}",
    ) -> list[Pixels]:
        """Draw a picture for each caption.

        The velocity that is followed is u + guidance · (c − u), of the velocities c with the
        caption and u without one (classifier-free guidance, Ho 2022). A picture depends on the
        caption, its number and the seed, and not on other captions.

        Args:
            captions: captions of words that the model has learned; an empty one draws any picture.
            steps: number of steps of equal length (Euler's method).
            guidance: strength of the caption: 1 follows the model as it is, more makes pictures
                plainer and surer, 0 ignores the caption.
            seed: seed of the noise that pictures begin as.
            first: number of the first caption, for captions that come in several calls.
            batch_size: pictures in a batch; it changes no picture but in the last digits.
            place: name of a caption in errors, given its index.

        Returns:
            For each caption pixels [h, w], or [h, w, 3] in colour, uint8.

        Raises:
            DataError: when a caption has an unknown word or too many tokens; it is named.
            ConfigError: when a setting is out of range.
        """
        check_is_list(captions, "captions")
        _check(steps, guidance, batch_size)
        if not captions:
            return []
        # The row of the empty caption comes last.
        ids, positions = map(torch.from_numpy, self._tokens.encode([*captions, ""], place))
        spec = self.spec
        shape = (spec.channels, spec.image_size, spec.image_size)
        passes = 1 if guidance == 1 else 2
        size = batch_size or max(1, BATCH_TOKENS // (spec.num_patches * passes))
        pictures: list[Pixels] = []

        def run(part: list[int]) -> Tensor:
            numbers = np.array(part, np.int64) + first
            noise = torch.from_numpy(noise_of(seed, numbers, math.prod(shape)))
            # With guidance each picture has a second row, that of the empty caption.
            rows = part + [len(captions)] * len(part) * (passes - 1)
            noise = noise.view(-1, *shape).float()
            return self._integrate(noise, ids[rows], positions[rows], steps, guidance)

        plan = [
            range(start, min(start + size, len(captions)))
            for start in range(0, len(captions), size)
        ]
        for _, images in split_on_oom(plan, run, place=place):
            pictures += pictures_of(images.add(1).mul(127.5).round().clamp(0, 255).to(torch.uint8))
        return pictures

    def save(self, picture: Pixels, path: Path) -> None:
        """Write a picture that was drawn as a PNG file.

        Raises:
            ConfigError: when Pillow is not installed.
        """
        from_array(picture, self.spec.channels, str(path)).save(path)

    def _integrate(
        self, x: Tensor, ids: Tensor, positions: Tensor, steps: int, guidance: float
    ) -> Tensor:
        """Follow velocities from noise x [B, C, h, w] to images, from time 0 to 1.

        Args:
            x: noise.
            ids: captions [B or 2B, S]; the second half are empty ones.
            positions: positions of their tokens [B or 2B, S].
            steps: number of steps.
            guidance: strength of the captions.
        """
        model = self.engine
        device = model.positions.weight.device
        x, ids, positions = (each.to(device) for each in (x, ids, positions))
        copies = len(ids) // len(x)
        with self.computing():
            # Captions are read once, and their keys and values serve all steps.
            read = model.decoder.read(model.encode(ids, positions))
            for step in range(steps):
                times = x.new_full((len(ids),), step / steps)
                images = x.repeat(copies, 1, 1, 1).to(model.positions.weight.dtype)
                velocity = checked(model.velocity(images, times, positions, read))
                if copies == 2:
                    with_caption, without = velocity.chunk(2)
                    velocity = without + guidance * (with_caption - without)
                x = x + velocity / steps
        return x


def _check(steps: int, guidance: float, batch_size: int | None) -> None:
    if not 1 <= steps <= MOST_STEPS:
        raise ConfigError(
            f"The way from noise to an image has 1 to {MOST_STEPS:,} steps",
            where=f"steps = {steps}",
            remedy=f"{STEPS} is usual; more than 100 seldom change a picture",
        )
    if not 0 <= guidance <= 100:  # also refuses NaN
        raise ConfigError(
            "The strength of guidance lies between 0 and 100",
            where=f"guidance = {guidance}",
            remedy="1 is none, and 2 to 4 is usual",
        )
    if batch_size is not None and batch_size < 1:
        raise ConfigError("At least 1 must be asked for", where=f"batch_size = {batch_size}")
