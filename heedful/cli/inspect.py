"""`heedful inspect`: show the attention of a model for one text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.flags import DeviceFlag, ModelPath
from heedful.cli.text_io import (
    Output,
    OutputFile,
    Report,
    print_json,
    refuse_missing_folder,
    say,
    writing,
)
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.inspect import AttentionMap, ModelInput, Subject

View = Literal["matrix", "heads", "lines"]

_CHARTS = (".html", ".png", ".svg")


def inspect(
    model: ModelPath,
    text: str,
    /,
    *,
    target: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    more: Annotated[int | None, Parameter(name="--continue")] = None,
    part: Literal["encoder", "decoder", "cross"] | None = None,
    layer: tuple[int, ...] = (),
    head: tuple[int, ...] = (),
    shapes: bool = False,
    output_file: OutputFile = None,
    view: View | None = None,
    device: DeviceFlag = "auto",
    output: Output = Output(),
) -> None:
    """Show the attention of a model for one text.

    The printed matrix is the mean over the selected layers and heads (all by default); --json
    writes the weights of each head. A chart shows every selected layer or head, and an .html chart
    is interactive. Inspection does not change the model's output.

    For example:

        heedful inspect run "A man rides a bicycle."
        heedful inspect run "A dog runs." --target "Ein Hund rennt." --layer 2 --head 1
        heedful inspect bert "The cat sat." --part encoder --json
        heedful inspect run "A dog runs." -o attention.html --view lines
        heedful inspect run "A dog runs." -o heads.png --layer 2 --layer 3
        heedful inspect run "A dog." --shapes

    Args:
        text: Input text of the model; the source of a translator.
        target: Second text: a translation, a continuation, or the other text of a pair; if unset, a
            translator's own translation.
        more: Maximum number of tokens that a language model appends to the text.
        part: Attention to show: of the encoder, of the decoder, or cross-attention; cross-attention
            of a translator if unset.
        layer: Layer to show, counted from 0; may be repeated; the mean of all if unset.
        head: Head to show, counted from 0; may be repeated; the mean of all if unset.
        shapes: List the name and shape of every tensor that can be captured, instead of attention.
        output_file: File for a chart (.html, .png or .svg), or for the output of --json (.json).
        view: Kind of chart: one matrix of the mean, a matrix for each head (heads), or lines
            between tokens; if unset, heads for several layers or heads, otherwise matrix.
    """
    flags: dict[str, Any] = {"model": model, "text": text, "target": target, "part": part}
    flags |= {"continue": more, "layers": layer, "heads": head, "device": device, "view": view}
    report = Report("inspect", output, flags)
    _check_file(output_file, view, shapes)
    import heedful.inspect

    # A text is looked at, so of a model of images and texts it is the encoder of texts.
    subject = heedful.inspect.load(model, device=device, tower="texts")
    reading = _read(subject, text, target, more)
    result: dict[str, Any] = {"text": reading.text, "target": reading.target}
    attention = None
    if shapes:
        captured = heedful.inspect.tensors(subject, [reading])
        by_address = heedful.inspect.shapes(subject.model, captured)
        result["shapes"] = {address: list(shape) for address, shape in by_address.items()}
    else:
        attention = heedful.inspect.attention(
            subject, reading, part, layers=layer or None, heads=head or None
        )
        result |= attention.plain()
    if output_file is not None:
        if attention is not None and output_file.suffix in _CHARTS:
            _write_chart(output_file, attention, view, several=max(len(layer), len(head)) > 1)
        else:
            with writing(output_file) as stream:
                stream.write(json.dumps(result, ensure_ascii=False) + "\n")
    if output.json:
        print_json(result)
    elif output_file is not None:
        say(f"Wrote {output_file}.")
    else:
        if attention is None:
            margin = max(map(len, result["shapes"]))
            for address, shape in result["shapes"].items():
                print(f"{address:<{margin}}  {' × '.join(map(str, shape))}")
        else:
            from heedful.inspect.attention_maps import draw_attention

            print(draw_attention(attention, width=shutil.get_terminal_size().columns))
    report.finish({"tokens": reading.length}, summary=False)


def _read(subject: Subject, text: str, target: str | None, more: int | None) -> ModelInput:
    from heedful.inspect import read
    from heedful.search.search_settings import GenerationSettings

    if more is None:
        return read(subject, text, target)
    if target is not None:
        raise UserError("Give --target or --continue, not both", where="heedful inspect")
    if subject.model.spec.kind != "causal_lm":
        raise UserError("Only a language model continues a text", where=f"--continue {more}")
    return read(subject, text, search=GenerationSettings.parse({"max_length": more}))


def _write_chart(path: Path, attention: AttentionMap, view: View | None, several: bool) -> None:
    from heedful.apps import charts

    kind = view or ("heads" if several else "matrix")
    if kind == "lines":
        charts.save(charts.lines(attention, each=several), path)
    else:
        charts.save((charts.grid if kind == "heads" else charts.matrix)(attention), path)


def _check_file(path: Path | None, view: View | None, shapes: bool) -> None:
    """Refuse a file that cannot be written, before a model is loaded."""
    chart = path is not None and path.suffix in _CHARTS
    if view is not None and (not chart or shapes):
        raise UserError(
            "Only a chart of attention has a view",
            where=f"--view {view}",
            remedy="Name a .html, .png or .svg file with -o, without --shapes",
        )
    if path is None:
        return
    if path.suffix != ".json" and (shapes or not chart):
        kind = path.suffix or "none"
        raise UserError(
            "Shapes are no chart" if chart else f"Files of kind {kind!r} are not written",
            where=str(path),
            remedy="Name a .json file" + ("" if shapes else ", or .html, .png or .svg for a chart"),
        )
    refuse_missing_folder(path)
    if chart:
        import heedful.apps.charts  # noqa: F401  raises an error if a library is missing
