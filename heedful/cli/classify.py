"""`heedful classify`: texts or pairs of texts in, their labels out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heedful.cli.encoder_items import HERE, EncoderPath, Items, OneText, Verb, run, shown
from heedful.cli.output import PLAIN, Output, one_line
from heedful.errors import DataError

if TYPE_CHECKING:
    from heedful.decode.encoding import EncoderPipeline, EncodingOptions
    from heedful.decode.predictions import Label


def classify(
    model: EncoderPath, text: OneText = None, /, *, items: Items = HERE, output: Output = PLAIN
) -> None:
    """Label texts, or pairs of texts.

    A line is a text, or two with a tab between them. Every line gives one line: the most probable
    label, a tab, its probability. With --json, `labels` lists all of them, the most probable first,
    each as `label` and `probability`. An empty line gives none.

    For example:

        heedful classify reviews "A warm, funny film."
        heedful classify reviews -i texts.txt -o labels.txt
    """
    verb = Verb("classify", "sequence", _classify, _plain, _fields)
    run(verb, model, text, items, output, {})


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


def _plain(labels: list[Label]) -> str:
    if not labels:
        return ""
    return f"{one_line(labels[0].label)}\t{shown(labels[0].probability)}"


def _fields(labels: list[Label]) -> dict[str, Any]:
    return {"labels": [{"label": one.label, "probability": one.probability} for one in labels]}
