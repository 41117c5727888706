"""The loop that `answer`, `classify`, `fill` and `tag` share: an item a line in, a line out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from cyclopts import Group, Parameter

import heedful
from heedful.cli.flags import BatchTokens, DeviceFlag, PrecisionFlag, positions_of, terminal
from heedful.cli.line_files import chunks, is_standard, output_to, refuse_missing_folder
from heedful.cli.output import Output, Report
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.pipelines.text_encoding import EncodingOptions

CHUNK = 1024
"""Lines that are in memory at a time."""

_GROUP = Group("Running", sort_key=50)

OneText = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True, help="One text; without it, the lines of the input are read."
    ),
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
            help="One item a line, plain or gzip; standard input if unset.",
        ),
    ] = None
    output_file: Annotated[
        Path | None,
        Parameter(
            name=("--output", "-o"),
            allow_leading_hyphen=True,
            help="File for the results, written once all are there; standard output if unset.",
        ),
    ] = None
    device: DeviceFlag = "auto"
    precision: PrecisionFlag = "auto"
    batch_size: Annotated[
        int | None, Parameter(help="Texts in a batch, instead of --batch-tokens.")
    ] = None
    batch_tokens: Annotated[
        BatchTokens,
        Parameter(
            help="Positions in a batch: texts x longest, padding counted. auto: as many as fit "
            "into free memory."
        ),
    ] = 4096


DEFAULT_ITEMS = Items()

Result = TypeVar("Result")
Pipeline = TypeVar("Pipeline")


@dataclass(frozen=True)
class EncoderVerb(Generic[Result]):
    """The parts of the loop that differ between verbs.

    Args:
        name: the verb.
        head: kind of the head that the model must have.
        predict: maps the pipeline, lines and options to a result for each line.
        plain: formats a result as a line.
        fields: formats a result as the fields of a JSON object.
        load: loads the pipeline.
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
    """Run a verb: one line of output for each line of input.

    Args:
        verb: the verb.
        model: the model's directory.
        text: the only item, instead of lines of the input.
        items: the flags for input, output, device and batches.
        output: the common flags.
        settings: the verb's own, for the report.
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
    """Write a verb's output lines as they come, and the report.

    Args:
        verb: the verb.
        settings: its own, for the report.
        items: the flags for output, device and precision.
        output: the common flags.
        load: loads the pipeline.
        results: yields output lines, some at a time.
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
    """A JSON object on one line."""
    return json.dumps(fields, ensure_ascii=False)


def four_digits(probability: float) -> str:
    """A probability in plain output."""
    return f"{probability:.4f}"
