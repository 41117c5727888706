"""Image classification as a task: labelled images in, a vision Transformer out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from heedful.data.augment import Augmentation
from heedful.data.image_corpora import image_reader
from heedful.data.images import EncodedImages, encode_images
from heedful.data.order import plan_batches
from heedful.data.parts import rows_of
from heedful.errors import ConfigError, DataError
from heedful.models.vision import VisionModel
from heedful.nn.pixels import normalized
from heedful.train.image_model import begin_with, first_spec, label_names, model_before
from heedful.train.labels import LabelMeasure, LabelObjective
from heedful.train.objective import with_penalty
from heedful.train.randomness import mix
from heedful.train.task_settings import check_task_settings
from heedful.train.validation import Validator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heedful.data.encoded import Indices
    from heedful.data.spec import CorpusSpec
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.models.family import VisionSpec
    from heedful.nn.spec import PixelSpec
    from heedful.train.objective import Objective
    from heedful.train.settings import RunSettings


@dataclass(frozen=True)
class ImageBatch:
    """Images side by side.

    Args:
        images: [B, C, h, w] float32, as the model reads them.
        targets: number of each one's label [B] int64.
        indices: their numbers [B] int64.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor

    @property
    def target_tokens(self) -> int:
        """How many images there are: each is one target."""
        return len(self.targets)

    def to(self, device: torch.device | str) -> ImageBatch:
        """The batch on a device."""
        return ImageBatch(self.images.to(device), self.targets.to(device), self.indices)

    def part(self, start: int, stop: int) -> ImageBatch:
        """The images from `start` until `stop`."""
        return rows_of(self, start, stop)


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
        found = torch.from_numpy(self.images.gather(indices))
        if augmentation is not None:
            found = augmentation(found, indices, epoch)
        return ImageBatch(
            normalized(found, self.pixels),
            torch.from_numpy(self.labels[indices]),
            torch.from_numpy(indices),
        )

    def in_order(self, count: int, size: int) -> Iterator[Indices]:
        """The numbers of the first images, in batches of a size."""
        for first in range(0, count, size):
            yield np.arange(first, min(first + size, count))


class ImageTask:
    """Labelled images, read.

    Args:
        settings: of the run.
        spec: of the model.
        data: to train on.
        valid: to validate on, or None.
        events: told what of a model that training begins with is left out.
    """

    tokenizers = None

    def __init__(
        self,
        settings: RunSettings,
        spec: VisionSpec,
        data: LabelledImages,
        valid: LabelledImages | None,
        events: Events,
    ) -> None:
        self.settings = settings
        self.spec = spec
        self.valid = valid
        self.events = events
        weights = [corpus.weight for corpus in settings.data.train]
        content = f"{data.images.fingerprint} {weights} {spec.labels}"
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        self.source = ImageSource(data, settings, spec)

    def new_model(self) -> VisionModel:
        """The model with its first weights, a function of the seed."""
        torch.manual_seed(mix(self.settings.seed))
        model = VisionModel(self.spec)
        if self.settings.init is not None:
            begin_with(model, self.settings.init, self.events)
        return model

    def objective(self) -> LabelObjective:
        """Cross-entropy of the labels."""
        return LabelObjective(image_scores, self.settings.objective.label_smoothing)

    def validator(
        self, objective: Objective, precision: Precision, events: Events
    ) -> Validator | None:
        """Loss and metrics on the validation images, which are never changed."""
        valid, settings = self.valid, self.settings
        if valid is None:
            return None
        size = images_at_once(settings, self.spec)
        measure = LabelMeasure(
            image_scores,
            valid.batch,
            lambda count: valid.in_order(count, size),
            valid.labels,
            settings.validation,
            precision=precision,
        )
        return Validator(
            ValidationImages(valid, size),
            objective,
            settings.validation,
            precision=precision,
            measure=measure,
        )


def image_scores(model: Any, batch: ImageBatch) -> tuple[Tensor, Tensor | float]:
    """Scores [B, labels] of images, and what the model's layers add to the loss."""
    states, added = with_penalty(model, batch.images)
    return model.class_logits(states), added


class ImageSource:
    """Batches of images; which ones is a function of the seed, the epoch and the place.

    Args:
        data: the images.
        settings: of the run: budget, seed, weights of the corpora, augmentation.
        spec: of the model.
    """

    def __init__(self, data: LabelledImages, settings: RunSettings, spec: VisionSpec) -> None:
        self.data = data
        self.settings = settings
        self.spec = spec
        filling = tuple(mean / data.pixels.rescale for mean in data.pixels.mean)
        self.augmentation = Augmentation(settings.augment, settings.seed, filling)
        self._epoch: tuple[int, list[Indices]] | None = None

    def count(self, epoch: int) -> int:
        """Batches of an epoch."""
        return len(self._batches(epoch))

    def batch(self, epoch: int, number: int) -> ImageBatch:
        """One batch of an epoch."""
        return self.data.batch(self._batches(epoch)[number], self.augmentation, epoch)

    def lines(self, indices: Sequence[int]) -> list[str]:
        """What images are called."""
        return [self.data.images.name(index) for index in indices]

    def _batches(self, epoch: int) -> list[Indices]:
        if self._epoch is None or self._epoch[0] != epoch:
            data, images = self.settings.data, self.data.images
            # The plan counts one position more than it is told.
            lengths = np.full(len(images), self.spec.num_states - 1, np.int32)
            bounds = images.starts.tolist()
            groups = [
                (np.arange(start, end, dtype=np.int64), corpus.weight)
                for start, end, corpus in zip(bounds, bounds[1:], data.train, strict=False)
            ]
            planned = plan_batches(
                lengths,
                lengths,
                groups,
                batch_tokens=data.budget,
                pool_batches=data.pool_batches,
                seed=self.settings.seed,
                epoch=epoch,
            )
            self._epoch = (epoch, planned)
        return self._epoch[1]


class ValidationImages:
    """The batches of validation images, the same ones in the same order each time.

    Args:
        data: the images.
        size: of a batch.
    """

    def __init__(self, data: LabelledImages, size: int) -> None:
        self.data = data
        self.size = size

    def __iter__(self) -> Iterator[ImageBatch]:
        for indices in self.data.in_order(len(self.data.labels), self.size):
            yield self.data.batch(indices)


def images_at_once(settings: RunSettings, spec: VisionSpec) -> int:
    """How many images a batch has room for, in positions of the model.

    Raises:
        ConfigError: when there is no room for one.
    """
    size = settings.data.budget // spec.num_states
    if size < 1:
        raise ConfigError(
            f"A batch of {settings.data.budget} positions has no room for an image, which "
            f"has {spec.num_states} (its patches)",
            where="data.batch_tokens",
            remedy="Raise it, or raise images.patch_size",
        )
    return size


def prepare_images(run_dir: Path, settings: RunSettings, events: Events) -> ImageTask:
    """Read and check labelled images; arguments as `heedful.train.task.prepare_task`.

    Raises:
        DataError: when images or labels cannot be used.
        ConfigError: when a batch has no room for an image, or a setting is for another task or
            contradicts the model to begin with.
        ModelError: when there is no model to begin with, or it is of another kind.
    """
    check_task_settings(settings)
    before = model_before(settings)
    wanted = settings.images
    if before is not None:
        brought = {"size": before.image_size, "channels": before.channels}
        wanted = wanted.model_copy(update=brought)
    data = settings.data
    cache = Path(data.cache) if data.cache is not None else run_dir / "data"

    def read(name: str, corpora: Sequence[CorpusSpec]) -> EncodedImages:
        readers = [image_reader(corpus, wanted) for corpus in corpora]
        images = encode_images(readers, cache, notice=events.warn)
        channels, height, width = images.shape
        kind = "grey" if channels == 1 else "colour"
        events.note(f"{name}: {len(images):,} {kind} images of {height} × {width} pixels")
        return images

    images = read("training", data.train)
    names = label_names(images, before)
    events.note(f"{len(names)} labels: {', '.join(names[:10])}{' …' * (len(names) > 10)}")
    spec = first_spec(settings, images, names, before)
    assert spec.pixels is not None
    images_at_once(settings, spec)  # for its error message
    valid = read("validation", data.valid) if data.valid else None
    if valid is not None:
        _check_shape(valid, images)
    return ImageTask(
        settings,
        spec,
        LabelledImages(images, names, spec.pixels),
        None if valid is None else LabelledImages(valid, names, spec.pixels),
        events,
    )


def _check_shape(valid: EncodedImages, images: EncodedImages) -> None:
    if valid.shape != images.shape:
        there, here = (" × ".join(map(str, shape)) for shape in (valid.shape, images.shape))
        raise DataError(
            f"The validation images are {there} (channels × height × width), those to train on "
            f"{here}",
            where=valid.name(0),
            remedy="Set images.size and images.channels, to which all are then brought",
        )
