"""Settings of Hugging Face's image processor for ViT, preprocessor_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.config import Resampling
from heedful.interop.config_fields import Fields
from heedful.interop.hf_files import read_json_file
from heedful.models.images.vision_spec import VisionSpec
from heedful.nn.pixel_spec import PixelSpec

PREPROCESSOR_FILE = "preprocessor_config.json"

_PROCESSORS = ("ViTImageProcessor", "ViTImageProcessorFast", "ViTFeatureExtractor")
_FILTERS: tuple[Resampling, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Filters in the order of Pillow's constants, which the file stores as numbers."""
_USED = {
    "image_processor_type",
    "feature_extractor_type",
    "do_resize",
    "do_rescale",
    "do_normalize",
    "do_center_crop",
    "do_pad",
    "size",
    "resample",
    "rescale_factor",
    "image_mean",
    "image_std",
}
# Written by newer versions for all processors, though they change nothing of a ViT's pixels.
_WITHOUT_EFFECT = {
    # Cropping itself is refused.
    "crop_size",
    "pad_size",
    "default_to_square",
    # Images are converted to the model's number of channels here anyway.
    "do_convert_rgb",
    "data_format",
    "input_data_format",
    "device",
    "disable_grouping",
    "return_tensors",
    "processor_class",
    "_processor_class",
}


def read_pixels(directory: Path, spec: VisionSpec) -> PixelSpec | None:
    """Read the preprocessing of images; None for a directory without such a file.

    Raises:
        ModelError: when the file asks for a step that is not supported here.
        ConfigError: when a number is out of range.
    """
    file = directory / PREPROCESSOR_FILE
    config = read_json_file(file)
    return None if config is None else _pixels(config, spec, str(file))


def with_pixels(files: Mapping[str, Any], spec: VisionSpec) -> dict[str, Any]:
    """Return the companion files of an export with a preprocessor_config.json for the model.

    Args:
        files: contents of companion files by name; an imported preprocessor_config.json is kept if
            it describes the same steps.
        spec: spec of the model.
    """
    before = files.get(PREPROCESSOR_FILE)
    if before and _pixels(before, spec, PREPROCESSOR_FILE) == spec.pixels:
        return dict(files)
    return {**files, PREPROCESSOR_FILE: write_pixels(spec)}


def _pixels(config: Mapping[str, Any], spec: VisionSpec, where: str) -> PixelSpec:
    fields = Fields(config, where)
    for key in ("image_processor_type", "feature_extractor_type"):
        fields.refuse_unless(key, _PROCESSORS, _PROCESSORS[0])
    for key in ("do_center_crop", "do_pad"):
        fields.refuse_unless(key, (False,), False)
    # An unknown step would change pixels silently, and with them every prediction.
    for key, value in config.items():
        if key not in _USED | _WITHOUT_EFFECT and value is not None:
            raise fields.wrong(key, "Heedful does not know this step")
    resample = None
    if fields.flag("do_resize", True):
        _check_size(config.get("size"), fields, spec)
        number = fields.integer("resample", _FILTERS.index("bilinear"))
        if not 0 <= number < len(_FILTERS):
            raise fields.wrong("resample", "this is none of Pillow's filters")
        resample = _FILTERS[number]
    normalizes = fields.flag("do_normalize", True)
    plain = {
        "resample": resample,
        "rescale": fields.number("rescale_factor", 1 / 255)
        if fields.flag("do_rescale", True)
        else 1.0,
        "mean": _of_channels("image_mean", config, fields, spec) if normalizes else None,
        "std": _of_channels("image_std", config, fields, spec) if normalizes else None,
    }
    # x -> (x - 0) / 1: without normalisation mean and deviation are neutral.
    neutral = {"mean": [0.0] * spec.channels, "std": [1.0] * spec.channels}
    return PixelSpec.parse({**plain, **({} if normalizes else neutral)}, where=where)


def write_pixels(spec: VisionSpec) -> dict[str, Any]:
    """Return the preprocessor_config.json of a model; empty if its spec has no pixels."""
    pixels = spec.pixels
    if pixels is None:
        return {}
    return {
        "image_processor_type": _PROCESSORS[0],
        "do_resize": pixels.resample is not None,
        "size": {"height": spec.image_size, "width": spec.image_size},
        "resample": _FILTERS.index(pixels.resample or "bilinear"),
        # Without rescaling the factor is 1, which has the same effect.
        "do_rescale": True,
        "rescale_factor": pixels.rescale,
        "do_normalize": True,
        "image_mean": list(pixels.mean),
        "image_std": list(pixels.std),
    }


def _check_size(size: object, fields: Fields, spec: VisionSpec) -> None:
    """Raise an error when images are resized to another size than the model's."""
    side = spec.image_size
    whole: Any = {"height": size, "width": size} if isinstance(size, int) else size
    if size is None:
        # 224 is the default of transformers' ViTImageProcessor.
        whole = {"height": 224, "width": 224}
    expected = {"height": side, "width": side}
    if not isinstance(whole, Mapping) or whole != expected:
        raise fields.wrong("size", f"the model reads images of {side} × {side} pixels")


def _of_channels(
    key: str, config: Mapping[str, Any], fields: Fields, spec: VisionSpec
) -> list[float]:
    """Return a field with a number for each channel; a single number counts for all."""
    values = config.get(key)
    if values is None:
        # IMAGENET_STANDARD_MEAN and _STD of transformers: pixels from −1 to 1.
        values = 0.5
    if isinstance(values, int | float) and not isinstance(values, bool):
        values = [values] * spec.channels
    if (
        not isinstance(values, list)
        or len(values) != spec.channels
        or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values)
    ):
        raise fields.wrong(key, f"a number for each of {spec.channels} channels is needed")
    return [float(value) for value in values]
