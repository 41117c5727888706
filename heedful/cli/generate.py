"""`heedful generate`: continue prompts, transcribe sounds, or draw pictures for captions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter

from heedful.cli.evaluation.text_measures import StretchedRotary
from heedful.cli.flags import DeviceFlag, ModelPath, PrecisionFlag, sampling_settings
from heedful.cli.generation.chats import ChatFlags, SpeechFlags, prompts_of
from heedful.cli.generation.drafts import SpeculationFlags, acceptance, with_schema, writer
from heedful.cli.generation.drawn_pictures import DrawingFlags, draw_pictures
from heedful.cli.parser import flags_of, overrides
from heedful.cli.text_io import (
    InputFile,
    OneText,
    Output,
    OutputFile,
    Report,
    chunks,
    is_standard,
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
    drawing: DrawingFlags = DrawingFlags(),
    speculation: SpeculationFlags = SpeculationFlags(),
    conversation: ChatFlags = ChatFlags(),
    speech: SpeechFlags = SpeechFlags(),
    device: DeviceFlag = "auto",
    precision: PrecisionFlag = "auto",
    batch_size: int | None = None,
    rotary: StretchedRotary = StretchedRotary(),
    output: Output = Output(),
) -> None:
    """Continue text with a language model, transcribe sounds, or draw pictures for captions.

    Every prompt gives exactly one output line: its continuation without the prompt. Line breaks in
    it are written as \\n, and backslashes as \\\\; --json keeps them. With --n-best, all candidates
    of a prompt are written to its line, separated by tabs.

    A model of the task diffusion takes each line as a caption. It writes a PNG file into --out and
    prints its name, or else a line of JSON with image and caption, as training reads them. A model
    of time series reads a file of them by -i, and writes for each a line of JSON with quantiles of
    its next values, in its own unit. A model of sounds takes each line as the name of a WAV file,
    and writes what is said in it.

    For example:

        heedful generate english "Once upon a time" --stream --temperature 0.8 --seed 1
        heedful generate english "Paris: " --json-schema city.json --max-length 200
        heedful generate run -i prompts.txt -o continued.txt --max-length 50
        heedful generate large "Dear" --draft small --report report.json
        heedful generate helper "What is the capital of France?" --chat
        heedful generate digits "a seven" --guidance 3 --out drawn
        heedful generate sales -i sales.csv -o forecasts.jsonl
        heedful generate whisper speech.wav --language de

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
    input = conversation.source(input, prompt)
    search = with_schema(sampling_settings(settings, GenerationSettings))
    flags = {"model": model, "device": device, "precision": precision}
    report = Report("generate", output, search.plain(), flags, rotary)
    refuse_missing_folder(output_file)
    _check(prompt, input, output, stream=stream)
    speculation.check(stream=stream, batch_size=batch_size)
    from heedful.cli.generation.file_prompts import series_reading, write_forecasts
    from heedful.pipelines.any_pipeline import load_generator

    stretched = tuple(vars(rotary).values())
    pipeline = load_generator(model, device=device, precision=precision, rotary=stretched)
    if "draw" in pipeline.verbs:
        own = {name for name in overrides(settings) if name != "seed"}
        own |= {"stream"} if stream else set()
        own |= {"rotary-scaling"} if rotary.is_set else set()
        _refuse_flags(own, "texts", "This model draws pictures")
        draw_pictures(
            pipeline, (input, prompt, output_file), drawing, search.seed, batch_size, report
        )
        return
    given = set(drawing.settings) | ({"out"} if drawing.out else set())
    _refuse_flags(given, "pictures", "This model writes text")
    if pipeline.spec.reads == "sounds":
        own = {"stream"} if stream else set()
        own |= set() if speculation == SpeculationFlags() else {"draft"}
        _refuse_flags(own, "texts", "This model writes what is said in sounds")
    else:
        _refuse_flags(set(speech.settings), "sounds", "This model reads texts")
    reading = series_reading(pipeline)
    if reading is not None and input is not None and not is_standard(input):
        options = overrides(settings)
        write_forecasts(pipeline, reading, input, output_file, options, report)
        return
    loaded = report.seconds
    if stream:
        assert prompt is not None
        (begun,) = prompts_of(
            pipeline, [prompt], 0, conversation, lambda message: say(f"warning: {message}")
        )
        _stream(pipeline, begun, search)
        report.finish({"prompts": 1, "load_seconds": round(loaded, 3)}, summary=False)
        return
    write = writer(pipeline, search, speculation, batch_size, device, speech.settings)
    counts = {"prompts": 0, "tokens": 0}
    with terminal() as events, output_to(output_file) as file:
        for lines in chunks(input, CHUNK, prompt):
            prompts = prompts_of(pipeline, lines, counts["prompts"], conversation, events.warn)
            results = write(prompts, counts)
            _write(results, file, json_items=output.json, n_best=search.n_best > 1)
            counts["prompts"] += len(results)
            counts["tokens"] += sum(len(generation.tokens) for generation in results)
            events.progress(counts["prompts"], None, "continued")
    facts: dict[str, Any] = {**counts, "load_seconds": round(loaded, 3)}
    facts["tokens_per_second"] = round(counts["tokens"] / max(report.seconds - loaded, 1e-9), 1)
    facts |= acceptance(counts)
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


def _refuse_flags(names: set[str], what: str, model: str) -> None:
    if names:
        name = min(names).replace("_", "-")
        raise UserError(
            f"{model}, and --{name} is for {what}",
            where="heedful generate",
            remedy=f"Leave out --{name}",
        )


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
