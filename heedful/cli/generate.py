"""`heedful generate`: continue prompts with a language model, or draw pictures for captions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter

from heedful.cli.evaluation.text_measures import StretchedRotary
from heedful.cli.flags import DeviceFlag, ModelPath, PrecisionFlag, sampling_settings
from heedful.cli.parser import flag_group, flags_of, overrides
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
    refuse_existing,
    refuse_missing_folder,
    refuse_text,
    say,
    terminal,
)
from heedful.durable import open_regular
from heedful.errors import UserError, first_line
from heedful.search.search_settings import GenerationSettings

if TYPE_CHECKING:
    from heedful.pipelines.image_drawing import DrawingPipeline
    from heedful.pipelines.text_generation import Generation, GenerationPipeline

    GenerationFlags = Any
else:
    GenerationFlags = flags_of(GenerationSettings, "Continuation")

CHUNK = 1024
"""Maximum number of prompts in memory."""


@flag_group("Pictures", 15)
class DrawingFlags:
    """Pictures for captions, by a model of the task diffusion; --seed sets their noise.

    Args:
        steps: Number of steps from noise to a picture; 30 if unset.
        guidance: Strength of the caption (classifier-free guidance): 1 follows the model as it is,
            more makes pictures plainer and surer; 2 if unset.
        out: Folder for PNG files, whose names are printed; if unset, pictures are lines of JSON.
    """

    steps: int | None = None
    guidance: float | None = None
    out: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are set, as arguments of `DrawingPipeline.draw`."""
        both = {"steps": self.steps, "guidance": self.guidance}
        return {name: value for name, value in both.items() if value is not None}


@flag_group("Speculative decoding", 16)
class SpeculationFlags:
    """The tokens of greedy search in fewer passes: a draft of several is checked by one pass.

    Args:
        draft: Small model of the same vocabulary that writes drafts.
        lookup: Most tokens of an n-gram: what followed it earlier in the prompt or the text is the
            draft.
        draft_tokens: Most tokens of a draft.
    """

    draft: Path | None = None
    lookup: int | None = None
    draft_tokens: int = 5


@flag_group("Conversations", 17)
class ChatFlags:
    """Answers of a model that was trained on conversations, by its chat template.

    Args:
        chat: Take each text as what a user says, and write the answer.
        messages: File of conversations to answer, lines of JSON with messages.
    """

    chat: bool = False
    messages: Path | None = None


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
    device: DeviceFlag = "auto",
    precision: PrecisionFlag = "auto",
    batch_size: int | None = None,
    rotary: StretchedRotary = StretchedRotary(),
    output: Output = Output(),
) -> None:
    """Continue text with a language model, or draw pictures for captions.

    Every prompt gives exactly one output line: its continuation without the prompt. Line breaks in
    it are written as \\n, and backslashes as \\\\; --json keeps them. With --n-best, all candidates
    of a prompt are written to its line, separated by tabs.

    A model of the task diffusion takes each line as a caption. It writes a PNG file into --out and
    prints its name, or else a line of JSON with image and caption, as training reads them. A model
    of time series reads a file of them by -i, and writes for each a line of JSON with quantiles of
    its next values, in its own unit.

    For example:

        heedful generate english "Once upon a time" --stream --temperature 0.8 --seed 1
        heedful generate english "Paris: " --json-schema city.json --max-length 200
        heedful generate run -i prompts.txt -o continued.txt --max-length 50
        heedful generate large "Dear" --draft small --report report.json
        heedful generate helper "What is the capital of France?" --chat
        heedful generate digits "a seven" --guidance 3 --out drawn
        heedful generate sales -i sales.csv -o forecasts.jsonl

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
    if conversation.messages is not None:
        if input is not None or prompt is not None:
            raise UserError(
                "Conversations are the whole input",
                where="heedful generate",
                remedy="Leave out the text and -i, or --messages",
            )
        input = conversation.messages
    search = _with_schema(sampling_settings(settings, GenerationSettings))
    flags = {"model": model, "device": device, "precision": precision}
    report = Report("generate", output, search.plain(), flags, rotary)
    refuse_missing_folder(output_file)
    _check(prompt, input, output, stream=stream)
    from heedful.cli.records.forecasts import series_reading, write_forecasts
    from heedful.pipelines.any_pipeline import load_generator
    from heedful.text.unknown_characters import describe_unknown

    stretched = tuple(vars(rotary).values())
    pipeline = load_generator(model, device=device, precision=precision, rotary=stretched)
    if "draw" in pipeline.verbs:
        own = {name for name in overrides(settings) if name != "seed"}
        own |= {"stream"} if stream else set()
        own |= {"rotary-scaling"} if rotary.is_set else set()
        _refuse_flags(own, "texts", "This model draws pictures")
        _draw(pipeline, (input, prompt, output_file), drawing, search.seed, batch_size, report)
        return
    if speculation != SpeculationFlags() and (stream or batch_size):
        raise UserError(
            "Drafts are written for one prompt after the other, and shown when all is done",
            where="heedful generate",
            remedy="Leave out --stream and --batch-size",
        )
    given = set(drawing.settings) | ({"out"} if drawing.out else set())
    _refuse_flags(given, "pictures", "This model writes text")
    reading = series_reading(pipeline)
    if reading is not None and input is not None and not is_standard(input):
        options = overrides(settings)
        write_forecasts(pipeline, reading, input, output_file, options, report)
        return
    loaded = report.seconds
    if stream:
        assert prompt is not None
        if message := describe_unknown(pipeline.tokenizer, [prompt]):
            say(f"warning: {message}")
        _stream(pipeline, _prompts(pipeline, [prompt], 0, conversation)[0], search)
        report.finish({"prompts": 1, "load_seconds": round(loaded, 3)}, summary=False)
        return
    write = _writer(pipeline, search, speculation, batch_size, device)
    counts = {"prompts": 0, "tokens": 0}
    with terminal() as events, output_to(output_file) as file:
        for lines in chunks(input, CHUNK, prompt):
            prompts = _prompts(pipeline, lines, counts["prompts"], conversation)
            if message := describe_unknown(pipeline.tokenizer, prompts):
                events.warn(message)
            results = write(prompts, counts)
            _write(results, file, json_items=output.json, n_best=search.n_best > 1)
            counts["prompts"] += len(results)
            counts["tokens"] += sum(len(generation.tokens) for generation in results)
            events.progress(counts["prompts"], None, "continued")
    working = max(report.seconds - loaded, 1e-9)
    facts: dict[str, Any] = {**counts, "load_seconds": round(loaded, 3)}
    facts["tokens_per_second"] = round(counts["tokens"] / working, 1)
    if "drafted" in counts:
        facts["acceptance"] = round(counts["accepted"] / max(counts["drafted"], 1), 3)
        say(f"accepted {counts['accepted']} of {counts['drafted']} drafted tokens")
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


def _writer(
    pipeline: GenerationPipeline,
    settings: GenerationSettings,
    speculation: SpeculationFlags,
    batch_size: int | None,
    device: str,
) -> Callable[[list[str], dict[str, int]], list[Generation]]:
    """Return a function that continues prompts, and adds the numbers of drafts to counts."""

    def plain(prompts: list[str], counts: dict[str, int]) -> list[Generation]:
        return pipeline.generate(
            prompts, settings=settings, batch_size=batch_size, first_name=counts["prompts"]
        )

    if speculation == SpeculationFlags():
        return plain
    from heedful.pipelines.any_pipeline import loaded_as
    from heedful.pipelines.speculative_generation import speculate

    small = speculation.draft
    draft = None if small is None else loaded_as("causal_lm", small, device=device)

    def drafted(prompts: list[str], counts: dict[str, int]) -> list[Generation]:
        results, numbers = speculate(
            pipeline,
            prompts,
            settings=settings,
            draft=draft,
            lookup=speculation.lookup,
            draft_tokens=speculation.draft_tokens,
        )
        for name in ("drafted", "accepted", "passes"):
            counts[name] = counts.get(name, 0) + getattr(numbers, name)
        return results

    return drafted


def _with_schema(settings: GenerationSettings) -> GenerationSettings:
    """Return settings with the text of the schema whose file they name."""
    path = settings.json_schema
    if not path and not settings.regex:
        return settings
    from heedful.search.structured_output import (  # needs PyTorch
        MOST_CHARACTERS,
        regex_grammar,
        schema_grammar,
    )

    if not path:
        regex_grammar(settings.regex, "--regex")
        return settings
    try:
        with open_regular(Path(path)) as file:
            schema = file.read(4 * MOST_CHARACTERS).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The schema cannot be read: {first_line(error)}",
            where=path,
            remedy="Give a file with a JSON Schema in UTF-8",
        ) from None
    # Checked here, where the file has a name, and before a model is loaded.
    schema_grammar(schema, path)
    return settings.model_copy(update={"json_schema": schema})


def _refuse_flags(names: set[str], what: str, model: str) -> None:
    if names:
        name = min(names).replace("_", "-")
        raise UserError(
            f"{model}, and --{name} is for {what}",
            where="heedful generate",
            remedy=f"Leave out --{name}",
        )


def _draw(
    pipeline: DrawingPipeline,
    source: tuple[Path | None, str | None, Path | None],
    drawing: DrawingFlags,
    seed: int,
    batch_size: int | None,
    report: Report,
) -> None:
    """Draw a picture for each caption, and write one output line for each.

    Args:
        pipeline: drawer of pictures.
        source: file of captions, single caption, and file for the output lines.
        drawing: flags of pictures.
        seed: seed of the noise.
        batch_size: pictures in a batch; the pipeline's own number if unset.
        report: report of this command.
    """
    file_of_captions, caption, output_file = source
    if drawing.out is not None:
        refuse_existing(drawing.out)
    loaded, count, is_json = report.seconds, 0, report.output.json
    named = file_of_captions or "standard input"
    options = {"seed": seed, "batch_size": batch_size, **drawing.settings}
    with terminal() as events, output_to(output_file) as file:
        for captions in chunks(file_of_captions, CHUNK, caption):
            first = count

            def place(number: int, first: int = first) -> str:
                return "caption" if caption is not None else f"{named}:{first + number + 1}"

            for picture, text in zip(
                pipeline.draw(captions, first=first, place=place, **options), captions, strict=True
            ):
                count += 1
                item: dict[str, Any] = {"image": picture.tolist(), "caption": text}
                if drawing.out is not None:
                    # Made now, as a wrong caption would leave an empty folder.
                    drawing.out.mkdir(exist_ok=True)
                    path = drawing.out / f"{count:04d}.png"
                    pipeline.save(picture, path)
                    item["image"] = str(path)
                # A list of pixels is one line of JSON anyway.
                as_name = drawing.out is not None and not is_json
                line = item["image"] if as_name else json.dumps(item, ensure_ascii=False)
                file.write(line + "\n")
            events.progress(count, None, "drawn")
    report.finish({"pictures": count, "load_seconds": round(loaded, 3)}, summary=False)


def _with_sounds(pipeline: GenerationPipeline, prompts: list[str], first: int) -> list[str]:
    """Return prompts with the levels of the WAV files that they name, for a model of sounds."""
    reading = getattr(pipeline.tokenizer, "reading", {})
    if reading.get("reader") != "sounds":
        return prompts
    from heedful.data.sound_files import with_moments

    # Only here are files named by a prompt: a server must not read those of its machine.
    return [
        json.dumps(with_moments(each, Path(), reading["levels"], f"prompt {number}"))
        for number, each in enumerate(prompts, start=first + 1)
    ]


def _prompts(
    pipeline: GenerationPipeline, lines: list[str], first: int, conversation: ChatFlags
) -> list[str]:
    """Return what a model continues for lines of its input, of which some came before."""
    if conversation == ChatFlags():
        return _with_sounds(pipeline, lines, first)
    from heedful.data.text_file import parse_json
    from heedful.text.chat_template import REMEDY, check_messages

    prompts: list[str] = []
    for number, line in enumerate(lines, start=first + 1):
        where = f"{conversation.messages or 'prompt'}:{number}"
        is_file = conversation.messages is not None
        item = parse_json(line, where, REMEDY) if is_file else {"prompt": line}
        prompts.append(pipeline.chat_prompt(check_messages(item, where)))
    return prompts


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
