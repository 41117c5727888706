"""The model of a run on images: a new one, or a trained one with a classifier for other labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heedful.errors import ConfigError, DataError, ModelError
from heedful.interop.directory import describe_any, read_any_weights
from heedful.models.dials import contradictions, with_dropout
from heedful.models.family import VisionSpec
from heedful.models.shapes import vision_spec
from heedful.models.weights import canonical_weights, load_weights
from heedful.nn.spec import EmbeddingSpec, PixelSpec

if TYPE_CHECKING:
    from heedful.data.images import EncodedImages
    from heedful.events import Events
    from heedful.models.vision import VisionModel
    from heedful.train.settings import RunSettings

PATCH_SIZE = 4
"""Of a new model if `images.patch_size` is unset."""


def label_names(images: EncodedImages, before: VisionSpec | None) -> list[str]:
    """The labels: those of the model to begin with, where they hold all of the data's.

    Args:
        images: to train on.
        before: the model to begin with.

    Raises:
        DataError: when there is only one.
    """
    names = images.label_names
    if len(names) < 2:
        raise DataError(
            f"There is nothing to tell apart: the only label is {names[0]!r}",
            where=images.name(0),
            remedy="Give training data with at least two labels",
        )
    if before is not None and set(names) <= set(before.class_names):
        return list(before.class_names)
    return names


def first_spec(
    settings: RunSettings, images: EncodedImages, names: list[str], before: VisionSpec | None
) -> VisionSpec:
    """The model for these images, or the one to begin with, with their labels.

    Of a model that does not say what it asks of pixels, and of a new one, each channel of the
    training images has a mean of 0 and a deviation of 1.

    Args:
        settings: of the run.
        images: to train on.
        names: of the labels.
        before: the model to begin with.

    Raises:
        ConfigError: when patches do not fill the image, or positions are not learned.
    """
    mean, std = (tuple(value / 255 for value in values) for values in images.statistics())
    pixels = PixelSpec(resample="bilinear", mean=mean, std=std)
    shape = settings.model
    if before is None:
        return vision_spec(
            shape,
            image_size=images.shape[1],
            channels=images.shape[0],
            patch_size=settings.images.patch_size or PATCH_SIZE,
            pooling=settings.images.pooling or "first",
            labels=tuple(names),
            pixels=pixels,
        )
    _, encoder = with_dropout(EmbeddingSpec(), before.encoder, shape)
    given = "dropout" in shape.model_fields_set
    changes = {
        "encoder": encoder,
        "dropout": shape.dropout if given else before.dropout,
        "labels": tuple(names),
        "num_classes": None,
        # One that was there for want of a classifier has learned something else.
        "pooler": before.pooler and bool(before.class_names),
        # Training resizes as a new model's images are.
        "pixels": (before.pixels or pixels).model_copy(update={"resample": pixels.resample}),
    }
    return before.model_copy(update=changes)


def model_before(settings: RunSettings) -> VisionSpec | None:
    """The model to begin with, after checking it against the settings; None where there is none.

    Raises:
        ModelError: when it is damaged or of another kind.
        ConfigError: when a setting contradicts it.
    """
    if settings.init is None:
        return None
    spec = describe_any(Path(settings.init)).spec
    if not isinstance(spec, VisionSpec):
        raise ModelError(
            f"The model to begin with is of the kind {spec.kind} and reads no images",
            where=settings.init,
            remedy="Begin with a vision Transformer",
        )
    found = contradictions(settings.model, spec)
    own: dict[str, int | str] = {"size": spec.image_size, "channels": spec.channels}
    own |= {"patch_size": spec.patch_size, "pooling": spec.pooling}
    for name, value in own.items():
        given = getattr(settings.images, name)
        if given not in (None, value):
            found.append(f"images.{name} is {given}, and the model's {value}")
    if found:
        raise ConfigError(
            f"The model to begin with is another one: {'; '.join(found)}",
            where=settings.init,
            remedy="Leave these dials out: the model brings its own",
        )
    return spec


def begin_with(model: VisionModel, directory: str, events: Events) -> None:
    """Put a trained model's weights into one that may have another classifier.

    Args:
        model: with first weights of its own.
        directory: of the trained model.
        events: told what is left out and what begins anew.

    Raises:
        ModelError: when there is no model, or it is damaged.
    """
    before = describe_any(Path(directory)).spec
    assert isinstance(before, VisionSpec)
    weights = read_any_weights(Path(directory))
    own = canonical_weights(model)
    new = ["classifier"] if before.class_names != model.spec.class_names else []
    left = [*new] if before.class_names else []
    left += ["pooler"] * (before.pooler and not model.spec.pooler)
    for part in {*new, *left}:
        weights = {name: t for name, t in weights.items() if not name.startswith(f"{part}.")}
    weights |= {name: t for name, t in own.items() if name.split(".")[0] in new}
    load_weights(model, weights, where=directory)
    for part in left:
        events.note(f"{part} of {directory} is left out")
    for part in new:
        events.note(f"{part} is not in {directory} and begins anew")
