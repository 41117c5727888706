"""Page "Image": a picture in patches, the attention of a model of images, and its labels."""

from __future__ import annotations

import base64
import binascii
import io
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.errors import DataError, ModelError
from heedful.studio.example_images import EXAMPLES, example_image
from heedful.studio.page import Call, Page

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from heedful.pipelines.image_classification import ImagePipeline
    from heedful.studio.workspace import Workspace

MAX_FILE = 8 << 20
"""Bytes of an uploaded picture."""
_MAX_BODY = MAX_FILE * 4 // 3 + (1 << 16)
"""Bytes of a request: such a picture in base64, and settings."""
MOST_DRAWN = 64
"""Pixels on a side of a drawing."""
_CLASSES = 10

Pixel = Annotated[int, Field(ge=0, le=255)]
Row = Annotated[tuple[Pixel, ...], Field(min_length=1, max_length=MOST_DRAWN)]


class LookRequest(Config):
    """A picture, drawn, uploaded or an example, and the patch whose attention to show."""

    model: str
    drawing: Annotated[tuple[Row, ...], Field(min_length=1, max_length=MOST_DRAWN)] | None = Field(
        None, description="rows of grey pixels"
    )
    upload: str | None = Field(None, description="a PNG or JPEG file in base64")
    example: str = Field("", description="the name of one")
    patch: Annotated[int, Field(ge=0)] | None = Field(
        None, description="the patch of the query; the whole image if unset"
    )
    layer: Annotated[int, Field(ge=0)] | None = Field(None, description="the last if unset")
    head: Annotated[int, Field(ge=0)] | None = Field(None, description="the mean of all if unset")
    rollout: bool = Field(False, description="through all layers up to this one, heads averaged")

    @model_validator(mode="after")
    def _one_picture(self) -> Self:
        pictures = (self.drawing is not None) + (self.upload is not None) + bool(self.example)
        if pictures != 1:
            raise ValueError("give one of drawing, upload and example")
        if self.drawing is not None and len({len(row) for row in self.drawing}) > 1:
            raise ValueError("the rows of the drawing are not of the same length")
        return self


class AboutRequest(Config):
    """A model."""

    model: str


def about(request: AboutRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the sizes of a model and the examples, before there is a picture."""
    spec = _pipeline(request.model, workspace).model.spec
    return {
        "side": spec.image_size,
        "channels": spec.channels,
        "patch": spec.patch_size,
        "layers": spec.encoder.num_layers,
        "heads": spec.encoder.block.self_attention.num_heads,
        "pooling": spec.pooling,
        "examples": list(EXAMPLES),
        "canvas": min(spec.image_size, MOST_DRAWN // 2),
        "max_file": MAX_FILE,
    }


def look(request: LookRequest, workspace: Workspace) -> dict[str, Any]:
    """Return patches, attention over them, and the most probable classes."""
    import torch

    from heedful.nn.patches import cut

    pipeline = _pipeline(request.model, workspace)
    spec = pipeline.model.spec
    picture = _picture(request, pipeline)
    square = pipeline.squares([picture])
    patches = cut(torch.from_numpy(square), spec.patch_size)[0]
    labels = pipeline.classify([picture])[0]
    return {
        "side": spec.image_size,
        "channels": spec.channels,
        "patch": spec.patch_size,
        "patches": base64.b64encode(patches.numpy().tobytes()).decode("ascii"),
        "labels": [
            {"label": each.label, "probability": each.probability} for each in labels[:_CLASSES]
        ],
        "classes": len(labels),
        **_attention(request, pipeline, picture),
    }


def _pipeline(name: str, workspace: Workspace) -> ImagePipeline:
    """Return the classifier of images of a name.

    Raises:
        UserError: when there is none of this name.
        ModelError: when it labels no images.
    """
    from heedful.pipelines.image_classification import ImagePipeline

    model: Any = workspace.place(name).load().model
    if model.spec.reads != "images":
        raise ModelError(
            f"This model reads no images; its kind is {model.spec.kind!r}",
            where=name,
            remedy="Choose a vision Transformer",
        )
    return ImagePipeline(model)


def _picture(request: LookRequest, pipeline: ImagePipeline) -> npt.NDArray[np.uint8]:
    """Return the pixels of the picture."""
    import numpy as np

    from heedful.data.image_files import read_image

    spec = pipeline.model.spec
    if request.example and request.example not in EXAMPLES:
        raise DataError(
            f"There is no example {request.example[:40]!r}",
            remedy=f"There are {', '.join(EXAMPLES)}",
        )
    if request.upload is None:
        grey = (
            example_image(request.example, spec.image_size)
            if request.drawing is None
            else np.array(request.drawing, dtype=np.uint8)
        )
        return grey if spec.channels == 1 else np.repeat(grey[:, :, None], 3, axis=2)
    try:
        content = base64.b64decode(request.upload, validate=True)
    except (binascii.Error, ValueError):
        raise DataError("It is no base64", where="upload") from None
    if len(content) > MAX_FILE:
        raise DataError(
            f"The file has {len(content):,} bytes; at most {MAX_FILE:,} are read here",
            where="the uploaded file",
            remedy="Make the picture smaller, or use heedful classify, which takes any",
        )
    return np.asarray(read_image(io.BytesIO(content), spec.channels, "the uploaded file"), np.uint8)


def _attention(
    request: LookRequest, pipeline: ImagePipeline, picture: npt.NDArray[np.uint8]
) -> dict[str, Any]:
    """Return the shares of the patches in reading order, and of [CLS] where there is one."""
    from heedful.inspect.attention_maps import attention
    from heedful.inspect.readings import see
    from heedful.inspect.subject import Subject
    from heedful.inspect.tracing import rollout

    subject = Subject(pipeline.model)
    spec = pipeline.model.spec
    reading = see(subject, pipeline.prepare([picture])[0].numpy())
    layer = spec.encoder.num_layers - 1 if request.layer is None else request.layer
    first = spec.num_states - (spec.image_size // spec.patch_size) ** 2
    if request.rollout:
        traced = rollout(attention(subject, reading, "encoder"))
        if layer >= len(traced.layers):
            raise DataError(f"There is no layer {layer}", where="layer")
        rows = traced.weights[layer]
    else:
        heads = None if request.head is None else [request.head]
        rows = attention(subject, reading, "encoder", layers=[layer], heads=heads).mean()
    if request.patch is None:  # [CLS], or the mean of all states where there is none
        shares = rows[0] if first else rows.mean(0)
    elif request.patch + first >= len(rows):
        raise DataError(f"There is no patch {request.patch}", where="patch")
    else:
        shares = rows[request.patch + first]
    return {"shares": shares[first:].tolist(), "whole": float(shares[0]) if first else None}


PAGE = Page(
    name="image",
    title="Image",
    summary="A picture in patches, the attention between them, and the labels of the picture.",
    about=(
        "A vision Transformer cuts a picture into patches and reads them like words. Draw one, "
        "upload one or take an example; choose a patch to see which others it attends to, in one "
        "layer and head or through all layers (rollout). Beside the picture are its most probable "
        "labels."
    ),
    calls={
        "about": Call(AboutRequest, about),
        "look": Call(LookRequest, look, limit=_MAX_BODY),
    },
)
