"""`heedful inspect`: what a model attends to while it reads and writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.device_flags import DeviceFlag
from heedful.cli.failures import refuse_missing_folder
from heedful.cli.files import writing
from heedful.cli.output import PLAIN, Output, Report, print_json
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.inspect import AttentionMap, Reading, Subject

View = Literal["matrix", "heads", "lines"]

_CHARTS = (".html", ".png", ".svg")


def inspect(
    model: Annotated[Path, Parameter(help="A directory of a model, of a run, or of Hugging Face.")],
    text: Annotated[str, Parameter(help="What it reads.")],
    /,
    *,
    target: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="A translation, a continuation, or the second text of a pair; a translator's own "
            "translation if unset.",
        ),
    ] = None,
    more: Annotated[
        int | None,
        Parameter(name="--continue", help="Language models: read on for this many tokens at most."),
    ] = None,
    part: Annotated[
        Literal["encoder", "decoder", "cross"] | None,
        Parameter(help="Whose attention; a translator's to the source if unset."),
    ] = None,
    layer: Annotated[
        tuple[int, ...],
        Parameter(negative=(), show_default=False, help="A layer, from 0; may be repeated."),
    ] = (),
    head: Annotated[
        tuple[int, ...],
        Parameter(negative=(), show_default=False, help="A head, from 0; may be repeated."),
    ] = (),
    shapes: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Instead, every tensor on the way: its address and shape.",
        ),
    ] = False,
    output_file: Annotated[
        Path | None,
        Parameter(
            name=("--output", "-o"),
            allow_leading_hyphen=True,
            help="Write a chart to this .html, .png or .svg file, or what --json prints to a "
            ".json file.",
        ),
    ] = None,
    view: Annotated[
        View | None,
        Parameter(
            help="What a chart shows: the mean as a matrix, a matrix for each of the heads, or "
            "lines between the tokens; heads if several are asked for, else matrix, if unset.",
        ),
    ] = None,
    device: DeviceFlag = "auto",
    output: Output = PLAIN,
) -> None:
    """Show what a model attends to.

    The picture is the mean of the layers and heads asked for, of all if none are; --json gives the
    weights of each. A chart in a file shows each of several layers or heads that are asked for; a
    .html file can be pointed at. Looking changes nothing about what the model writes.

    For example:

        heedful inspect run "A man rides a bicycle."
        heedful inspect run "A dog runs." --target "Ein Hund rennt." --layer 2 --head 1
        heedful inspect bert "The cat sat." --part encoder --json
        heedful inspect run "A dog runs." -o attention.html --view lines
        heedful inspect run "A dog runs." -o heads.png --layer 2 --layer 3
        heedful inspect run "A dog." --shapes
    """
    asked: dict[str, Any] = {"model": str(model), "text": text, "target": target, "part": part}
    asked |= {"continue": more, "layers": list(layer), "heads": list(head), "device": device}
    asked |= {"view": view}
    report = Report("inspect", output, asked)
    _check_file(output_file, view, shapes)
    import heedful.inspect

    subject = heedful.inspect.load(model, device=device)
    reading = _read(subject, text, target, more)
    attention = None if shapes else _attention(subject, reading, part, layer, head)
    found: dict[str, Any] = {"text": reading.text, "target": reading.target}
    found |= _shapes(subject, reading) if attention is None else attention.plain()
    if output_file is not None:
        if attention is not None and output_file.suffix in _CHARTS:
            _write_chart(output_file, attention, view, several=max(len(layer), len(head)) > 1)
        else:
            with writing(output_file) as stream:
                stream.write(json.dumps(found, ensure_ascii=False) + "\n")
    if output.json:
        print_json(found)
    elif output_file is None:
        print(_listed(found["shapes"]) if attention is None else _drawn(attention))
    report.finish({"tokens": reading.length}, summary=False)


def _read(subject: Subject, text: str, target: str | None, more: int | None) -> Reading:
    from heedful.decode.generation import GenerationSettings
    from heedful.inspect import read

    if more is None:
        return read(subject, text, target)
    if target is not None:
        raise UserError("Give --target or --continue, not both", where="heedful inspect")
    if subject.model.spec.kind != "causal_lm":
        raise UserError("Only a language model continues a text", where=f"--continue {more}")
    return read(subject, text, search=GenerationSettings.parse({"max_length": more}))


def _attention(
    subject: Subject,
    reading: Reading,
    part: Literal["encoder", "decoder", "cross"] | None,
    layers: tuple[int, ...],
    heads: tuple[int, ...],
) -> AttentionMap:
    from heedful.inspect import attention

    return attention(subject, reading, part, layers=layers or None, heads=heads or None)


def _shapes(subject: Subject, reading: Reading) -> dict[str, Any]:
    from heedful.inspect import shapes, tensors

    found = shapes(subject.model, tensors(subject, [reading]))
    return {"shapes": {address: list(shape) for address, shape in found.items()}}


def _drawn(attention: AttentionMap) -> str:
    from heedful.inspect.picture import draw_attention

    return draw_attention(attention, width=shutil.get_terminal_size().columns)


def _listed(shapes: dict[str, list[int]]) -> str:
    margin = max(map(len, shapes))
    lines = [f"{address:<{margin}}  {' × '.join(map(str, s))}" for address, s in shapes.items()]
    return "\n".join(lines)


def _write_chart(path: Path, attention: AttentionMap, view: View | None, several: bool) -> None:
    from heedful.inspect import charts

    kind = view or ("heads" if several else "matrix")
    if kind == "lines":
        charts.save(charts.lines(attention, each=several), path)
    else:
        charts.save((charts.grid if kind == "heads" else charts.matrix)(attention), path)


def _check_file(path: Path | None, view: View | None, shapes: bool) -> None:
    """Refuse what cannot be written before a model is loaded."""
    chart = path is not None and path.suffix in _CHARTS
    if view is not None and (not chart or shapes):
        raise UserError(
            "Only a chart of attention has views",
            where=f"--view {view}",
            remedy="Name a .html, .png or .svg file with -o, without --shapes",
        )
    if path is None:
        return
    if path.suffix != ".json" and (shapes or not chart):
        raise UserError(
            "Shapes are no chart" if chart else _not_written(path),
            where=str(path),
            remedy="Name a .json file" + ("" if shapes else ", or .html, .png or .svg for a chart"),
        )
    refuse_missing_folder(path)
    if chart:
        import heedful.inspect.charts  # noqa: F401  says what has to be installed


def _not_written(path: Path) -> str:
    return f"Files of kind {path.suffix or 'none'!r} are not written"
