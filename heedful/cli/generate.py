"""`heedful generate`: prompts in, what a language model makes of them out."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter

import heedful
from heedful.cli.device_flags import DeviceFlag, PrecisionFlag
from heedful.cli.failures import refuse_missing_folder
from heedful.cli.files import chunks, is_standard, output_to
from heedful.cli.output import PLAIN, Output, Report, one_line
from heedful.cli.running import drawn_settings, terminal
from heedful.cli.settings_flags import flags_of
from heedful.decode.generation import GenerationSettings
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.decode.generate import Generation
    from heedful.decode.text_generation import GenerationPipeline

    GenerationFlags = Any
else:
    GenerationFlags = flags_of(GenerationSettings, "Continuation")

CHUNK = 1024
"""Prompts that are in memory at a time."""


def generate(
    model: Annotated[Path, Parameter(help="A directory of a model, of a run, or of Hugging Face.")],
    /,
    *,
    prompt: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="The beginning of one text.")
    ] = None,
    input: Annotated[
        Path | None,
        Parameter(
            name=("--input", "-i"),
            allow_leading_hyphen=True,
            help="Prompts, one a line, plain or gzip; standard input if there is no --prompt.",
        ),
    ] = None,
    output_file: Annotated[
        Path | None,
        Parameter(
            name=("--output", "-o"),
            allow_leading_hyphen=True,
            help="Where continuations go, once all are made; standard output if unset.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Show the text after --prompt as it is made, its line breaks as they are.",
        ),
    ] = False,
    settings: GenerationFlags | None = None,
    device: DeviceFlag = "auto",
    precision: PrecisionFlag = "auto",
    batch_size: Annotated[int | None, Parameter(help="Prompts continued together.")] = None,
    output: Output = PLAIN,
) -> None:
    """Continue text with a language model.

    Every prompt gives exactly one output line: what follows it, without the prompt. Line breaks
    within show as \\n, and backslashes as \\\\; with --json texts are as they are. With --n-best,
    the candidates of a prompt follow each other on its line, separated by tabs.

    For example:

        heedful generate run --prompt "Once upon a time" --stream --temperature 0.8 --seed 1
        heedful generate run -i prompts.txt -o continued.txt --max-length 50
    """
    chosen = drawn_settings(settings, GenerationSettings)
    asked = {"model": str(model), **chosen.plain(), "device": device, "precision": precision}
    report = Report("generate", output, asked)
    if output_file is not None and not is_standard(output_file):
        refuse_missing_folder(output_file)
    _check(prompt, input, output, stream=stream)
    pipeline = heedful.load_generator(model, device=device, precision=precision)
    loaded = report.seconds
    if stream:
        assert prompt is not None
        _stream(pipeline, prompt, chosen)
        report.finish({"prompts": 1, "load_seconds": round(loaded, 3)}, summary=False)
        return
    counts = {"prompts": 0, "tokens": 0}
    with closing(terminal()) as events, output_to(output_file) as file:
        for prompts in [[prompt]] if prompt is not None else chunks(input, CHUNK):
            found = pipeline.generate(
                prompts, settings=chosen, batch_size=batch_size, first_name=counts["prompts"]
            )
            _write(found, file, json_items=output.json, n_best=chosen.n_best > 1)
            counts["prompts"] += len(found)
            counts["tokens"] += sum(len(generation.tokens) for generation in found)
            events.progress(counts["prompts"], None, "continued")
    working = max(report.seconds - loaded, 1e-9)
    facts: dict[str, Any] = {**counts, "load_seconds": round(loaded, 3)}
    facts["tokens_per_second"] = round(counts["tokens"] / working, 1)
    report.finish(facts, summary=False)


def _check(prompt: str | None, input: Path | None, output: Output, *, stream: bool) -> None:
    if prompt is not None and input is not None:
        raise UserError("Give --prompt or --input, not both", where="heedful generate")
    if stream and (prompt is None or output.json):
        raise UserError(
            "Only the text after one --prompt can be streamed, and not as JSON",
            where="--stream",
            remedy="Give --prompt, and leave out --json",
        )


def _stream(pipeline: GenerationPipeline, prompt: str, settings: GenerationSettings) -> None:
    for piece in pipeline.stream(prompt, settings=settings):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _write(found: list[Generation], file: TextIO, *, json_items: bool, n_best: bool) -> None:
    for generation in found:
        if json_items:
            item = _fields(generation)
            if n_best:
                item["n_best"] = [_fields(one) for one in generation.n_best]
            line = json.dumps(item, ensure_ascii=False)
        else:
            shown = generation.n_best if n_best else (generation,)
            line = "\t".join(one_line(one.text) for one in shown)
        file.write(line + "\n")
    file.flush()


def _fields(generation: Generation) -> dict[str, Any]:
    return {"text": generation.text, "score": generation.score, "ended": generation.ended}
