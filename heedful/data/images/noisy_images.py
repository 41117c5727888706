"""Images with captions, mixed with noise for training denoisers.

The path from noise to an image is a straight line, x_t = (1 − t) · noise + t · image, with the
velocity image − noise (flow matching, Lipman 2023). Noise, time and whether a caption is dropped
are functions of the seed, the epoch and the image's number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.batch_plan import Indices
from heedful.data.batches import ExampleBatch
from heedful.data.encoded_images import EncodedImages, draws
from heedful.data.padding import source_tensors
from heedful.errors import DataError
from heedful.nn.patches import normalized
from heedful.nn.pixel_spec import PixelSpec
from heedful.text.tokenizer import TextTokenizer

MOST_WORDS = 1000
"""Most different words of captions that a model remembers, to refuse others."""


def pixels_of(channels: int) -> PixelSpec:
    """Return the normalisation of pixels of a denoiser: from −1 for 0 to 1 for 255."""
    halves = (0.5,) * channels
    return PixelSpec(resample="bilinear", mean=halves, std=halves)


@dataclass(frozen=True)
class NoisyBatch(ExampleBatch):
    """A batch of noisy images with their captions.

    Args:
        images: images on their way from noise [B, C, h, w] float32.
        velocities: image − noise [B, C, h, w] float32.
        times: place on the way [B] float32, 0 for noise and 1 for images.
        captions: ids [B, S] int64, each row ending in eos, then padding.
        caption_positions: positions [B, S] int64, −1 for padding.
        indices: numbers of the images [B] int64.
    """

    images: Tensor
    velocities: Tensor
    times: Tensor
    captions: Tensor
    caption_positions: Tensor
    indices: Tensor

    @property
    def target_tokens(self) -> int:
        """Number of images, each of which is one target."""
        return len(self.indices)


class CaptionTokens:
    """Token ids of captions, for models that know certain words.

    Args:
        tokenizer: tokenizer of the captions.
        words: words that captions may have; none for any.
        longest: most tokens of a caption, without eos.
    """

    def __init__(self, tokenizer: TextTokenizer, words: Sequence[str], longest: int) -> None:
        self.tokenizer = tokenizer
        self.words = frozenset(words)
        self.longest = longest

    def encode(
        self, captions: Sequence[str], where: Callable[[int], str]
    ) -> tuple[Indices, Indices]:
        """Encode captions.

        Args:
            captions: texts; an empty one stands for an image without a caption.
            where: function from a caption's index to its place, for error messages.

        Returns:
            Ids and positions [B, S] int64; each row ends in eos, and positions of padding are −1.

        Raises:
            DataError: when a caption has an unknown word, or is too long.
        """
        rows = self.tokenizer.encode_batch(captions)
        for number, (caption, row) in enumerate(zip(captions, rows, strict=True)):
            self._check(caption, len(row), partial(where, number))
        ids, positions = source_tensors(rows, self.tokenizer)
        return ids.numpy(), positions.numpy()

    def _check(self, caption: str, length: int, where: Callable[[], str]) -> None:
        unknown = [word for word in caption.split() if word not in self.words]
        if self.words and unknown:
            known = ", ".join(sorted(self.words)[:30])
            raise DataError(
                f"No caption of the training data has the word {unknown[0]!r}",
                where=where(),
                remedy=f"Use its words: {known}{' …' * (len(self.words) > 30)}",
            )
        if length > self.longest:
            raise DataError(
                f"The caption has {length} tokens, more than the {self.longest} of data.max_length",
                where=where(),
                remedy="Shorten it, or train with a larger data.max_length",
            )


def words_of(captions: Sequence[str]) -> tuple[str, ...]:
    """Return the different words of captions, sorted; none if there are more than `MOST_WORDS`."""
    words = sorted({word for caption in captions for word in caption.split()})
    return tuple(words) if len(words) <= MOST_WORDS else ()


class NoisyImages:
    """Images with encoded captions, for making batches.

    Args:
        images: encoded images, whose labels are the captions.
        tokens: encoder of captions.

    Raises:
        DataError: when a caption has an unknown word, or is too long; its first image is named.
    """

    def __init__(self, images: EncodedImages, tokens: CaptionTokens) -> None:
        captions = images.label_names
        numbers = images.labels(captions)
        self.images = images
        self.numbers = numbers
        # The last row is the empty caption, in whose place captions are dropped.
        self.ids, self.positions = tokens.encode(
            [*captions, ""], lambda number: images.name(int(np.argmax(numbers == number)))
        )
        self.pixels = pixels_of(images.shape[0])

    def batch(self, indices: Indices, seed: int, epoch: int, dropped: float) -> NoisyBatch:
        """Mix images with noise.

        Args:
            indices: numbers of the images [B].
            seed: seed of the run.
            epoch: number of the epoch, from 0.
            dropped: probability of an empty caption (classifier-free guidance, Ho 2022).
        """
        clean = normalized(torch.from_numpy(self.images.gather(indices)), self.pixels)
        # One more for the time, so that an image has noise of its own in each epoch.
        normal = torch.from_numpy(noise_of(seed, indices, clean[0].numel() + 1, epoch))
        noise = normal[:, 1:].reshape(clean.shape)
        # Logit-normal times: the middle of the way is the hardest (Esser 2024, section 3.1).
        times = torch.from_numpy(1 / (1 + np.exp(-normal[:, 0].numpy())))
        at = times[:, None, None, None]
        is_dropped = draws(seed + 1, epoch, indices, 1)[:, 0] < dropped
        chosen = np.where(is_dropped, len(self.ids) - 1, self.numbers[indices])
        # Shorter batches of captions need no columns that are padding in every row.
        width = int((self.positions[chosen] >= 0).sum(1).max())
        return NoisyBatch(
            ((1 - at) * noise + at * clean).float(),
            (clean - noise).float(),
            times.float(),
            torch.from_numpy(self.ids[chosen, :width]),
            torch.from_numpy(self.positions[chosen, :width]),
            torch.from_numpy(indices),
        )


def noise_of(seed: int, indices: Indices, count: int, epoch: int = 0) -> npt.NDArray[np.float64]:
    """Draw standard normal random numbers, a function of seed, epoch and index alone.

    Args:
        seed: seed of the run, or of a drawing.
        indices: numbers of the images [B].
        count: random numbers for each image.
        epoch: number of the epoch, from 0.

    Returns:
        Random numbers [B, count].
    """
    pairs = (count + 1) // 2
    first, second = np.split(draws(seed, epoch, indices, 2 * pairs), 2, axis=1)
    # Box and Muller (1958); 1 − u lies in (0, 1], where the logarithm is finite.
    radius, angle = np.sqrt(-2 * np.log(1 - first)), 2 * np.pi * second
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return normal[:, :count]
