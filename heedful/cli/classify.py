"""`heedful classify`: label texts, pairs of texts or images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import heedful
from heedful.cli.encoder_verbs import (
    DEFAULT_ITEMS,
    EncoderVerb,
    Items,
    four_digits,
    json_line,
    run,
    write_results,
)
from heedful.cli.flags import ModelPath, positions_of
from heedful.cli.text_io import PLAIN, Output, chunks, one_line
from heedful.errors import ConfigError, DataError, UserError

if TYPE_CHECKING:
    from heedful.pipelines.image_classification import ImagePipeline, Picture
    from heedful.pipelines.predictions import Label
    from heedful.pipelines.text_encoding import EncoderPipeline, EncodingOptions

IMAGE_CHUNK = 64
"""Maximum number of images in memory."""

NamedImage = tuple[str, "Picture | None"]
"""The name of an image and the image itself, or None for an empty line."""


def classify(
    model: ModelPath,
    /,
    *what: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="Text to label, or images: PNG and JPEG files, folders of them, or IDX files. If "
            "none, the lines of --input are read.",
        ),
    ],
    top: Annotated[
        int | None,
        Parameter(
            help="Number of most probable labels for each item; 1 if unset, or all with --json."
        ),
    ] = None,
    items: Items = DEFAULT_ITEMS,
    output: Output = PLAIN,
) -> None:
    """Label texts, pairs of texts, or images.

    An input line is a text, or two texts with a tab between them. Its output line is the most
    probable label, a tab and its probability. With --json, `labels` lists all labels from the most
    to the least probable, each with `label` and `probability`. An empty line gets no label.

    For a model of images, an input line is the name of an image file, and the output line begins
    with that name: as the first column, or as `image` with --json.

    For example:

        heedful classify reviews "A warm, funny film."
        heedful classify reviews -i texts.txt -o labels.txt
        heedful classify animals cat.png dog.jpg --top 3
        heedful classify animals folder --json
    """
    if top is not None and top < 1:
        raise ConfigError("The number of labels must be at least 1", where=f"--top {top}")
    from heedful.interop.hugging_face import describe_any

    if describe_any(model).spec.kind == "vision":
        _classify_images(model, what, items, output, top)
        return
    if len(what) > 1:
        raise UserError(
            f"There are {len(what)} texts, and one is taken",
            where="heedful classify",
            remedy="Give one in quotes, or a file with one a line: --input FILE",
        )
    plain, fields = partial(_plain, top=top), partial(_fields, top=top)
    verb = EncoderVerb("classify", "sequence", _classify, plain, fields)
    run(verb, model, what[0] if what else None, items, output, {"top": top})


def _classify(
    pipeline: EncoderPipeline, lines: list[str], options: EncodingOptions
) -> list[list[Label]]:
    texts: list[str | tuple[str, str]] = []
    for number, line in enumerate(lines, start=options["first_line"]):
        first, *others = line.split("\t")
        if len(others) > 1:
            raise DataError(
                f"{len(others)} tabs",
                where=f"line {number}",
                remedy="Give one text, or two with a tab between them",
            )
        texts.append((first, others[0]) if others else first)
    return pipeline.classify(texts, **options)


def _plain(labels: list[Label], *, top: int | None) -> str:
    return "\t".join(
        f"{one_line(one.label)}\t{four_digits(one.probability)}" for one in labels[: top or 1]
    )


def _fields(labels: list[Label], *, top: int | None) -> dict[str, Any]:
    return {
        "labels": [{"label": one.label, "probability": one.probability} for one in labels[:top]]
    }


def _classify_images(
    model: Path, what: Sequence[str], items: Items, output: Output, top: int | None
) -> None:
    """Label images, and write one output line for each.

    Args:
        model: the model's directory.
        what: image files, folders and IDX files, instead of lines of the input.
        items: the flags for input, output, device and batches.
        output: the common flags.
        top: number of labels of each image.
    """
    if what and items.input is not None:
        raise UserError("Give images or --input, not both", where="heedful classify")

    def load() -> ImagePipeline:
        return heedful.load_vision(model, device=items.device, precision=items.precision)

    def line(name: str, labels: list[Label]) -> str:
        if output.json:
            return json_line({"image": name, **_fields(labels, top=top)})
        return f"{one_line(name)}\t{_plain(labels, top=top)}" if labels else ""

    def results(pipeline: ImagePipeline) -> Iterator[list[str]]:
        images = _named_images(what) if what else _listed_images(items.input)
        positions = positions_of(items.batch_tokens, pipeline)
        while chunk := list(islice(images, IMAGE_CHUNK)):
            labels = pipeline.classify(
                [image for _, image in chunk if image is not None],
                batch_size=items.batch_size,
                batch_tokens=positions,
            )
            rest = iter(labels)
            yield [line(name, [] if image is None else next(rest)) for name, image in chunk]

    write_results("classify", {"model": str(model), "top": top}, items, output, load, results)


def _named_images(what: Sequence[str]) -> Iterator[NamedImage]:
    """Yield every image of files and folders."""
    from heedful.data.image_files import image_files, is_idx, read_images

    for word in what:
        path = Path(word)
        if path.is_dir():
            yield from ((str(file), file) for file in image_files(path))
        elif is_idx(path):
            for number, pixels in enumerate(read_images(path), start=1):
                yield f"{path}:{number}", pixels
        else:
            yield word, path


def _listed_images(source: Path | None) -> Iterator[NamedImage]:
    """Yield the images whose names are lines of a file or of standard input."""
    for lines in chunks(source, IMAGE_CHUNK):
        for line in lines:
            yield line, Path(line) if line.strip() else None
