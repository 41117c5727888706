"""`heedful classify`: texts, pairs of texts or images in, their labels out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from heedful.cli.encoder_items import HERE, EncoderPath, Items, Verb, run, shown
from heedful.cli.image_items import classify_images
from heedful.cli.output import PLAIN, Output, one_line
from heedful.errors import ConfigError, DataError, UserError

if TYPE_CHECKING:
    from heedful.decode.encoding import EncoderPipeline, EncodingOptions
    from heedful.decode.predictions import Label


def classify(
    model: EncoderPath,
    /,
    *what: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="One text; or images: PNG and JPEG files, folders of them, IDX files. If there "
            "is none, lines of the input are read.",
        ),
    ],
    top: Annotated[
        int | None,
        Parameter(help="Labels of each; the most probable, or with --json all if unset."),
    ] = None,
    items: Items = HERE,
    output: Output = PLAIN,
) -> None:
    """Label texts, pairs of texts, or images.

    A line is a text, or two with a tab between them. Every line gives one line: the most probable
    label, a tab, its probability. With --json, `labels` lists all of them, the most probable first,
    each as `label` and `probability`. An empty line gives none.

    For a model of images a line of the input is the name of a picture, and what comes out begins
    with it: as a first column, or with --json as `image`.

    For example:

        heedful classify reviews "A warm, funny film."
        heedful classify reviews -i texts.txt -o labels.txt
        heedful classify animals cat.png dog.jpg --top 3
        heedful classify animals folder --json
    """
    if top is not None and top < 1:
        raise ConfigError("At least one label must be asked for", where=f"--top {top}")
    from heedful.interop.directory import describe_any
    from heedful.models.family import VisionSpec

    plain = partial(_plain, top=top)
    fields = partial(_fields, top=top)
    if isinstance(describe_any(model).spec, VisionSpec):
        classify_images(model, what, items, output, top, plain, fields)
        return
    if len(what) > 1:
        raise UserError(
            f"There are {len(what)} texts, and one is taken",
            where="heedful classify",
            remedy="Give one in quotes, or a file with one a line: --input FILE",
        )
    verb = Verb("classify", "sequence", _classify, plain, fields)
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
    shown_labels = labels[: top or 1]
    return "\t".join(f"{one_line(one.label)}\t{shown(one.probability)}" for one in shown_labels)


def _fields(labels: list[Label], *, top: int | None) -> dict[str, Any]:
    return {
        "labels": [{"label": one.label, "probability": one.probability} for one in labels[:top]]
    }
