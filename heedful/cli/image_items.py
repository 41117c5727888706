"""Images in, one line each out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import heedful
from heedful.cli.device_flags import positions_of
from heedful.cli.encoder_items import Items, deliver, json_line
from heedful.cli.files import chunks
from heedful.cli.output import Output, one_line
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.decode.image_labels import ImagePipeline, Picture
    from heedful.decode.predictions import Label

CHUNK = 64
"""Images that are in memory at a time."""

Named = tuple[str, "Picture | None"]
"""What an image is called, and the image; None for an empty line, which names none."""


def classify_images(
    model: Path,
    what: Sequence[str],
    items: Items,
    output: Output,
    top: int | None,
    plain: Callable[[list[Label]], str],
    fields: Callable[[list[Label]], dict[str, Any]],
) -> None:
    """Label images: one line of output for each.

    Args:
        model: where the model is.
        what: pictures, folders and IDX files, instead of lines of the input.
        items: where lines come from and go.
        output: the common flags.
        top: labels of each.
        plain: labels as a line.
        fields: labels as the fields of a JSON object.
    """
    if what and items.input is not None:
        raise UserError("Give images or --input, not both", where="heedful classify")

    def load() -> ImagePipeline:
        return heedful.load_vision(model, device=items.device, precision=items.precision)

    def line(name: str, labels: list[Label]) -> str:
        if output.json:
            return json_line({"image": name, **fields(labels)})
        return f"{one_line(name)}\t{plain(labels)}" if labels else ""

    def results(pipeline: ImagePipeline) -> Iterator[list[str]]:
        images = _given(what) if what else _listed(items.input)
        positions = positions_of(items.batch_tokens, pipeline)
        while chunk := list(islice(images, CHUNK)):
            found = _labels(pipeline, chunk, items.batch_size, positions)
            yield [line(name, labels) for (name, _), labels in zip(chunk, found, strict=True)]

    deliver("classify", {"model": str(model), "top": top}, items, output, load, results)


def _labels(
    pipeline: ImagePipeline, chunk: list[Named], size: int | None, positions: int
) -> Iterator[list[Label]]:
    found = iter(
        pipeline.classify(
            [image for _, image in chunk if image is not None],
            batch_size=size,
            batch_tokens=positions,
        )
    )
    return ([] if image is None else next(found) for _, image in chunk)


def _given(what: Sequence[str]) -> Iterator[Named]:
    """Every image of files and folders."""
    from heedful.data.idx import is_idx, read_images
    from heedful.data.image_files import image_files

    for word in what:
        path = Path(word)
        if path.is_dir():
            yield from ((str(file), file) for file in image_files(path))
        elif is_idx(path):
            for number, pixels in enumerate(read_images(path), start=1):
                yield f"{path}:{number}", pixels
        else:
            yield word, path


def _listed(source: Path | None) -> Iterator[Named]:
    """The images whose names are lines of a file or of standard input."""
    for lines in chunks(source, CHUNK):
        for line in lines:
            yield line, Path(line) if line.strip() else None
