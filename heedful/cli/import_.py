"""`heedful import`: a model of another project becomes one of ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.tables import say
from heedful.errors import ModelError

if TYPE_CHECKING:
    from heedful.interop.directory import Imported


def import_(
    directory: Annotated[
        Path, Parameter(help="A Hugging Face model directory: config.json, safetensors, tokenizer.")
    ],
    out: Annotated[Path, Parameter(help="The model directory to write; must not exist yet.")],
    /,
    *,
    dtype: Annotated[
        Literal["keep", "float32"], Parameter(help="keep: weights stay as they are stored.")
    ] = "keep",
    output: Output = PLAIN,
) -> None:
    """Read a Hugging Face model directory and write it as Heedful's.

    BERT, RoBERTa, GPT-2, LLaMA, T5, BART, Marian and ViT are understood. Every tensor and setting
    must be accounted for, or nothing is written and the error says what is left over or missing.
    Nothing in the directory is executed, which is why pickled weights (pytorch_model.bin) are
    refused. Without network: the directory must be on this machine.

    For example:

        heedful import bert-base-uncased bert
    """
    report = Report(
        "import", output, {"directory": str(directory), "out": str(out), "dtype": dtype}
    )
    refuse_existing(out)
    from heedful.interop.directory import import_model
    from heedful.models.checkpoint import save_model

    imported = import_model(directory, keep_dtype=dtype == "keep")
    save_model(imported.model, imported.tokenizers, out, origin=imported.origin)
    facts = _facts(imported)
    say(_sentence(out, facts))
    report.finish(facts)


def refuse_existing(out: Path) -> None:
    """Check that a directory can be written without losing another.

    Raises:
        ModelError: when something is there, or its parent is not.
    """
    if out.exists():
        raise ModelError(
            "This exists already",
            where=str(out),
            remedy="Give a directory that is still to be made",
        )
    if not out.absolute().parent.is_dir():
        raise ModelError(
            "No such directory",
            where=str(out.absolute().parent),
            remedy="Make it, or choose another place",
        )


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
        f"{out} holds the {facts['model_type']} model now: of the kind {kind}, "
        f"{facts['parameters']:,} parameters in {facts['dtype']}, every tensor accounted for. "
        f"{text}"
    )
