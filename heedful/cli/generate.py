"""`heedful generate`: continue prompts with a language model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter

from heedful.cli.evaluation.text_measures import StretchedRotary
from heedful.cli.flags import DeviceFlag, ModelPath, PrecisionFlag, sampling_settings
from heedful.cli.parser import flags_of
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
    say,
    terminal,
)
from heedful.errors import UserError
from heedful.search.search_settings import GenerationSettings

if TYPE_CHECKING:
    from heedful.pipelines.text_generation import Generation, GenerationPipeline

    GenerationFlags = Any
else:
    GenerationFlags = flags_of(GenerationSettings, "Continuation")

CHUNK = 1024
"""Maximum number of prompts in memory."""


def generate(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    input: InputFile = None,
    output_file: OutputFile = None,
    stream: bool = False,
    settings: GenerationFlags | None = None,
    device: DeviceFlag = "auto",
    precision: PrecisionFlag = "auto",
    batch_size: int | None = None,
    rotary: StretchedRotary = StretchedRotary(),
    output: Output = Output(),
) -> None:
    """Continue text with a language model.

    Every prompt gives exactly one output line: its continuation without the prompt. Line breaks in
    it are written as \\n, and backslashes as \\\\; --json keeps them. With --n-best, all candidates
    of a prompt are written to its line, separated by tabs.

    For example:

        heedful generate english "Once upon a time" --stream --temperature 0.8 --seed 1
        heedful generate run -i prompts.txt -o continued.txt --max-length 50

    Args:
        prompt: Text to continue; the same as a text after the model.
        input: File of prompts, one a line, plain or gzip; standard input if unset.
        output_file: File for the continuations, which appears when all are done; standard output if
            unset.
        stream: Print the continuation of --prompt token by token, with its line breaks.
        batch_size: Number of prompts in a batch.
    """
    if text is not None and prompt is not None:
        raise UserError("Give a text or --prompt, not both", where="heedful generate")
    prompt = text if prompt is None else prompt
    search = sampling_settings(settings, GenerationSettings)
    flags = {"model": model, "device": device, "precision": precision}
    report = Report("generate", output, search.plain(), flags, rotary)
    refuse_missing_folder(output_file)
    _check(prompt, input, output, stream=stream)
    from heedful.interop.model_loading import load_any
    from heedful.models.rotary_override import stretching_reader
    from heedful.pipelines.any_pipeline import load_generator
    from heedful.text.unknown_characters import describe_unknown

    read = stretching_reader(load_any, *vars(rotary).values())
    pipeline = load_generator(model, device=device, precision=precision, read=read)
    loaded = report.seconds
    if stream:
        assert prompt is not None
        if message := describe_unknown(pipeline.tokenizer, [prompt]):
            say(f"warning: {message}")
        _stream(pipeline, prompt, search)
        report.finish({"prompts": 1, "load_seconds": round(loaded, 3)}, summary=False)
        return
    counts = {"prompts": 0, "tokens": 0}
    with terminal() as events, output_to(output_file) as file:
        for lines in chunks(input, CHUNK, prompt):
            prompts = _with_sounds(pipeline, lines, counts["prompts"])
            if message := describe_unknown(pipeline.tokenizer, prompts):
                events.warn(message)
            results = pipeline.generate(
                prompts, settings=search, batch_size=batch_size, first_name=counts["prompts"]
            )
            _write(results, file, json_items=output.json, n_best=search.n_best > 1)
            counts["prompts"] += len(results)
            counts["tokens"] += sum(len(generation.tokens) for generation in results)
            events.progress(counts["prompts"], None, "continued")
    working = max(report.seconds - loaded, 1e-9)
    facts: dict[str, Any] = {**counts, "load_seconds": round(loaded, 3)}
    facts["tokens_per_second"] = round(counts["tokens"] / working, 1)
    report.finish(facts, summary=False)


def _check(prompt: str | None, input: Path | None, output: Output, *, stream: bool) -> None:
    if not (prompt or "").lower().endswith(".wav"):  # a model of sounds reads the file
        refuse_text(prompt, input, "generate")
    if stream and (prompt is None or output.json):
        raise UserError(
            "--stream needs one --prompt, and prints no JSON",
            where="heedful generate",
            remedy="Give --prompt, and leave out --json",
        )


def _with_sounds(pipeline: GenerationPipeline, prompts: list[str], first: int) -> list[str]:
    """Return prompts with the levels of the WAV files that they name, for a model of sounds."""
    reading = getattr(pipeline.tokenizer, "reading", {})
    if reading.get("reader") != "sounds":
        return prompts
    from heedful.data.sound_records import with_moments

    # Only here are files named by a prompt: a server must not read those of its machine.
    return [
        json.dumps(with_moments(each, Path(), reading["levels"], f"prompt {number}"))
        for number, each in enumerate(prompts, start=first + 1)
    ]


def _stream(pipeline: GenerationPipeline, prompt: str, settings: GenerationSettings) -> None:
    for piece in pipeline.stream(prompt, settings=settings):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _write(results: list[Generation], file: TextIO, *, json_items: bool, n_best: bool) -> None:
    for generation in results:
        if json_items:
            item = _fields(generation)
            if n_best:
                item["n_best"] = [_fields(one) for one in generation.n_best]
            line = json.dumps(item, ensure_ascii=False)
        else:
            candidates = generation.n_best if n_best else (generation,)
            line = "\t".join(one_line(one.text) for one in candidates)
        file.write(line + "\n")
    file.flush()


def _fields(generation: Generation) -> dict[str, Any]:
    return {"text": generation.text, "score": generation.score, "ended": generation.ended}
