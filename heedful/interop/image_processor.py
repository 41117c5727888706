"""Settings of Hugging Face's image processors for ViT, CLIP and SigLIP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.config import Resampling
from heedful.interop.config_fields import Fields
from heedful.interop.hf_files import read_json_file
from heedful.models.images.vision_spec import VisionSpec
from heedful.nn.pixel_spec import PixelSpec

PREPROCESSOR_FILE = "preprocessor_config.json"
_PROCESSOR_FILE = "processor_config.json"
"""Settings of tokenizer and images together, as transformers 5 writes them."""


@dataclass(frozen=True)
class _Processor:
    """What a class of theirs does where a file leaves it out.

    Args:
        resample: number of the filter.
        mean, std: statistics of the channels; one number counts for all.
        crops: True where the middle is cut out of a picture whose shorter side is resized.
    """

    resample: int
    mean: float | Sequence[float] = 0.5
    std: float | Sequence[float] = 0.5
    crops: bool = False


# Of the pictures that CLIP was trained on (Radford 2021).
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_CROPPING = _Processor(3, _CLIP_MEAN, _CLIP_STD, crops=True)
_KINDS = {
    "ViT": _Processor(2),
    "CLIP": _CROPPING,
    "Siglip": _Processor(3),
    # Of DINOv2.
    "Bit": _CROPPING,
}
_PROCESSORS = {
    f"{name}{ending}": kind
    for name, kind in _KINDS.items()
    for ending in ("ImageProcessor", "ImageProcessorFast", "FeatureExtractor")
}
_OLDER_TYPE = "feature_extractor_type"
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
    "crop_size",
    "resample",
    "rescale_factor",
    "image_mean",
    "image_std",
}
# Written by newer versions for all processors, though they change nothing of a ViT's pixels.
_WITHOUT_EFFECT = {
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


def with_pixels(directory: Path, spec: Any) -> Any:
    """Return a spec with the preprocessing of images in a directory; None without such a file.

    Args:
        directory: directory of theirs.
        spec: spec of a model of images, or of images and texts.

    Raises:
        ModelError: when the file asks for a step that is not supported here.
        ConfigError: when a number is out of range.
    """
    file = directory / PREPROCESSOR_FILE
    config = read_json_file(file)
    if config is None:
        file = directory / _PROCESSOR_FILE
        config = (read_json_file(file) or {}).get("image_processor")
    seeing = _seeing(spec)
    pixels = None if config is None else _pixels(config, seeing, str(file))
    seeing = seeing.model_copy(update={"pixels": pixels})
    return spec.model_copy(update={"images": seeing}) if hasattr(spec, "images") else seeing


def _seeing(spec: Any) -> VisionSpec:
    """Return the spec of the part that reads images: the model's, or that of its tower."""
    seeing: VisionSpec = getattr(spec, "images", spec)
    return seeing


def with_image_preprocessor(files: Mapping[str, Any], spec: Any) -> dict[str, Any]:
    """Return the companion files of an export with a preprocessor_config.json for the model.

    Args:
        files: contents of companion files by name; an imported preprocessor_config.json is kept if
            it describes the same steps.
        spec: spec of a model of images, or of images and texts.
    """
    spec = _seeing(spec)
    before = files.get(PREPROCESSOR_FILE)
    if before and _pixels(before, spec, PREPROCESSOR_FILE) == spec.pixels:
        return dict(files)
    return {**files, PREPROCESSOR_FILE: write_pixels(spec)}


def _pixels(config: Mapping[str, Any], spec: VisionSpec, where: str) -> PixelSpec:
    fields = Fields(config, where)
    named = "image_processor_type" if fields.has("image_processor_type") else _OLDER_TYPE
    kind = fields.choice(named, _PROCESSORS, "ViTImageProcessor")
    fields.refuse_unless("do_pad", (False,), False)
    if not kind.crops:
        fields.refuse_unless("do_center_crop", (False,), False)
    # An unknown step would change pixels silently, and with them every prediction.
    for key, value in config.items():
        if key not in _USED | _WITHOUT_EFFECT and value is not None:
            raise fields.wrong(key, "Heedful does not know this step")
    resample = shorter_side = None
    if fields.flag("do_resize", True):
        shorter_side = _shorter_side(fields, spec, kind)
        number = fields.integer("resample", kind.resample)
        if not 0 <= number < len(_FILTERS):
            raise fields.wrong("resample", "this is none of Pillow's filters")
        resample = _FILTERS[number]
    normalizes = fields.flag("do_normalize", True)
    plain = {
        "resample": resample,
        "shorter_side": shorter_side,
        "rescale": fields.number("rescale_factor", 1 / 255)
        if fields.flag("do_rescale", True)
        else 1.0,
        "mean": _of_channels("image_mean", kind.mean, fields, spec) if normalizes else None,
        "std": _of_channels("image_std", kind.std, fields, spec) if normalizes else None,
    }
    # x -> (x - 0) / 1: without normalisation mean and deviation are neutral.
    neutral = {"mean": [0.0] * spec.channels, "std": [1.0] * spec.channels}
    return PixelSpec.parse({**plain, **({} if normalizes else neutral)}, where=where)


def write_pixels(spec: VisionSpec) -> dict[str, Any]:
    """Return the preprocessor_config.json of a model; empty if its spec has no pixels."""
    pixels = spec.pixels
    if pixels is None:
        return {}
    square = {"height": spec.image_size, "width": spec.image_size}
    cropped = {"do_center_crop": True, "crop_size": square}
    return {
        "image_processor_type": f"{'CLIP' if pixels.shorter_side else 'ViT'}ImageProcessor",
        "do_resize": pixels.resample is not None,
        **(cropped if pixels.shorter_side else {}),
        "size": {"shortest_edge": pixels.shorter_side} if pixels.shorter_side else square,
        "resample": _FILTERS.index(pixels.resample or "bilinear"),
        # Without rescaling the factor is 1, which has the same effect.
        "do_rescale": True,
        "rescale_factor": pixels.rescale,
        "do_normalize": True,
        "image_mean": list(pixels.mean),
        "image_std": list(pixels.std),
    }


def _shorter_side(fields: Fields, spec: VisionSpec, kind: _Processor) -> int | None:
    """Return the length of the shorter side before the middle is cut out; None for no cut.

    Raises:
        ModelError: when images get another size than the model's.
    """
    side, size = spec.image_size, fields.get("size")
    if size is None:
        size = 224  # the default of all these classes
    if isinstance(size, int):
        size = {"shortest_edge": size} if kind.crops else {"height": size, "width": size}
    if size == {"height": side, "width": side}:
        return None
    shorter = size.get("shortest_edge") if isinstance(size, Mapping) and len(size) == 1 else None
    if not fields.flag("do_center_crop", kind.crops) or type(shorter) is not int or shorter < side:
        raise fields.wrong("size", f"the model reads images of {side} × {side} pixels")
    cut = 224 if fields.get("crop_size") is None else fields.get("crop_size")
    if cut not in (side, {"height": side, "width": side}):
        raise fields.wrong("crop_size", f"the model reads images of {side} × {side} pixels")
    return shorter


def _of_channels(
    key: str, usual: float | Sequence[float], fields: Fields, spec: VisionSpec
) -> list[float]:
    """Return a field with a number for each channel; a single number counts for all."""
    values = fields.get(key)
    if values is None:
        values = list(usual) if isinstance(usual, Sequence) else usual
    if isinstance(values, int | float) and not isinstance(values, bool):
        values = [values] * spec.channels
    if (
        not isinstance(values, list)
        or len(values) != spec.channels
        or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values)
    ):
        raise fields.wrong(key, f"a number for each of {spec.channels} channels is needed")
    return [float(value) for value in values]
