"""`heedful answer`: find the passage of a text that answers a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

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
from heedful.errors import DataError

if TYPE_CHECKING:
    from heedful.pipelines.predictions import Answer


def answer(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    question: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True, help="The question for every line; each line is a context."
        ),
    ] = None,
    max_answer: Annotated[int, Parameter(help="Maximum number of tokens of an answer.")] = 30,
    unanswerable: Annotated[
        bool | None,
        Parameter(
            show_default=False,
            help="Allow an empty answer. [default: as the model was trained]",
        ),
    ] = None,
    items: Items = DEFAULT_ITEMS,
    output: Output = PLAIN,
) -> None:
    """Answer questions with passages of given texts.

    A line is a context if --question is given, and otherwise a question, a tab and its context.
    Each line gives one line: the passage of the context that answers, as it is written there, a
    tab, and its probability; tabs within are written as \\t, and backslashes as \\\\. With --json,
    the fields are `text`, `probability`, and `start` and `end`, which count characters of the
    context. An empty line or an empty context gives an empty answer of probability 0. A model
    trained on questions without an answer gives an empty one where that is the most probable. Long
    contexts are read in overlapping parts.

    For example:

        heedful answer reader "Ada wrote the first program." --question "Who wrote it?"
        heedful answer reader -i questions.tsv -o answers.txt
    """

    def pair(line: str, number: int) -> tuple[str, str]:
        if question is not None:
            return question, line
        first, tab, context = line.partition("\t")
        if not tab and line.strip():
            raise DataError(
                "There is no tab between a question and its context",
                where=f"line {number}",
                remedy="Give --question if the lines are contexts only",
            )
        return first, context

    verb = EncoderVerb(
        "answer",
        "span",
        lambda pipeline, lines, options: pipeline.answer(
            [pair(line, number) for number, line in enumerate(lines, options["first_line"])],
            max_answer=max_answer,
            unanswerable=unanswerable,
            **options,
        ),
        _plain,
        _fields,
    )
    settings = {"question": question, "max_answer": max_answer, "unanswerable": unanswerable}
    run(verb, model, text, items, output, settings)


def _plain(answer: Answer) -> str:
    return f"{one_line(answer.text)}\t{four_digits(answer.probability)}"


def _fields(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "probability": answer.probability,
        "start": answer.start,
        "end": answer.end,
    }
