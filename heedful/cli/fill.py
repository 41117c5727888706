"""`heedful fill`: predict the text behind masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import heedful
from heedful.cli.encoder_verbs import (
    DEFAULT_ITEMS,
    EncoderVerb,
    Items,
    OneText,
    four_digits,
    run,
)
from heedful.cli.flags import ModelPath
from heedful.cli.output import PLAIN, Output, one_line

if TYPE_CHECKING:
    from heedful.pipelines.predictions import Candidate


def fill(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    top: Annotated[int, Parameter(help="Candidates for each mask.")] = 5,
    items: Items = DEFAULT_ITEMS,
    output: Output = PLAIN,
) -> None:
    """Fill [MASK] in a text.

    [MASK] stands for the model's own mask token, whatever its name. Each line gives one line: the
    candidates, each with its probability after a space, separated by tabs. If there are several
    masks, a | separates their candidates. Tabs and line breaks within a token are written as \\t
    and \\n, and backslashes as \\\\. With --json, `candidates` is one list of `mask` (the number of
    the mask in its text, from 1), `token` and `probability`. An empty line gives none; any other
    line needs a mask.

    An encoder such as BERT predicts the one token that each mask hides. An encoder-decoder such as
    T5 or BART, or one trained with --task span_corruption or denoising, predicts text of any
    length.

    For example:

        heedful fill bert "The [MASK] sat on the mat." --top 3
        heedful fill bert -i texts.txt -o filled.jsonl --json
        heedful fill t5 "The [MASK] walks in [MASK] park."
    """
    verb = EncoderVerb(
        "fill",
        "masked_lm",
        lambda pipeline, lines, options: pipeline.fill(lines, top=top, **options),
        _plain,
        _fields,
        heedful.load_filler,
    )
    run(verb, model, text, items, output, {"top": top})


def _plain(masks: list[list[Candidate]]) -> str:
    parts = [[f"{one_line(c.token)} {four_digits(c.probability)}" for c in mask] for mask in masks]
    return "\t|\t".join("\t".join(part) for part in parts)


def _fields(masks: list[list[Candidate]]) -> dict[str, Any]:
    return {
        "candidates": [
            {"mask": number, "token": candidate.token, "probability": candidate.probability}
            for number, mask in enumerate(masks, start=1)
            for candidate in mask
        ]
    }
