"""`heedful merge`: merge a low-rank adapter into its base model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.line_files import refuse_existing
from heedful.cli.output import PLAIN, Output, Report, say


def merge(
    base: Annotated[
        Path,
        Parameter(help="Model that the run began with: a model, run or Hugging Face directory."),
    ],
    adapter: Annotated[
        Path, Parameter(help="The run, its folder `adapter`, or a copy of that folder.")
    ],
    out: Annotated[Path, Parameter(help="Directory to write; must not exist.")],
    /,
    *,
    output: Output = PLAIN,
) -> None:
    """Merge a low-rank adapter (LoRA) into its base model.

    A run with `--lora.rank` keeps its changes in RUN/adapter, a small folder that can be shared
    without the model. OUT is an ordinary model directory in float32, the same as RUN/model. An
    adapter of another model is refused, and nothing is written.

    For example:

        heedful merge base run/adapter merged
    """
    report = Report("merge", output, {"base": str(base), "adapter": str(adapter), "out": str(out)})
    refuse_existing(out)
    from heedful.train.lora import merge_into

    model = merge_into(base, adapter, out)
    facts = {
        "kind": model.spec.kind,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    say(f"Wrote {out}: the merged model, {facts['parameters']:,} parameters.")
    report.finish(facts)
