"""`heedful export`: convert a model for another library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.line_files import refuse_existing
from heedful.cli.output import PLAIN, Output, Report, say
from heedful.errors import ConfigError

Format = Literal["hf", "ctranslate2", "onnx"]
Quantization = Literal[
    "float32",
    "float16",
    "bfloat16",
    "int16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
]


def export(
    model: Annotated[Path, Parameter(help="A model directory or a run directory.")],
    out: Annotated[Path, Parameter(help="Directory to write; must not exist.")],
    /,
    *,
    format: Annotated[
        Format,
        Parameter(
            help="hf: for `transformers`. ctranslate2: translators and language models, for fast "
            "inference on processors. onnx: encoders of text and images."
        ),
    ] = "hf",
    quantization: Annotated[
        Quantization | None,
        Parameter(help="Type in which ctranslate2 stores the weights; float32 if unset."),
    ] = None,
    output: Output = PLAIN,
) -> None:
    """Convert a model for another library: Hugging Face, CTranslate2 or ONNX.

    `hf` chooses the architecture that computes the same: Marian for translators with the settings
    of the paper, T5, BART, GPT-2, LLaMA, BERT, RoBERTa or ViT. An imported model gives back the
    tensors it was imported from, bit for bit. If the other library has no such architecture,
    nothing is written, and the error names the settings that do not fit.

    For example:

        heedful export runs/de-en de-en-marian --format hf

        heedful export runs/de-en de-en-fast --format ctranslate2 --quantization int8

        heedful export bert bert-onnx --format onnx
    """
    flags = {"model": str(model), "out": str(out), "format": format, "quantization": quantization}
    report = Report("export", output, flags)
    refuse_existing(out)
    if quantization is not None and format != "ctranslate2":
        raise ConfigError(
            f"Weights are quantised for ctranslate2 only, not for {format}",
            where=f"quantization = {quantization}",
            remedy="Leave it out, or add --format ctranslate2",
        )
    facts, reader = _write(model, out, format, quantization or "float32")
    files = {
        file.relative_to(out).as_posix(): file.stat().st_size
        for file in sorted(out.rglob("*"))
        if file.is_file()
    }
    facts |= {"files": files, "bytes": sum(files.values())}
    say(
        f"Wrote {out}, a {facts['model_type']} model for `{reader}`: "
        f"{', '.join(files)}, {sum(files.values()):,} bytes."
    )
    report.finish(facts)


def _write(
    model: Path, out: Path, format: Format, quantization: Quantization
) -> tuple[dict[str, Any], str]:
    """Write the model; return facts about it and the package that reads it."""
    if format == "ctranslate2":
        from heedful.interop.ctranslate2 import export_ctranslate2

        name = export_ctranslate2(model, out, quantization)
        return {"model_type": name, "quantization": quantization}, "ctranslate2"
    if format == "onnx":
        from heedful.interop.onnx import export_onnx

        names = export_onnx(model, out)
        return {"model_type": "onnx", "outputs": names}, "onnxruntime"
    from heedful.interop.hugging_face import export_model

    return {"model_type": export_model(model, out)["model_type"]}, "transformers"
