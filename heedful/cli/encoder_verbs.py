"""`heedful answer`, `fill` and `tag`, and the loop that `classify` shares with them.

The loop reads one item per line and writes one line for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from cyclopts import Group, Parameter

import heedful
from heedful.cli.flags import BatchTokens, DeviceFlag, ModelPath, PrecisionFlag, positions_of
from heedful.cli.text_io import (
    PLAIN,
    Output,
    Report,
    chunks,
    is_standard,
    one_line,
    output_to,
    refuse_missing_folder,
    terminal,
)
from heedful.errors import DataError, UserError

if TYPE_CHECKING:
    from heedful.pipelines.predictions import Answer, Candidate, TokenLabel
    from heedful.pipelines.text_encoding import EncodingOptions


CHUNK = 1024
"""Maximum number of lines in memory."""

_GROUP = Group("Running", sort_key=50)

OneText = Annotated[
    str | None,
    Parameter(allow_leading_hyphen=True, help="Text to process, instead of the lines of --input."),
]


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class Items:
    """Input, output, device, precision and batches."""

    input: Annotated[
        Path | None,
        Parameter(
            name=("--input", "-i"),
            allow_leading_hyphen=True,
            help="File with one item a line, plain or gzip; standard input if unset.",
        ),
    ] = None
    output_file: Annotated[
        Path | None,
        Parameter(
            name=("--output", "-o"),
            allow_leading_hyphen=True,
            help="File for the results, which appears when all are done; standard output if unset.",
        ),
    ] = None
    device: DeviceFlag = "auto"
    precision: PrecisionFlag = "auto"
    batch_size: Annotated[
        int | None, Parameter(help="Number of items in a batch, instead of --batch-tokens.")
    ] = None
    batch_tokens: Annotated[
        BatchTokens,
        Parameter(
            help="Size of a batch in tokens: texts x longest text, padding included; auto fills "
            "the free memory."
        ),
    ] = 4096


DEFAULT_ITEMS = Items()

Result = TypeVar("Result")
Pipeline = TypeVar("Pipeline")


@dataclass(frozen=True)
class EncoderVerb(Generic[Result]):
    """The parts of the loop that differ between verbs.

    Args:
        name: name of the verb.
        head: kind of head that the model must have.
        predict: function from pipeline, lines and options to a result for each line.
        plain: function that formats a result as a line.
        fields: function that formats a result as the fields of a JSON object.
        load: function that loads the pipeline.
    """

    name: str
    head: str
    predict: Callable[[Any, list[str], EncodingOptions], list[Result]]
    plain: Callable[[Result], str]
    fields: Callable[[Result], dict[str, Any]]
    load: Callable[..., Any] = heedful.load_encoder


def run(
    verb: EncoderVerb[Result],
    model: Path,
    text: str | None,
    items: Items,
    output: Output,
    settings: Mapping[str, Any],
) -> None:
    """Run a verb, which writes one output line for each input line.

    Args:
        verb: description of the verb.
        model: directory of the model.
        text: single item, instead of the lines of the input.
        items: flags of input, output, device and batches.
        output: flags of every verb.
        settings: settings of this verb, for the report.
    """
    if text is not None and items.input is not None:
        raise UserError("Give a text or --input, not both", where=f"heedful {verb.name}")

    def load() -> Any:
        pipeline = verb.load(model, device=items.device, precision=items.precision)
        pipeline.require(verb.head)
        return pipeline

    def results(pipeline: Any) -> Iterator[list[str]]:
        done = 0
        positions = positions_of(items.batch_tokens, pipeline)
        for lines in [[text]] if text is not None else chunks(items.input, CHUNK):
            options: EncodingOptions = {
                "batch_size": items.batch_size,
                "batch_tokens": positions,
                "first_line": done + 1,
            }
            predicted = verb.predict(pipeline, lines, options)
            yield [json_line(verb.fields(p)) if output.json else verb.plain(p) for p in predicted]
            done += len(lines)

    write_results(verb.name, {"model": str(model), **settings}, items, output, load, results)


def write_results(
    verb: str,
    settings: Mapping[str, Any],
    items: Items,
    output: Output,
    load: Callable[[], Pipeline],
    results: Callable[[Pipeline], Iterator[list[str]]],
) -> None:
    """Write output lines as they are computed, and then the report.

    Args:
        verb: name of the verb.
        settings: settings of this verb, for the report.
        items: flags of output, device and precision.
        output: flags of every verb.
        load: function that loads the pipeline.
        results: function from the pipeline to an iterator of lists of output lines.
    """
    running = {"device": items.device, "precision": items.precision}
    report = Report(verb, output, {**settings, **running})
    if items.output_file is not None and not is_standard(items.output_file):
        refuse_missing_folder(items.output_file)
    pipeline = load()
    loaded = report.seconds
    done = 0
    with closing(terminal()) as events, output_to(items.output_file) as file:
        for lines in results(pipeline):
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            done += len(lines)
            events.progress(done, None, "done")
    working = max(report.seconds - loaded, 1e-9)
    facts = {"items": done, "load_seconds": round(loaded, 3)}
    report.finish({**facts, "items_per_second": round(done / working, 1)}, summary=False)


def json_line(fields: Mapping[str, Any]) -> str:
    """Return a JSON object on one line."""
    return json.dumps(fields, ensure_ascii=False)


def four_digits(probability: float) -> str:
    """Return a probability with four digits."""
    return f"{probability:.4f}"


def fill(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    top: Annotated[int, Parameter(help="Number of candidates for each mask.")] = 5,
    items: Items = DEFAULT_ITEMS,
    output: Output = PLAIN,
) -> None:
    """Fill [MASK] in a text.

    [MASK] stands for the model's own mask token. Each input line gets one output line: candidates
    separated by tabs, each followed by a space and its probability; a | separates the candidates of
    several masks. Tabs and line breaks within a token are written as \\t and \\n, and backslashes
    as \\\\; the space before a word is left out. With --json, `candidates` is a list of objects:
    `mask` (number of the mask in its text, from 1), `token` (as in the vocabulary, where ▁ is a
    space) and `probability`. An empty line gets no candidates; any other line needs a mask.

    An encoder such as BERT predicts exactly one token for each mask. An encoder-decoder such as T5,
    BART or a model trained with --task span_corruption or denoising predicts text of any length.

    For example:

        heedful fill bert "The [MASK] sat on the mat." --top 3
        heedful fill bert -i texts.txt -o filled.jsonl --json
        heedful fill t5 "The [MASK] walks in [MASK] park."
    """
    verb = EncoderVerb(
        "fill",
        "masked_lm",
        lambda pipeline, lines, options: pipeline.fill(lines, top=top, **options),
        _mask_line,
        _mask_fields,
        heedful.load_filler,
    )
    run(verb, model, text, items, output, {"top": top})


def _mask_line(masks: list[list[Candidate]]) -> str:
    parts = [[f"{_word(c.token)} {four_digits(c.probability)}" for c in mask] for mask in masks]
    return "\t|\t".join("\t".join(part) for part in parts)


def _word(piece: str) -> str:
    """Return a token for display, without the space mark unless it is nothing else."""
    from heedful.text.pretokenization import MARK

    return one_line(piece.removeprefix(MARK) or piece)


def _mask_fields(masks: list[list[Candidate]]) -> dict[str, Any]:
    return {
        "candidates": [
            {"mask": number, "token": candidate.token, "probability": candidate.probability}
            for number, mask in enumerate(masks, start=1)
            for candidate in mask
        ]
    }


def tag(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    items: Items = DEFAULT_ITEMS,
    output: Output = PLAIN,
) -> None:
    """Label the words of texts.

    White space separates words, and a word gets the label of its first token. Each input line gets
    one output line of word/label pairs separated by spaces. With --json, `labels` is a list of
    objects with `token` (the word), `label` and `probability`. An empty line gets no labels. Words
    without a token, such as control characters, have an empty label (null in JSON). Long lines are
    read in overlapping windows.

    For example:

        heedful tag tagger "The cat sat on the mat ."
        heedful tag tagger -i texts.txt -o tagged.txt
    """
    verb = EncoderVerb(
        "tag",
        "token",
        lambda pipeline, lines, options: pipeline.tag(lines, **options),
        _tag_line,
        _tag_fields,
    )
    run(verb, model, text, items, output, {})


def _tag_line(words: list[TokenLabel]) -> str:
    return " ".join(f"{word.token}/{one_line(word.label or '')}" for word in words)


def _tag_fields(words: list[TokenLabel]) -> dict[str, Any]:
    return {
        "labels": [
            {"token": word.token, "label": word.label, "probability": word.probability}
            for word in words
        ]
    }


def answer(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    question: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="Question about every line; each line is then a context.",
        ),
    ] = None,
    max_answer: Annotated[int, Parameter(help="Maximum number of tokens of an answer.")] = 30,
    unanswerable: Annotated[
        bool | None,
        Parameter(
            show_default=False,
            help="Allow empty answers to questions that the context does not answer. [default: as "
            "the model was trained]",
        ),
    ] = None,
    items: Items = DEFAULT_ITEMS,
    output: Output = PLAIN,
) -> None:
    """Answer questions with passages from given texts.

    An input line is a context if --question is given, and otherwise a question, a tab and its
    context. Its output line is the passage of the context that answers the question, a tab, and its
    probability; tabs within the passage are written as \\t, and backslashes as \\\\. With --json,
    the fields are `text`, `probability`, and `start` and `end` in characters of the context. An
    empty line or context gets an empty answer with probability 0. A model trained on unanswerable
    questions gives an empty answer where that is the most probable. Long contexts are read in
    overlapping windows.

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
        _answer_line,
        _answer_fields,
    )
    settings = {"question": question, "max_answer": max_answer, "unanswerable": unanswerable}
    run(verb, model, text, items, output, settings)


def _answer_line(answer: Answer) -> str:
    return f"{one_line(answer.text)}\t{four_digits(answer.probability)}"


def _answer_fields(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "probability": answer.probability,
        "start": answer.start,
        "end": answer.end,
    }
