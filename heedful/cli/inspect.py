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
    from heedful.inspect import Reading, Subject

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
            help="Write what --json prints to this .json file.",
        ),
    ] = None,
    device: DeviceFlag = "auto",
    output: Output = PLAIN,
) -> None:
    """Show what a model attends to.

    The picture is the mean of the layers and heads asked for, of all if none are; --json gives the
    weights of each. Looking changes nothing about what the model writes.

    For example:

        heedful inspect run "A man rides a bicycle."
        heedful inspect run "A dog runs." --target "Ein Hund rennt." --layer 2 --head 1
        heedful inspect bert "The cat sat." --part encoder --json
        heedful inspect run "A dog." --shapes
    """
    asked: dict[str, Any] = {"model": str(model), "text": text, "target": target, "part": part}
    asked |= {"continue": more, "layers": list(layer), "heads": list(head), "device": device}
    report = Report("inspect", output, asked)
    if output_file is not None:
        _check_file(output_file)
    import heedful.inspect

    subject = heedful.inspect.load(model, device=device)
    reading = _read(subject, text, target, more)
    picture, found = (
        _shapes(subject, reading) if shapes else _attention(subject, reading, part, layer, head)
    )
    found = {"text": reading.text, "target": reading.target, **found}
    if output_file is not None:
        with writing(output_file) as stream:
            stream.write(json.dumps(found, ensure_ascii=False) + "\n")
    if output.json:
        print_json(found)
    elif output_file is None:
        print(picture)
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
) -> tuple[str, dict[str, Any]]:
    from heedful.inspect import attention
    from heedful.inspect.picture import draw_attention

    found = attention(subject, reading, part, layers=layers or None, heads=heads or None)
    width = shutil.get_terminal_size().columns
    return draw_attention(found, width=width), found.plain()


def _shapes(subject: Subject, reading: Reading) -> tuple[str, dict[str, Any]]:
    from heedful.inspect import shapes, tensors

    found = shapes(subject.model, tensors(subject, [reading]))
    margin = max(map(len, found))
    lines = [f"{address:<{margin}}  {' × '.join(map(str, s))}" for address, s in found.items()]
    return "\n".join(lines), {"shapes": {address: list(s) for address, s in found.items()}}


def _check_file(path: Path) -> None:
    """Refuse what cannot be written before a model is loaded."""
    if path.suffix in _CHARTS:
        raise UserError(
            "Charts cannot be written yet",
            where=str(path),
            remedy="Write the weights to a .json file, or leave -o out for a picture here",
        )
    if path.suffix != ".json":
        raise UserError(
            f"Files of kind {path.suffix or 'none'!r} are not written",
            where=str(path),
            remedy="Name a .json file",
        )
    refuse_missing_folder(path)
