"""`heedful import`: convert a Hugging Face model to a Heedful one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.line_files import refuse_existing
from heedful.cli.output import PLAIN, Output, Report, say

if TYPE_CHECKING:
    from heedful.interop.hugging_face import Imported


def import_(
    directory: Annotated[
        Path, Parameter(help="A Hugging Face model directory: config.json, safetensors, tokenizer.")
    ],
    out: Annotated[Path, Parameter(help="Model directory to write; must not exist.")],
    /,
    *,
    dtype: Annotated[
        Literal["keep", "float32"],
        Parameter(help="Type of the weights; keep: as they are stored."),
    ] = "keep",
    output: Output = PLAIN,
) -> None:
    """Convert a Hugging Face model directory to a Heedful one.

    Supported architectures: BERT, RoBERTa, GPT-2, LLaMA, T5, BART, Marian and ViT. Every tensor and
    setting must be used; otherwise nothing is written, and the error names what is left over or
    missing. Nothing in the directory is executed, so pickled weights (pytorch_model.bin) are
    refused. The directory must be on this machine: nothing is downloaded.

    For example:

        heedful import bert-base-uncased bert
    """
    report = Report(
        "import", output, {"directory": str(directory), "out": str(out), "dtype": dtype}
    )
    refuse_existing(out)
    from heedful.interop.hugging_face import import_model
    from heedful.models.checkpoint import save_model

    imported = import_model(directory, keep_dtype=dtype == "keep")
    save_model(imported.model, imported.tokenizers, out, origin=imported.origin)
    facts = _facts(imported)
    say(_sentence(out, facts))
    report.finish(facts)


def _facts(imported: Imported) -> dict[str, Any]:
    parameters = list(imported.model.parameters())
    tokenizers = imported.tokenizers
    pieces = None
    if tokenizers is not None:
        pieces = {"source": tokenizers.source.size, "target": tokenizers.target.size}
    return {
        "model_type": imported.origin["model_type"],
        "kind": imported.spec.kind,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "pieces": pieces,
    }


def _sentence(out: Path, facts: dict[str, Any]) -> str:
    pieces = facts["pieces"]
    if pieces is None:
        text = "It reads images and has no tokenizer."
    elif pieces["source"] == pieces["target"]:
        text = f"Its tokenizer has {pieces['source']:,} pieces."
    else:
        text = f"Its tokenizers have {pieces['source']:,} and {pieces['target']:,} pieces."
    kind = facts["kind"].replace("_", " ")
    return (
        f"Wrote {out}: a {facts['model_type']} model of the kind {kind}, "
        f"{facts['parameters']:,} parameters in {facts['dtype']}; every tensor was used. "
        f"{text}"
    )
