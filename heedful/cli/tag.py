"""`heedful tag`: texts in, a label for each of their words out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heedful.cli.encoder_items import HERE, EncoderPath, Items, OneText, Verb, run
from heedful.cli.output import PLAIN, Output, one_line

if TYPE_CHECKING:
    from heedful.decode.predictions import TokenLabel


def tag(
    model: EncoderPath, text: OneText = None, /, *, items: Items = HERE, output: Output = PLAIN
) -> None:
    """Label the words of texts.

    White space separates words, and a word gets the label of its first piece. Every line gives one
    line: word/label with a space between each two. With --json, `labels` lists `token` (the word),
    `label` and `probability`. An empty line gives none. A word of which the tokenizer makes nothing
    (control characters) has no label: nothing after its /, null in JSON. Long lines are read in
    parts that overlap.

    For example:

        heedful tag tagger "The cat sat on the mat ."
        heedful tag tagger -i texts.txt -o tagged.txt
    """
    verb = Verb(
        "tag",
        "token",
        lambda pipeline, lines, options: pipeline.tag(lines, **options),
        _plain,
        _fields,
    )
    run(verb, model, text, items, output, {})


def _plain(words: list[TokenLabel]) -> str:
    return " ".join(f"{word.token}/{one_line(word.label or '')}" for word in words)


def _fields(words: list[TokenLabel]) -> dict[str, Any]:
    return {
        "labels": [
            {"token": word.token, "label": word.label, "probability": word.probability}
            for word in words
        ]
    }
