"""Labelled images, read once and kept as bytes in memory maps; augmented at random in training.

The augmentation of an image is a function of the seed, the epoch and its number alone, not of its
batch or of earlier draws. So random numbers are hashed counters (SplitMix64, Steele 2014), computed
for a whole batch at once; NumPy would need a generator for each image.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from heedful.data.array_store import (
    SCHEMA_VERSION,
    Array,
    Notice,
    open_or_write,
    writing,
)
from heedful.data.batch_plan import Indices
from heedful.data.batches import ExampleBatch
from heedful.data.corpus_spec import AugmentSpec
from heedful.data.idx_files import Pixels
from heedful.data.image_files import ImageReader, wrong_size
from heedful.data.text_file import chunks
from heedful.errors import DataError
from heedful.nn.patches import normalized
from heedful.nn.pixel_spec import PixelSpec

ERASED_AREA = (0.02, 0.33)
"""Smallest and largest area of a hidden rectangle as a share of the image (Zhong 2020)."""
ERASED_SHAPE = (0.3, 1 / 0.3)
"""Smallest and largest ratio of a hidden rectangle's height to its width (Zhong 2020)."""

# A fixed number of draws for each image, whichever changes are on: switching one of them on leaves
# the draws of the others as they are.
_DRAWS = 10
_STEP = np.uint64(0x9E3779B97F4A7C15)


def draws(seed: int, epoch: int, indices: Indices, count: int) -> npt.NDArray[np.float64]:
    """Draw uniform random numbers in [0, 1), `count` for each index.

    Args:
        seed: seed of the run.
        epoch: number of the epoch, from 0.
        indices: numbers of the images [B].
        count: random numbers for each image.

    Returns:
        Random numbers [B, count].
    """
    key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    counters = indices[:, None] * count + np.arange(1, count + 1)
    x: npt.NDArray[np.uint64] = counters.astype(np.uint64)
    x *= _STEP
    x += key.astype(np.uint64)
    # The finalizer of SplitMix64 with its constants (variant 13 of Stafford).
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    # Only the upper 53 bits are used, as many as a float64's mantissa holds exactly.
    high: npt.NDArray[np.uint64] = x >> np.uint64(11)
    return high.astype(np.float64) * 2.0**-53


class Augmentation:
    """A random change of images: mirrored, then shifted, rotated and scaled, then partly hidden.

    Args:
        spec: strength of each change.
        seed: seed of the run.
        filling: colour of hidden rectangles, a value for each channel, 0 to 255.
    """

    def __init__(self, spec: AugmentSpec, seed: int, filling: tuple[float, ...]) -> None:
        self.spec = spec
        self.seed = seed
        self.filling = torch.tensor(filling)[:, None, None]

    def __call__(self, images: Tensor, indices: Indices, epoch: int) -> Tensor:
        """Change the images of a batch.

        Args:
            images: images [B, C, h, h] uint8.
            indices: numbers of the images [B].
            epoch: number of the epoch, from 0.

        Returns:
            Changed images [B, C, h, h] float32, 0 to 255.
        """
        x = images.float()
        spec = self.spec
        if spec == AugmentSpec():
            return x
        drawn = draws(self.seed, epoch, indices, _DRAWS).astype(np.float32)
        # Each draw is a contiguous row: PyTorch computes sines differently for a strided column.
        rows = torch.from_numpy(np.ascontiguousarray(drawn.T))
        if spec.flip:
            x = torch.where(rows[0, :, None, None, None] < 0.5, x.flip(-1), x)
        if spec.shift or spec.rotate or spec.scale:
            x = self._moved(x, rows[1:5])
        if spec.erase:
            x = torch.where(self._hidden(rows[5:10], x.shape[-1]), self.filling, x)
        return x

    def _moved(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Shift by whole pixels, rotate and scale about the centre, in one interpolation."""
        spec, side = self.spec, x.shape[-1]
        shift = (drawn[:2] * (2 * spec.shift + 1)).floor() - spec.shift
        angle = (2 * drawn[2] - 1) * math.radians(spec.rotate)
        size = 1 + (2 * drawn[3] - 1) * spec.scale
        # Source of each result pixel, in pixels from the centre. Written out, since a matmul may
        # sum in another order for another batch size.
        middle = torch.arange(side) - (side - 1) / 2
        right = (middle - shift[0, :, None])[:, None, :]
        down = (middle - shift[1, :, None])[:, :, None]
        cosine, sine = ((f(angle) / size)[:, None, None] for f in (torch.cos, torch.sin))
        columns = right * cosine + down * sine
        rows = down * cosine - right * sine
        # `grid_sample` counts from −1 to 1 across the image, from edge to edge of its pixels.
        grid = torch.stack([columns, rows], dim=-1) * (2 / side)
        moved = grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        return moved.clamp_(0.0, 255.0)

    def _hidden(self, drawn: Tensor, side: int) -> Tensor:
        """Return a mask of the pixels in hidden rectangles [B, 1, h, h]; empty for other images."""
        share = ERASED_AREA[0] + drawn[1] * (ERASED_AREA[1] - ERASED_AREA[0])
        low, high = (math.log(bound) for bound in ERASED_SHAPE)
        # Log-uniform, so that a ratio and its inverse are equally likely.
        shape = (low + drawn[2] * (high - low)).exp()
        chosen = drawn[0] < self.spec.erase
        at = torch.arange(side)
        within = []
        for length, place in (
            ((share * shape).sqrt(), drawn[3]),
            ((share / shape).sqrt(), drawn[4]),
        ):
            pixels = (length * side).round().clamp(1, side)
            # The rectangle lies within the image; Zhong (2020) draws again until it does.
            start = (place * (side - pixels + 1)).floor()
            within.append((at >= start[:, None]) & (at < (start + pixels)[:, None]))
        rows, columns = within
        return (rows[:, :, None] & columns[:, None, :] & chosen[:, None, None])[:, None]


_AT_ONCE = 1024  # images in memory while a corpus is read


class EncodedImages:
    """The images of several corpora, numbered consecutively.

    Args:
        readers: readers of the corpora, which name images in errors.
        parts: arrays of each corpus.
        facts: metadata of each corpus.
        keys: names of the corpora's folders in the cache.

    Attributes:
        shape: channels, height and width of the first image, which all images must have.
        starts: number of the first image of every corpus, and the number of images.
        fingerprint: SHA-256, in hexadecimal, of the corpora's keys.
    """

    def __init__(
        self,
        readers: Sequence[ImageReader],
        parts: Sequence[dict[str, Array]],
        facts: Sequence[dict[str, Any]],
        keys: Sequence[str],
    ) -> None:
        self.readers = tuple(readers)
        self.shape: tuple[int, int, int] = tuple(facts[0]["shape"])
        self.pixels = [
            part["pixels"].reshape(-1, *fact["shape"])
            for part, fact in zip(parts, facts, strict=True)
        ]
        self.starts = np.cumsum([0, *(len(part) for part in self.pixels)], dtype=np.int64)
        self._labels = [part["labels"] for part in parts]
        self._facts = facts
        self.fingerprint = hashlib.sha256("\n".join(keys).encode()).hexdigest()
        for fact, first in zip(facts, self.starts.tolist(), strict=False):
            if tuple(fact["shape"]) != self.shape:
                raise _differing(fact["shape"], self.shape, self.name(first))

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def label_names(self) -> list[str]:
        """All labels: numerically sorted if all are numbers, otherwise alphabetically."""
        names = {name for fact in self._facts for name in fact["labels"]}
        return sorted(names, key=int if all(name.isdecimal() for name in names) else None)

    def labels(self, names: Sequence[str]) -> Indices:
        """Return the index of each image's label in `names` [N] int64.

        Raises:
            DataError: when the label of an image is not in `names`; the image is named.
        """
        numbers = {name: number for number, name in enumerate(names)}
        results = []
        for labels, fact, start in zip(self._labels, self._facts, self.starts, strict=False):
            # A table from the corpus's own label numbers, which follow the first occurrence in its
            # files.
            of_part = np.array([numbers.get(name, -1) for name in fact["labels"]], np.int64)[labels]
            if (of_part < 0).any():
                first = int(np.argmax(of_part < 0))
                raise DataError(
                    f"No training image has the label {fact['labels'][labels[first]]!r}",
                    where=self.name(int(start) + first),
                    remedy="Mend the label, leave the image out, or train on such images too",
                )
            results.append(of_part)
        return np.concatenate(results)

    def gather(self, indices: Indices) -> Pixels:
        """Return images [B, C, h, w] by their numbers."""
        result = np.empty((len(indices), *self.shape), np.uint8)
        part = np.searchsorted(self.starts, indices, side="right") - 1
        # One gather for each corpus, not one for each image.
        for number in np.unique(part):
            here = part == number
            result[here] = self.pixels[number][indices[here] - self.starts[number]]
        return result

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the mean and standard deviation of each channel over all images, in pixel values.

        A channel of one constant value gets a deviation of 1, since pixels are divided by it.
        """
        count = sum(len(part) for part in self.pixels) * self.shape[1] * self.shape[2]
        sums, squares = (
            np.sum([fact[name] for fact in self._facts], axis=0) for name in ("sums", "squares")
        )
        mean = sums / count
        # Sums are exact integers; only this difference may round below zero.
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
        std = np.where(deviation > 0, deviation, 1.0)
        return tuple(mean.tolist()), tuple(std.tolist())

    def name(self, number: int) -> str:
        part = int(np.searchsorted(self.starts, number, side="right")) - 1
        return self.readers[part].name(number - int(self.starts[part]))


@dataclass(frozen=True)
class ImageBatch(ExampleBatch):
    """A batch of images.

    Args:
        images: normalised pixels [B, C, h, w] float32.
        targets: index of each image's label [B] int64.
        indices: numbers of the images [B] int64.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor

    @property
    def target_tokens(self) -> int:
        """Number of images, each of which is one target."""
        return len(self.targets)


class LabelledImages:
    """Images with label indices, for making batches.

    Args:
        images: encoded images.
        names: names of the labels, in the order of their indices.
        pixels: mean and deviation by which pixels are normalised.
    """

    def __init__(self, images: EncodedImages, names: Sequence[str], pixels: PixelSpec) -> None:
        self.images = images
        self.labels = images.labels(names)
        self.pixels = pixels

    def batch(
        self, indices: Indices, augmentation: Augmentation | None = None, epoch: int = 0
    ) -> ImageBatch:
        pixels = torch.from_numpy(self.images.gather(indices))
        if augmentation is not None:
            pixels = augmentation(pixels, indices, epoch)
        return ImageBatch(
            normalized(pixels, self.pixels),
            torch.from_numpy(self.labels[indices]),
            torch.from_numpy(indices),
        )


def encode_images(
    readers: Sequence[ImageReader], cache: Path, notice: Notice | None = None
) -> EncodedImages:
    """Open corpora from the cache, reading those that are not there yet.

    Args:
        readers: readers of the corpora.
        cache: folder of encoded corpora; may be shared between runs.
        notice: function that is called with a sentence when a damaged folder is made anew.

    Raises:
        DataError: when an image cannot be used, with its name.
        RunError: when the cache cannot be written.
    """
    stores = []
    for reader in readers:
        content = f"images {SCHEMA_VERSION} {reader.content_hash()}"
        stores.append(open_or_write(cache, content, functools.partial(_write, reader), notice))
    parts, facts, keys = zip(*stores, strict=True)
    return EncodedImages(readers, parts, facts, keys)


def _write(reader: ImageReader, folder: Path) -> None:
    numbers: dict[str, int] = {}
    shape: tuple[int, ...] | None = None
    sums: Any = 0
    squares: Any = 0
    with writing(folder, {"pixels": "|u1", "labels": "<i4"}) as store:
        done = 0
        for chunk in chunks(reader, _AT_ONCE):
            shape = shape or _square(chunk[0].pixels.shape, reader.name(0))
            for number, example in enumerate(chunk, start=done):
                if example.pixels.shape != shape:
                    raise _differing(example.pixels.shape, shape, reader.name(number))
            pixels = np.stack([example.pixels for example in chunk])
            # Squares of bytes overflow a byte; in int64 the sums of 1.4e14 pixels are exact.
            wide = pixels.astype(np.int64)
            sums += wide.sum(axis=(0, 2, 3))
            squares += (wide**2).sum(axis=(0, 2, 3))
            store.append("pixels", pixels)
            labels = [numbers.setdefault(example.label, len(numbers)) for example in chunk]
            store.append("labels", np.array(labels))
            done += len(chunk)
        facts = {"sums": sums.tolist(), "squares": squares.tolist()}
        store.finish({"shape": shape, "labels": list(numbers), **facts})


def _square(shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    if shape[1] != shape[2]:
        raise DataError(
            f"The image has {shape[1]} × {shape[2]} pixels (height × width) and is no square",
            where=where,
            remedy="Set images.size, to which height and width are then resized",
        )
    return shape


def _differing(shape: Sequence[int], wanted: Sequence[int], where: str) -> DataError:
    if tuple(shape[1:]) != tuple(wanted[1:]):
        return wrong_size(shape[1], shape[2], wanted[1], where)
    return DataError(
        f"The image has {shape[0]} channels, the first one {wanted[0]}",
        where=where,
        remedy="Set images.channels to 1 for grey or 3 for colour",
    )
