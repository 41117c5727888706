"""What the verbs of encoders share: texts in, one line each out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from cyclopts import Group, Parameter

import heedful
from heedful.cli.device_flags import BatchTokens, DeviceFlag, PrecisionFlag, positions_of
from heedful.cli.failures import refuse_missing_folder
from heedful.cli.files import chunks, is_standard, output_to
from heedful.cli.output import Output, Report
from heedful.cli.running import terminal
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.decode.encoding import EncodingOptions

CHUNK = 1024
"""Lines that are in memory at a time."""

_GROUP = Group("Running", sort_key=50)

EncoderPath = Annotated[
    Path, Parameter(help="A directory of a model, of a run, or of Hugging Face.")
]
OneText = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True, help="One text; if there is none, lines of the input are read."
    ),
]


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class Items:
    """Where texts come from and results go, and how the model is run."""

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
            help="Where results go, once all are there; standard output if unset.",
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
            help="Positions in a batch: texts x longest, padding counted. auto: what fits into "
            "the memory that is free."
        ),
    ] = 4096


HERE = Items()

Result = TypeVar("Result")
Pipeline = TypeVar("Pipeline")


@dataclass(frozen=True)
class Verb(Generic[Result]):
    """What is special about a verb.

    Args:
        name: the verb.
        head: kind of the head it needs.
        work: the pipeline, lines and options to a result for each line.
        plain: a result as a line.
        fields: a result as the fields of a JSON object.
        load: reads what the pipeline is made of.
    """

    name: str
    head: str
    work: Callable[[Any, list[str], EncodingOptions], list[Result]]
    plain: Callable[[Result], str]
    fields: Callable[[Result], dict[str, Any]]
    load: Callable[..., Any] = heedful.load_encoder


def run(
    verb: Verb[Result],
    model: Path,
    text: str | None,
    items: Items,
    output: Output,
    settings: Mapping[str, Any],
) -> None:
    """Do what a verb does: one line of output for each of the input.

    Args:
        verb: what is done.
        model: where the model is.
        text: the only item, instead of lines of the input.
        items: where lines come from and go.
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
            found = verb.work(pipeline, lines, options)
            yield [json_line(verb.fields(one)) if output.json else verb.plain(one) for one in found]
            done += len(lines)

    deliver(verb.name, {"model": str(model), **settings}, items, output, load, results)


def deliver(
    verb: str,
    settings: Mapping[str, Any],
    items: Items,
    output: Output,
    load: Callable[[], Pipeline],
    results: Callable[[Pipeline], Iterator[list[str]]],
) -> None:
    """Write the lines that a verb makes of its items, as they come, and the report.

    Args:
        verb: the command.
        settings: its own, for the report.
        items: where lines go, and how the model is run.
        output: the common flags.
        load: the model.
        results: what comes out, some lines at a time.
    """
    asked = dict(settings)
    asked |= {name: getattr(items, name) for name in ("device", "precision")}
    report = Report(verb, output, asked)
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


def shown(probability: float) -> str:
    """A probability in plain output."""
    return f"{probability:.4f}"
