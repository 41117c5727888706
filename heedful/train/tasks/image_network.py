"""The network of a run on images: a new vision Transformer or residual network, or an older one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heedful.data.encoded_images import EncodedImages
from heedful.errors import ConfigError
from heedful.models.images.image_spec import ImageModelSpec
from heedful.models.images.resnet_spec import ResNetSpec
from heedful.models.shape_to_spec import vision_spec
from heedful.train.run_settings import RunSettings
from heedful.train.task_rules import TASK_DEFAULTS
from heedful.train.tasks.image_source import normalisation

PATCH_SIZE = 4
"""Default side of a new model's patches, in pixels."""


def network_spec(
    settings: RunSettings,
    images: EncodedImages,
    labels: Sequence[str],
    initial: ImageModelSpec | None,
) -> ImageModelSpec:
    """Return the spec for labelled images: a new one, or the initial model's with their labels.

    In a new model, and in one whose preprocessing is unknown, each channel of the training images
    is normalised to mean 0 and standard deviation 1.

    Args:
        settings: settings of the run.
        images: training images.
        labels: labels of the images.
        initial: spec of the initial model, or None.

    Raises:
        ConfigError: when patches do not fill the image, or positions are not learned.
    """
    channels, side, _ = images.shape
    pixels = normalisation(images)
    if initial is not None:
        # Training images are resized by this filter, so the model directory must say so.
        own = (initial.pixels or pixels).model_copy(update={"resample": pixels.resample})
        return initial.with_labels(labels).model_copy(update={"pixels": own})
    chosen = settings.images
    known: dict[str, Any] = {"image_size": side, "channels": channels}
    known |= {"labels": tuple(labels), "pixels": pixels}
    if settings.model_kind == "resnet":
        options = {"width": chosen.stage_width, "blocks": chosen.blocks}
        options |= {"stem_stride": chosen.stem_stride}
        known |= {name: value for name, value in options.items() if value is not None}
        return ResNetSpec.parse(known | {"pixels": pixels.plain()}, where="images")
    return vision_spec(
        settings.model,
        patch_size=chosen.patch_size or PATCH_SIZE,
        pooling=chosen.pooling or "first",
        **known,
    )


_OPTIONS_OF = {
    "vision": ("patch_size", "pooling"),
    "resnet": ("blocks", "stage_width", "stem_stride"),
}
"""Options of `[images]` that networks of one kind have."""


def check_network(settings: RunSettings, kind: str) -> None:
    """Refuse options of other networks of images than the run trains.

    Args:
        settings: settings of the run.
        kind: kind of model that it trains.

    Raises:
        ConfigError: when an option has no effect; it is named.
    """
    named = [
        f"images.{name}"
        for other, names in _OPTIONS_OF.items()
        for name in names
        if other != kind and getattr(settings.images, name) is not None
    ]
    if kind == "resnet":
        usual = TASK_DEFAULTS["images"]["model"]
        # A recorded run states all defaults, those of the task among them.
        for name, field in type(settings.model).model_fields.items():
            allowed = (field.default, usual.get(name, field.default))
            if getattr(settings.model, name) not in allowed:
                named.append(f"model.{name}")
    if named:
        raise ConfigError(
            f"The network is of the kind {kind!r} and has no {', '.join(named)}",
            where=named[0],
            remedy="Leave it out, or choose another network by images.network",
        )
