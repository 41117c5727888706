"""Images with a label each, read once and kept as bytes in memory maps, keyed by their content."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.data.array_store import (
    SCHEMA_VERSION,
    Array,
    Notice,
    open_or_write,
    store_key,
    writing,
)
from heedful.data.augmentation import Augmentation
from heedful.data.batch_plan import Indices
from heedful.data.batches import ImageBatch
from heedful.data.image_corpus import ImageReader
from heedful.data.image_files import Pixels, wrong_size
from heedful.errors import DataError
from heedful.nn.pixels import normalized
from heedful.nn.spec import PixelSpec

_AT_ONCE = 1024


class EncodedImages:
    """The images of several corpora, numbered through.

    Args:
        readers: of the corpora.
        parts: the arrays of each.
        facts: what is written beside them.
        keys: what their folders are named by.

    Attributes:
        shape: channels, height and width of the first, which all must have.
        starts: number of the first image of every corpus, and the number of all.
        fingerprint: changes with the content.
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
        """All labels: numbers in their order, other names in alphabetical order."""
        names = {name for fact in self._facts for name in fact["labels"]}
        return sorted(names, key=int if all(name.isdecimal() for name in names) else None)

    def labels(self, names: Sequence[str]) -> Indices:
        """The number of each image's label among these names [N] int64.

        Raises:
            DataError: naming an image whose label is not among them.
        """
        numbers = {name: number for number, name in enumerate(names)}
        found = []
        for labels, fact, start in zip(self._labels, self._facts, self.starts, strict=False):
            of_part = np.array([numbers.get(name, -1) for name in fact["labels"]], np.int64)[labels]
            if (of_part < 0).any():
                first = int(np.argmax(of_part < 0))
                raise DataError(
                    f"No training image has the label {fact['labels'][labels[first]]!r}",
                    where=self.name(int(start) + first),
                    remedy="Mend the label, leave the image out, or train on such images too",
                )
            found.append(of_part)
        return np.concatenate(found)

    def gather(self, indices: Indices) -> Pixels:
        """Images [B, C, h, w] by their numbers."""
        found = np.empty((len(indices), *self.shape), np.uint8)
        part = np.searchsorted(self.starts, indices, side="right") - 1
        for number in np.unique(part):
            here = part == number
            found[here] = self.pixels[number][indices[here] - self.starts[number]]
        return found

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel over all images, in pixel values.

        Where all are alike there is nothing to divide by, and the deviation is given as 1.
        """
        count = sum(len(part) for part in self.pixels) * self.shape[1] * self.shape[2]
        sums, squares = (
            np.sum([fact[name] for fact in self._facts], axis=0) for name in ("sums", "squares")
        )
        mean = sums / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
        std = np.where(deviation > 0, deviation, 1.0)
        return tuple(mean.tolist()), tuple(std.tolist())

    def name(self, number: int) -> str:
        """The name of an image, for messages."""
        part = int(np.searchsorted(self.starts, number, side="right")) - 1
        return self.readers[part].name(number - int(self.starts[part]))


class LabelledImages:
    """Images and the numbers of their labels, as a model reads them.

    Args:
        images: read once.
        names: of the labels.
        pixels: how they become numbers.
    """

    def __init__(self, images: EncodedImages, names: Sequence[str], pixels: PixelSpec) -> None:
        self.images = images
        self.labels = images.labels(names)
        self.pixels = pixels

    def batch(
        self, indices: Indices, augmentation: Augmentation | None = None, epoch: int = 0
    ) -> ImageBatch:
        """Images by their numbers, changed at random in training."""
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
        readers: of the corpora.
        cache: folder of read corpora; may be shared between runs.
        notice: called with a sentence when a damaged folder is made anew.

    Raises:
        DataError: naming the image that cannot be used.
        RunError: when the cache cannot be written.
    """
    parts, facts, keys = [], [], []
    for reader in readers:
        key = store_key(f"images {SCHEMA_VERSION} {reader.content_hash()}")
        arrays, metadata = open_or_write(cache, key, functools.partial(_write, reader), notice)
        parts.append(arrays)
        facts.append(metadata)
        keys.append(key)
    return EncodedImages(readers, parts, facts, keys)


def _write(reader: ImageReader, folder: Path) -> None:
    numbers: dict[str, int] = {}
    shape: tuple[int, ...] | None = None
    sums: Any = 0
    squares: Any = 0
    with writing(folder, {"pixels": "|u1", "labels": "<i4"}) as store:
        examples = iter(reader)
        done = 0
        while chunk := list(itertools.islice(examples, _AT_ONCE)):
            shape = shape or _square(chunk[0].pixels.shape, reader.name(0))
            for number, example in enumerate(chunk, start=done):
                if example.pixels.shape != shape:
                    raise _differing(example.pixels.shape, shape, reader.name(number))
            pixels = np.stack([example.pixels for example in chunk])
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
