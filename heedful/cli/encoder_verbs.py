"""`heedful answer`, `fill` and `tag`: one output line for each input line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from cyclopts import Parameter

from heedful.cli.flags import BatchTokens, DeviceFlag, ModelPath, PrecisionFlag, positions_of
from heedful.cli.parser import flag_group
from heedful.cli.text_io import (
    InputFile,
    OneText,
    Output,
    OutputFile,
    Report,
    chunks,
    one_line,
    output_to,
    refuse_missing_folder,
    refuse_text,
    terminal,
)
from heedful.errors import DataError

if TYPE_CHECKING:
    from heedful.pipelines.predictions import Answer, Candidate, TokenLabel
    from heedful.pipelines.text_encoding import EncoderPipeline, EncodingOptions


CHUNK = 1024
"""Maximum number of lines in memory."""


def load_encoder(model: Path, **options: Any) -> EncoderPipeline:
    """Load an encoder of text; the imports wait until a verb works."""
    from heedful.pipelines.any_pipeline import loaded_as

    pipeline: EncoderPipeline = loaded_as("encoder", model, **options)
    return pipeline


def load_filler(model: Path, **options: Any) -> Any:
    """Load an encoder, or an encoder-decoder that fills gaps."""
    from heedful.pipelines import fillers

    return fillers.load_filler(model, **options)


@flag_group("Running", 50)
class Items:
    """Input, output, device, precision and batches.

    Args:
        input: File with one item a line, plain or gzip; standard input if unset.
        output_file: File for the results, which appears when all are done; standard output if
            unset.
        batch_size: Number of items in a batch, instead of --batch-tokens.
        batch_tokens: Size of a batch in tokens: texts x longest text, padding included; auto fills
            the free memory.
    """

    input: InputFile = None
    output_file: OutputFile = None
    device: DeviceFlag = "auto"
    precision: PrecisionFlag = "auto"
    batch_size: int | None = None
    batch_tokens: BatchTokens = 4096


Result = TypeVar("Result")
Pipeline = TypeVar("Pipeline")


@dataclass(frozen=True)
class EncoderVerb(Generic[Result]):
    """The parts of the loop that differ between verbs.

    Args:
        name: name of the verb.
        head: kind of head that the model must have; None if none is needed.
        predict: function from pipeline, lines and options to a result for each line.
        plain: function that formats a result as a line.
        fields: function that formats a result as the fields of a JSON object.
        load: function that loads the pipeline.
    """

    name: str
    head: str | None
    predict: Callable[[Any, list[str], EncodingOptions], list[Result]]
    plain: Callable[[Result], str]
    fields: Callable[[Result], dict[str, Any]]
    load: Callable[..., Any] = load_encoder

    def json(self, result: Result) -> str:
        """Return a result as a JSON object on one line."""
        return json.dumps(self.fields(result), ensure_ascii=False)


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
    refuse_text(text, items.input, verb.name)

    def load() -> Any:
        pipeline = verb.load(model, device=items.device, precision=items.precision)
        if verb.head is not None:
            pipeline.require(verb.head)
        return pipeline

    def results(pipeline: Any) -> Iterator[list[str]]:
        done = 0
        positions = positions_of(items.batch_tokens, pipeline)
        for lines in chunks(items.input, CHUNK, text):
            options: EncodingOptions = {
                "batch_size": items.batch_size,
                "batch_tokens": positions,
                "first_line": done + 1,
            }
            predicted = verb.predict(pipeline, lines, options)
            line = verb.json if output.json else verb.plain
            yield [line(each) for each in predicted]
            done += len(lines)

    write_results(verb.name, {"model": model, **settings}, items, output, load, results)


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
    report = Report(verb, output, settings, running)
    refuse_missing_folder(items.output_file)
    pipeline = load()
    loaded = report.seconds
    done = 0
    with terminal() as events, output_to(items.output_file) as file:
        for lines in results(pipeline):
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            done += len(lines)
            events.progress(done, None, "done")
    working = max(report.seconds - loaded, 1e-9)
    facts = {"items": done, "load_seconds": round(loaded, 3)}
    report.finish({**facts, "items_per_second": round(done / working, 1)}, summary=False)


def fill(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    top: int = 5,
    items: Items = Items(),
    output: Output = Output(),
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

    Args:
        top: Number of candidates for each mask.
    """
    verb = EncoderVerb(
        "fill",
        "masked_lm",
        lambda pipeline, lines, options: pipeline.fill(lines, top=top, **options),
        _mask_line,
        _mask_fields,
        load_filler,
    )
    run(verb, model, text, items, output, {"top": top})


def _mask_line(masks: list[list[Candidate]]) -> str:
    parts = [[f"{_word(c.token)} {c.probability:.4f}" for c in mask] for mask in masks]
    return "\t|\t".join("\t".join(part) for part in parts)


def _word(piece: str) -> str:
    """Return a token without its mark of a preceding space; a token that is only a mark stays."""
    from heedful.text.pretokenization import MARK

    return one_line(piece.removeprefix(MARK) or piece)


def _mask_fields(masks: list[list[Candidate]]) -> dict[str, Any]:
    return {
        "candidates": [
            {"mask": number, **vars(candidate)}
            for number, mask in enumerate(masks, start=1)
            for candidate in mask
        ]
    }


def tag(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    items: Items = Items(),
    output: Output = Output(),
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

    def plain(words: list[TokenLabel]) -> str:
        return " ".join(f"{word.token}/{one_line(word.label or '')}" for word in words)

    verb = EncoderVerb(
        "tag",
        "token",
        lambda pipeline, lines, options: pipeline.tag(lines, **options),
        plain,
        lambda words: {"labels": [vars(word) for word in words]},
    )
    run(verb, model, text, items, output, {})


def answer(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    question: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    max_answer: int = 30,
    unanswerable: Annotated[bool | None, Parameter(negative="--no-unanswerable")] = None,
    items: Items = Items(),
    output: Output = Output(),
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

    Args:
        question: Question about every line; each line is then a context.
        max_answer: Maximum number of tokens of an answer.
        unanswerable: Allow empty answers to questions that the context does not answer. [default:
            as the model was trained]
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
        lambda answer: f"{one_line(answer.text)}\t{answer.probability:.4f}",
        _answer_fields,
    )
    settings = {"question": question, "max_answer": max_answer, "unanswerable": unanswerable}
    run(verb, model, text, items, output, settings)


def _answer_fields(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "probability": answer.probability,
        "start": answer.start,
        "end": answer.end,
    }
