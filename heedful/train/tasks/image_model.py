"""The model of a run on images: a new one, or a trained one with a classifier of other labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from heedful.errors import ModelError
from heedful.interop.hugging_face import describe_any
from heedful.models.preset_files import read_preset_spec
from heedful.models.shape_to_spec import contradictions, vision_spec, with_overrides
from heedful.nn.spec import EmbeddingSpec, PixelSpec
from heedful.train.warm_start import refuse_differences

if TYPE_CHECKING:
    from heedful.models.family import VisionSpec
    from heedful.train.run_settings import RunSettings

PATCH_SIZE = 4
"""Side in pixels of a new model's patches if `images.patch_size` is unset."""


def initial_vision_spec(settings: RunSettings) -> VisionSpec | None:
    """The spec of the initial model of images, checked against the settings; None without one.

    Raises:
        ModelError: when it is damaged or of another kind.
        ConfigError: when a setting contradicts it.
    """
    spec: Any
    if settings.init is not None:
        where = settings.init
        spec = describe_any(Path(where)).spec
    elif settings.published_preset:
        assert settings.preset is not None
        where = f"preset {settings.preset}"
        spec = read_preset_spec(settings.preset)
    else:
        return None
    if spec.reads != "images":
        raise ModelError(
            f"The model to begin with is of the kind {spec.kind} and reads no images",
            where=where,
            remedy="Begin with a vision Transformer",
        )
    differences = contradictions(settings.model, spec)
    own: dict[str, int | str] = {"size": spec.image_size, "channels": spec.channels}
    own |= {"patch_size": spec.patch_size, "pooling": spec.pooling}
    for name, value in own.items():
        setting = getattr(settings.images, name)
        if setting not in (None, value):
            differences.append(f"images.{name} is {setting}, and the model's {value}")
    refuse_differences(differences, where)
    return cast("VisionSpec", spec)


def vision_spec_for(
    settings: RunSettings,
    shape: tuple[int, int, int],
    statistics: tuple[tuple[float, ...], tuple[float, ...]],
    labels: Sequence[str],
    initial: VisionSpec | None,
) -> VisionSpec:
    """The model for labelled images: a new one, or the initial one with their labels.

    In a new model, and in one whose preprocessing is unknown, each channel of the training images
    gets a mean of 0 and a deviation of 1.

    Args:
        settings: of the run.
        shape: channels, height and width of the images.
        statistics: mean and deviation of each channel, in pixel values.
        labels: of the images.
        initial: the model that training starts from.

    Raises:
        ConfigError: when patches do not fill the image, or positions are not learned.
    """
    mean, std = (tuple(value / 255 for value in values) for values in statistics)
    pixels = PixelSpec(resample="bilinear", mean=mean, std=std)
    if initial is None:
        return vision_spec(
            settings.model,
            image_size=shape[1],
            channels=shape[0],
            patch_size=settings.images.patch_size or PATCH_SIZE,
            pooling=settings.images.pooling or "first",
            labels=tuple(labels),
            pixels=pixels,
        )
    _, encoder = with_overrides(EmbeddingSpec(), initial.encoder, settings.model)
    is_set = "dropout" in settings.model.model_fields_set
    changes = {
        "encoder": encoder,
        "dropout": settings.model.dropout if is_set else initial.dropout,
        "labels": tuple(labels),
        "num_classes": None,
        # A pooler in the place of a classifier has learned something else.
        "pooler": initial.pooler and bool(initial.class_names),
        # Training resizes as a new model's images are.
        "pixels": (initial.pixels or pixels).model_copy(update={"resample": pixels.resample}),
    }
    return initial.model_copy(update=changes)
