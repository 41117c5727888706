"""`heedful answer`: questions and texts in, the part of each text that answers out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from heedful.cli.encoder_items import HERE, EncoderPath, Items, OneText, Verb, run, shown
from heedful.cli.output import PLAIN, Output, one_line
from heedful.errors import DataError

if TYPE_CHECKING:
    from heedful.decode.predictions import Answer


def answer(
    model: EncoderPath,
    text: OneText = None,
    /,
    *,
    question: Annotated[
        str | None,
        Parameter(allow_leading_hyphen=True, help="Asked of every line; the line is the context."),
    ] = None,
    max_answer: Annotated[int, Parameter(help="Most tokens of an answer.")] = 30,
    unanswerable: Annotated[
        bool | None,
        Parameter(
            show_default=False,
            help="Whether an answer may be empty. [default: as the model was trained]",
        ),
    ] = None,
    items: Items = HERE,
    output: Output = PLAIN,
) -> None:
    """Find the answers to questions in texts.

    A line is a context, where --question asks about all of them; else a question, a tab and its
    context. Every line gives one line: the part of the context that answers, as it is written
    there, a tab, its probability; tabs within show as \\t, and backslashes as \\\\. With --json,
    `text`, `probability`, and `start` and `end`, which count characters of the context. An empty
    line, or an empty context, gives an empty answer of probability 0. A model that was trained on
    questions without an answer gives an empty one where that is the most probable. Long contexts
    are read in parts that overlap.

    For example:

        heedful answer reader "Ada wrote the first program." --question "Who wrote it?"
        heedful answer reader -i questions.tsv -o answers.txt
    """

    def pair(line: str, number: int) -> tuple[str, str]:
        if question is not None:
            return question, line
        asked, tab, context = line.partition("\t")
        if not tab and line.strip():
            raise DataError(
                "There is no tab between a question and its context",
                where=f"line {number}",
                remedy="Give --question if the lines are contexts only",
            )
        return asked, context

    verb = Verb(
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
    asked = {"question": question, "max_answer": max_answer, "unanswerable": unanswerable}
    run(verb, model, text, items, output, asked)


def _plain(answer: Answer) -> str:
    return f"{one_line(answer.text)}\t{shown(answer.probability)}"


def _fields(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "probability": answer.probability,
        "start": answer.start,
        "end": answer.end,
    }
