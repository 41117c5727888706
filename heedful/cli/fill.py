"""`heedful fill`: texts with masks in, what may stand there out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import heedful
from heedful.cli.encoder_items import HERE, EncoderPath, Items, OneText, Verb, run, shown
from heedful.cli.output import PLAIN, Output, one_line

if TYPE_CHECKING:
    from heedful.decode.encoding import EncodingOptions
    from heedful.decode.filling import Filler
    from heedful.decode.predictions import Candidate


def fill(
    model: EncoderPath,
    text: OneText = None,
    /,
    *,
    top: Annotated[int, Parameter(help="Candidates for each mask.")] = 5,
    items: Items = HERE,
    output: Output = PLAIN,
) -> None:
    """What may stand where a text has [MASK].

    [MASK] stands for the model's own mask token, whatever it calls it. Every line gives one line:
    the candidates, each with its probability after a space, separated by tabs. Where there are
    several masks, a | alone stands between their candidates. Tabs and line breaks within a token
    show as \\t and \\n, and backslashes as \\\\. With --json, `candidates` is one list of `mask`
    (the number of the mask in its text, from 1), `token` and `probability`. An empty line gives
    none; any other line needs a mask.

    An encoder such as BERT says which token each mask hides. An encoder-decoder such as T5 or BART,
    or one trained with --task span_corruption or denoising, says which text of any length.

    For example:

        heedful fill bert "The [MASK] sat on the mat." --top 3
        heedful fill bert -i texts.txt -o filled.jsonl --json
        heedful fill t5 "The [MASK] walks in [MASK] park."
    """

    def work(
        pipeline: Filler, lines: list[str], options: EncodingOptions
    ) -> list[list[list[Candidate]]]:
        return pipeline.fill(lines, top=top, **options)

    verb = Verb("fill", "masked_lm", work, _plain, _fields, heedful.load_filler)
    run(verb, model, text, items, output, {"top": top})


def _plain(masks: list[list[Candidate]]) -> str:
    parts = [[f"{one_line(c.token)} {shown(c.probability)}" for c in mask] for mask in masks]
    return "\t|\t".join("\t".join(part) for part in parts)


def _fields(masks: list[list[Candidate]]) -> dict[str, Any]:
    return {
        "candidates": [
            {"mask": number, "token": candidate.token, "probability": candidate.probability}
            for number, mask in enumerate(masks, start=1)
            for candidate in mask
        ]
    }
