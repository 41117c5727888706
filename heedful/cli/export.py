"""`heedful export`: a model of ours becomes one of another project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from heedful.cli.import_ import refuse_existing
from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.tables import say


def export(
    model: Annotated[Path, Parameter(help="A model directory or a run directory.")],
    out: Annotated[Path, Parameter(help="The directory to write; must not exist yet.")],
    /,
    *,
    format: Annotated[
        Literal["hf"], Parameter(help="hf: a directory that `transformers` loads.")
    ] = "hf",
    output: Output = PLAIN,
) -> None:
    """Write a model as a directory that another project loads.

    `hf` writes config.json, model.safetensors and the tokenizer's files. A model that was imported
    gives the tensors it was imported from, bit for bit. A model of which theirs has no counterpart
    is refused and nothing is written.

    For example:

        heedful export bert bert-for-transformers --format hf
    """
    report = Report("export", output, {"model": str(model), "out": str(out), "format": format})
    refuse_existing(out)
    from heedful.interop.directory import export_model

    config = export_model(model, out)
    files = {file.name: file.stat().st_size for file in sorted(out.iterdir())}
    facts = {"model_type": config["model_type"], "files": files, "bytes": sum(files.values())}
    say(
        f"{out} holds a {config['model_type']} model that `transformers` loads: "
        f"{', '.join(files)}, {sum(files.values()):,} bytes."
    )
    report.finish(facts)
