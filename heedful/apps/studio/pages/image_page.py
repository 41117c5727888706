"""Page "Image": the patches of an image, a vision model's attention, and its classes."""

from __future__ import annotations

import base64
import binascii
import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator

from heedful.apps.studio.page import ModelRequest, call
from heedful.apps.studio.pages import MOST_IMAGE_BYTES
from heedful.apps.studio.spoken_words import WORDS, say
from heedful.apps.studio.workspace import Workspace
from heedful.data.image_files import read_image
from heedful.errors import DataError, ModelError
from heedful.inspect.attention_maps import attention, attentions, choose_layer, num_heads
from heedful.inspect.readings import see
from heedful.inspect.subject import Subject
from heedful.inspect.tracing import rollout
from heedful.nn.patches import cut
from heedful.pipelines.image_classification import ImagePipeline

Line = Sequence[tuple[float, float]]

_THICK = 0.045
"""Half the width of a line, in an image of width 1."""
_SOFT = 0.03
"""Width of a line's fading edge."""

# Corners of lines, from (0, 0) at the top left to (1, 1) at the bottom right.
_LINES: Mapping[str, Sequence[Line]] = {
    "zero": [
        [
            (0.5, 0.2), (0.63, 0.26), (0.69, 0.4), (0.69, 0.6), (0.63, 0.74), (0.5, 0.8),
            (0.37, 0.74), (0.31, 0.6), (0.31, 0.4), (0.37, 0.26), (0.5, 0.2),
        ]
    ],
    "one": [[(0.56, 0.2), (0.46, 0.8)]],
    "two": [
        [
            (0.34, 0.34), (0.4, 0.24), (0.52, 0.2), (0.64, 0.26), (0.66, 0.38), (0.58, 0.53),
            (0.44, 0.67), (0.32, 0.79), (0.5, 0.77), (0.7, 0.78),
        ]
    ],
    "three": [
        [
            (0.34, 0.26), (0.48, 0.2), (0.62, 0.26), (0.62, 0.39), (0.5, 0.47), (0.63, 0.54),
            (0.67, 0.67), (0.56, 0.78), (0.42, 0.8), (0.32, 0.73),
        ]
    ],
    "four": [[(0.38, 0.2), (0.31, 0.53), (0.68, 0.53)], [(0.63, 0.22), (0.56, 0.8)]],
    "seven": [[(0.31, 0.24), (0.69, 0.24), (0.55, 0.5), (0.45, 0.8)]],
    "house": [
        [(0.25, 0.5), (0.5, 0.22), (0.75, 0.5)],
        [(0.3, 0.47), (0.3, 0.8), (0.7, 0.8), (0.7, 0.47)],
        [(0.45, 0.8), (0.45, 0.62), (0.56, 0.62), (0.56, 0.8)],
    ],
}  # fmt: skip

EXAMPLES = tuple(_LINES)
"""Names of the example images."""

_SPOKEN = "spoken "
SPOKEN = tuple(f"{_SPOKEN}{word}" for word in WORDS)
"""Names of the example sounds, for a model of their pictures."""


def example_image(name: str, side: int) -> npt.NDArray[np.uint8]:
    """Draw an example image.

    Args:
        name: name of the image, one of `EXAMPLES`.
        side: height and width in pixels.

    Returns:
        The image [side, side], with values from 0 to 255.
    """
    at = (np.arange(side) + 0.5) / side
    x, y = np.meshgrid(at, at)
    nearest = np.full((side, side), np.inf)
    for line in _LINES[name]:
        for start, end in itertools.pairwise(line):
            nearest = np.minimum(nearest, _distance(x, y, start, end))
    shade = np.clip((_THICK + _SOFT - nearest) / _SOFT, 0, 1)
    return np.round(255 * shade).astype(np.uint8)


def _distance(
    x: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
    start: tuple[float, float],
    end: tuple[float, float],
) -> npt.NDArray[np.float64]:
    across, down = end[0] - start[0], end[1] - start[1]
    length = across**2 + down**2
    share = np.clip(((x - start[0]) * across + (y - start[1]) * down) / length, 0, 1)
    away: npt.NDArray[np.float64] = np.hypot(
        x - start[0] - share * across, y - start[1] - share * down
    )
    return away


MOST_DRAWN = 64
"""Maximum number of pixels on a side of a drawing."""
_CLASSES = 10
MOST_SHADES = 40_000
"""Maximum number of weights in the thumbnails of all heads."""
MOST_PATCHES = 64
"""Maximum number of patches of an image that is classified without each of them in turn."""
MOST_ERASED = 8
"""Maximum number of patches that are erased together."""

Pixel = Annotated[int, Field(ge=0, le=255)]
Row = Annotated[tuple[Pixel, ...], Field(min_length=1, max_length=MOST_DRAWN)]


class ImageRequest(ModelRequest):
    """A model, and an image: a drawing, an upload or an example."""

    drawing: tuple[Row, ...] | None = Field(
        None, min_length=1, max_length=MOST_DRAWN, description="drawing as rows of grey pixels"
    )
    upload: str | None = Field(None, description="PNG, JPEG or WAV file in base64")
    example: str = Field("", description="name of an example")

    @model_validator(mode="after")
    def _one_picture(self) -> Self:
        pictures = (self.drawing is not None) + (self.upload is not None) + bool(self.example)
        if pictures != 1:
            raise ValueError("give one of drawing, upload and example")
        if self.drawing is not None and len({len(row) for row in self.drawing}) > 1:
            raise ValueError("the rows of the drawing are not of the same length")
        return self


class LookRequest(ImageRequest):
    """An image, and the patch whose attention to show."""

    patch: int | None = Field(
        None, ge=0, description="index of the query patch; the whole image if unset"
    )
    layer: int | None = Field(None, ge=0, description="index of the layer; the last if unset")
    head: int | None = Field(None, ge=0, description="index of the head; mean of all if unset")
    rollout: bool = Field(
        False, description="show attention rollout through all layers up to this one"
    )


@call(ModelRequest)
def about(request: ModelRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the sizes of a model and the examples, before an image is chosen."""
    pipeline = image_pipeline(request.model, workspace)
    spec, layers = pipeline.spec, attentions(pipeline.engine, "encoder")
    return {
        "side": spec.image_size,
        "channels": spec.channels,
        "patch": spec.patch_size,
        "layers": len(layers),
        "heads": num_heads(layers),
        "examples": list(EXAMPLES),
        "spoken": list(SPOKEN),
        "canvas": min(spec.image_size, MOST_DRAWN // 2),
        "max_file": MOST_IMAGE_BYTES,
    }


@call(ImageRequest)
def erase(request: ImageRequest, workspace: Workspace) -> dict[str, Any]:
    """Return patches without which the image has another label, and that label.

    They are erased one after the other, each time the patch that lowers the probability of the
    image's own label most. The label is null where it stays the same.
    """
    pipeline = image_pipeline(request.model, workspace)
    image = pipeline.squares([picture_of(request, pipeline)])[0]
    patch = pipeline.spec.patch_size
    count = len(image[0]) // patch
    if count**2 > MOST_PATCHES:
        return {"patches": [], "label": None, "probability": None}

    def without(image: npt.NDArray[np.uint8], i: int) -> npt.NDArray[np.uint8]:
        row, column = i // count * patch, i % count * patch
        rest = image.copy()
        rest[:, row : row + patch, column : column + patch] = 0
        return rest

    own = next(iter(_labels(pipeline, [image])[0]))
    erased: list[int] = []
    for _ in range(MOST_ERASED):
        rest = {i: without(image, i) for i in range(count**2)}
        rest = {i: each for i, each in rest.items() if (each != image).any()}  # not black yet
        if not rest:
            break
        labels = dict(zip(rest, _labels(pipeline, list(rest.values())), strict=True))
        least = min(labels, key=lambda i: labels[i][own])
        erased.append(least)
        image = rest[least]
        label, probability = next(iter(labels[least].items()))
        if label != own:
            return {"patches": erased, "label": label, "probability": probability}
    return {"patches": erased, "label": None, "probability": None}


def _labels(
    pipeline: ImagePipeline, images: Sequence[npt.NDArray[np.uint8]]
) -> list[dict[str, float]]:
    """Return the probability of each label of images [C, h, w], the most probable first."""
    grey = pipeline.spec.channels == 1
    pictures = [each[0] if grey else np.moveaxis(each, 0, -1) for each in images]
    found = pipeline.classify(pictures)
    return [{each.label: each.probability for each in labels} for labels in found]


@call(LookRequest)
def look(request: LookRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the patches, the attention over them, and the most probable classes."""
    pipeline = image_pipeline(request.model, workspace)
    picture = picture_of(request, pipeline)
    labels = pipeline.classify([picture])[0]
    return {
        **patches_of(pipeline, picture),
        "labels": [
            {"label": each.label, "probability": each.probability} for each in labels[:_CLASSES]
        ],
        "classes": len(labels),
        **_attention(request, pipeline, picture),
    }


def patches_of(pipeline: ImagePipeline, picture: npt.NDArray[np.uint8]) -> dict[str, Any]:
    """Return the patches of an image in base64, in reading order, and their sizes."""
    spec = pipeline.spec
    patches = cut(torch.from_numpy(pipeline.squares([picture])), spec.patch_size)[0]
    return {
        "side": spec.image_size,
        "channels": spec.channels,
        "patch": spec.patch_size,
        "patches": base64.b64encode(patches.numpy().tobytes()).decode("ascii"),
    }


def image_pipeline(name: str, workspace: Workspace) -> ImagePipeline:
    """Return the vision model of a name.

    Raises:
        UserError: when the name is unknown.
        ModelError: when the model reads something else, or has no patches to attend to.
    """
    model: Any = workspace.place(name).load().model
    if model.spec.kind != "vision":
        raise ModelError(
            f"This model reads no patches of images; its kind is {model.spec.kind!r}",
            where=name,
            remedy="Choose a vision Transformer",
        )
    return ImagePipeline(model)


def picture_of(request: ImageRequest, pipeline: ImagePipeline) -> npt.NDArray[np.uint8]:
    """Return the image of a request, preprocessed as by the model's data loader.

    Raises:
        DataError: when the example is unknown, or the upload is no image or too large.
    """
    spec = pipeline.spec
    if request.example and request.example not in (*EXAMPLES, *SPOKEN):
        raise DataError(
            f"There is no example {request.example[:40]!r}",
            remedy=f"There are {', '.join((*EXAMPLES, *SPOKEN))}",
        )
    if request.upload is None:
        if request.drawing is not None:
            grey = np.array(request.drawing, dtype=np.uint8)
        elif request.example in SPOKEN:
            word = request.example.removeprefix(_SPOKEN)
            grey = np.asarray(read_image(io.BytesIO(say(word)), 1, request.example), np.uint8)
        else:
            grey = example_image(request.example, spec.image_size)
        return grey if spec.channels == 1 else np.repeat(grey[:, :, None], 3, axis=2)
    try:
        content = base64.b64decode(request.upload, validate=True)
    except (binascii.Error, ValueError):
        raise DataError("The upload is no base64", where="upload") from None
    if len(content) > MOST_IMAGE_BYTES:
        raise DataError(
            f"The file has {len(content):,} bytes; at most {MOST_IMAGE_BYTES:,} are allowed here",
            where="the uploaded file",
            remedy="Make the picture smaller, or use heedful classify, which takes any",
        )
    return np.asarray(read_image(io.BytesIO(content), spec.channels, "the uploaded file"), np.uint8)


def _attention(
    request: LookRequest, pipeline: ImagePipeline, picture: npt.NDArray[np.uint8]
) -> dict[str, Any]:
    """Return the attention to the patches in reading order, and to [CLS] where there is one."""
    subject = Subject(pipeline.engine)
    spec = pipeline.spec
    reading = see(subject, pipeline.prepare([picture])[0].numpy())
    layer = spec.encoder.num_layers - 1 if request.layer is None else request.layer
    side = spec.image_size // spec.patch_size
    first = spec.num_states - side**2
    every = attention(subject, reading, "encoder")
    if request.rollout:
        traced = rollout(every)
        rows = traced.weights[choose_layer(layer, len(traced.layers))]
    else:
        heads = None if request.head is None else [request.head]
        rows = attention(subject, reading, "encoder", layers=[layer], heads=heads).mean()
    if request.patch is not None and request.patch + first >= len(rows):
        raise DataError(f"There is no patch {request.patch}", where="patch")

    def query(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the row of the patch; without one that of [CLS], or the mean of all states."""
        if request.patch is None:
            return weights[..., 0, :] if first else weights.mean(-2)
        return weights[..., request.patch + first, :]

    shares = query(rows)
    return {
        "shares": shares[first:].tolist(),
        "whole": float(shares[0]) if first else None,
        "heads": _thumbnails(query(every.weights)[..., first:], side),
    }


def _thumbnails(weights: npt.NDArray[np.float32], side: int) -> dict[str, Any] | None:
    """Return weights [layers, heads, patches] as shades of one scale; null if too many to show."""
    if weights.size > MOST_SHADES:
        return None
    most = float(weights.max())
    shades = np.round(255 * weights / most).astype(np.uint8)
    return {
        "shape": [*weights.shape[:2], side, side],
        "shades": base64.b64encode(shades.tobytes()).decode("ascii"),
        "most": most,
    }
