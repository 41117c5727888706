"""`heedful tag`: label each word of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heedful.cli.encoder_verbs import DEFAULT_ITEMS, EncoderVerb, Items, OneText, run
from heedful.cli.flags import ModelPath
from heedful.cli.output import PLAIN, Output, one_line

if TYPE_CHECKING:
    from heedful.pipelines.predictions import TokenLabel


def tag(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    items: Items = DEFAULT_ITEMS,
    output: Output = PLAIN,
) -> None:
    """Label the words of texts.

    White space separates words, and a word gets the label of its first piece. Each line gives one
    line: word/label pairs separated by spaces. With --json, `labels` lists `token` (the word),
    `label` and `probability`. An empty line gives none. A word for which the tokenizer has no
    piece (control characters) has no label: nothing after its /, null in JSON. Long lines are read
    in overlapping parts.

    For example:

        heedful tag tagger "The cat sat on the mat ."
        heedful tag tagger -i texts.txt -o tagged.txt
    """
    verb = EncoderVerb(
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
