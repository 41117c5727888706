"""`heedful import`, `export` and `merge`: conversion of model directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.cli.text_io import Output, Report, refuse_existing, say
from heedful.errors import ConfigError, ModelError, UserError
from heedful.pretrained.hub import HubName

if TYPE_CHECKING:
    from heedful.interop.hugging_face import Imported


def import_(
    directory: Path,
    out: Path | None = None,
    /,
    *,
    dtype: Literal["keep", "float32"] = "keep",
    output: Output = Output(),
) -> None:
    """Import a Hugging Face model.

    Supported architectures: BERT and RoBERTa with their relatives, GPT-2, GPT-NeoX, LLaMA, Mistral,
    Qwen 2 and 3, Gemma 1 and 2, SmolLM 3, T5, mT5, BART, mBART, M2M-100, PEGASUS, Marian, ViT and
    I-JEPA. Every tensor and setting must be used; otherwise nothing is written, and the error names
    unused or missing items.
    Nothing in the directory is executed, so pickled weights (pytorch_model.bin) are refused. A name
    that is no directory on this machine is fetched from the Hugging Face hub, and its commit is
    recorded in the new directory.

    For example:

        heedful import downloads/bert bert
        heedful import google-t5/t5-small

    Args:
        directory: Hugging Face model directory (config.json, safetensors, tokenizer), or
            OWNER/NAME[@REVISION] of the Hugging Face hub.
        out: Model directory to write, which must not exist; for a model of the hub, NAME if unset.
        dtype: Data type of the written weights; keep leaves it unchanged.
    """
    out = _name_on_the_hub(directory) if out is None else out
    report = Report("import", output, directory=directory, out=out, dtype=dtype)
    refuse_existing(out)
    from heedful.interop.hugging_face import import_model
    from heedful.models.checkpoint import save_model

    imported = import_model(directory, keep_dtype=dtype == "keep")
    save_model(imported.model, imported.tokenizers, out, origin=imported.origin)
    facts = _import_facts(imported)
    say(_import_sentence(out, facts))
    report.finish(facts)


def _name_on_the_hub(directory: Path) -> Path:
    """Return the path of the directory to write for OWNER/NAME: NAME in the current folder."""
    name = HubName.parse(directory)
    if name is None or directory.exists():
        raise UserError(
            "The directory to write is missing",
            where="heedful import",
            remedy=f"Name it: heedful import {directory} OUT",
        )
    return Path(name.repository.rpartition("/")[2])


def _import_facts(imported: Imported) -> dict[str, Any]:
    parameters = list(imported.model.parameters())
    tokenizers = imported.tokenizers
    pieces = None
    if tokenizers is not None:
        pieces = {"source": tokenizers.source.size, "target": tokenizers.target.size}
    return {
        **{
            name: imported.origin[name]
            for name in ("model_type", "repository", "commit")
            if name in imported.origin
        },
        "kind": imported.spec.kind,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "pieces": pieces,
    }


def _import_sentence(out: Path, facts: dict[str, Any]) -> str:
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


Format = Literal["hf", "ctranslate2", "onnx", "gguf", "peft", "heedful"]
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
    model: Path,
    out: Path,
    /,
    *,
    format: Format | None = None,
    quantization: Quantization | None = None,
    output: Output = Output(),
) -> None:
    """Export a model to Hugging Face, CTranslate2, ONNX or GGUF, or an adapter to PEFT.

    `hf` chooses the architecture that computes the same function: Marian or PEGASUS for
    translators, GPT-2 or GPT-NeoX for language models, XLM-RoBERTa-XL for encoders, ViT or I-JEPA
    for images, and others by the model's settings. Exporting an imported model restores its tensors
    bit for bit. If no architecture fits, nothing is written, and the error names the nearest and
    the flags to change.

    For example:

        heedful export runs/de-en de-en-marian --format hf

        heedful export runs/de-en de-en-fast --format ctranslate2 --quantization int8

        heedful export bert bert-onnx --format onnx

        heedful export runs/de-en de-en-small --format heedful --quantization int8

    Args:
        model: Model or run directory to convert.
        out: Directory to write, which must not exist.
        format: Format to write: hf for the transformers library; ctranslate2 for fast CPU inference
            of translators and language models; onnx for encoders of text and images; gguf for
            language models like LLaMA in llama.cpp; peft for the adapter of a LoRA run of a model
            of Hugging Face; heedful for smaller files of the same model. If unset, the first of hf,
            ctranslate2 and onnx that supports the model.
        quantization: Data type of the stored weights, for ctranslate2, gguf (float32, float16,
            bfloat16 or int8) and heedful (float32, float16 or int8); float32 if unset.
    """
    report = Report(
        "export", output, model=model, out=out, format=format, quantization=quantization
    )
    refuse_existing(out)
    if format is None and quantization is not None:
        format = "ctranslate2"
    if quantization is not None and format not in ("ctranslate2", "gguf", "heedful"):
        raise ConfigError(
            f"Weights are quantised for ctranslate2, gguf and heedful only, not for {format}",
            where=f"quantization = {quantization}",
            remedy="Leave it out, or add --format ctranslate2, gguf or heedful",
        )
    if format is None:
        facts, reader = _write_first_that_fits(model, out)
    else:
        facts, reader = _write_export(model, out, format, quantization or "float32")
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


def _write_first_that_fits(model: Path, out: Path) -> tuple[dict[str, Any], str]:
    """Write the model in the first format that supports it; see `_write_export`.

    Raises:
        ModelError: when no format supports the model, with the reason of the first one.
    """
    refusals: list[ModelError] = []
    formats: tuple[Format, ...] = ("hf", "ctranslate2", "onnx")
    for format in formats:
        try:
            result = _write_export(model, out, format, "float32")
        except ModelError as error:
            refusals.append(error)
            continue
        if refusals:
            say("No architecture of transformers computes this model: --format hf says why.")
        return result
    raise refusals[0]


def _write_export(
    model: Path, out: Path, format: Format, quantization: Quantization
) -> tuple[dict[str, Any], str]:
    """Write the model; return facts about it and the package that reads it."""
    if format == "ctranslate2":
        from heedful.apps.export.ctranslate2 import export_ctranslate2

        name = export_ctranslate2(model, out, quantization)
        return {"model_type": name, "quantization": quantization}, "ctranslate2"
    if format == "heedful":
        return _write_compact(model, out, quantization), "heedful"
    if format == "gguf":
        from heedful.apps.export.gguf_file import export_gguf

        name, has_tokenizer = export_gguf(model, out, quantization)
        if not has_tokenizer:
            say("The file has no tokenizer, as llama.cpp has none like it: give it token ids.")
        return {"model_type": name, "tokenizer": has_tokenizer}, "llama.cpp"
    if format == "peft":
        from heedful.apps.export.peft_format import export_peft

        return {"model_type": export_peft(model, out)}, "peft"
    if format == "onnx":
        from heedful.apps.export.onnx import export_onnx

        names = export_onnx(model, out)
        return {"model_type": "onnx", "outputs": names}, "onnxruntime"
    from heedful.interop.hugging_face import export_model

    return {"model_type": export_model(model, out)["model_type"]}, "transformers"


def _write_compact(model: Path, out: Path, quantization: Quantization) -> dict[str, Any]:
    from heedful.models.checkpoint import load_model, save_model
    from heedful.models.model_directory import find_model_directory, read_facts

    if quantization not in ("float32", "float16", "int8"):
        raise ConfigError(
            f"Heedful stores weights as float32, float16 or int8, not as {quantization}",
            where=f"quantization = {quantization}",
        )
    facts = read_facts(find_model_directory(model))
    loaded, tokenizers = load_model(model)
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = {"training": facts.training, "origin": facts.origin}
    save_model(loaded, tokenizers, out, storage=quantization, **kept)
    return {"model_type": facts.spec.kind, "quantization": quantization}


def merge(
    base: Path,
    adapter: Path,
    out: Path,
    /,
    *,
    output: Output = Output(),
) -> None:
    """Merge a low-rank adapter (LoRA) into its base model.

    A run with `--lora.rank` stores its low-rank updates in RUN/adapter, a small folder that can be
    shared without the model. OUT is an ordinary model directory in float32, equal to RUN/model. An
    adapter of another base model is refused. Adapters of Hugging Face's PEFT are merged, too.

    For example:

        heedful merge base run/adapter merged

    Args:
        base: Base model that the adapter was trained on: a model, run or Hugging Face directory.
        adapter: Directory of the LoRA run, its subfolder adapter, or a copy of the subfolder; or
            a directory of PEFT (adapter_config.json, adapter_model.safetensors).
        out: Directory to write, which must not exist.
    """
    report = Report("merge", output, base=base, adapter=adapter, out=out)
    refuse_existing(out)
    from heedful.apps.export.peft_format import is_peft, merge_peft
    from heedful.train.lora import merge_into

    model = (merge_peft if is_peft(adapter) else merge_into)(base, adapter, out)
    facts = {
        "kind": model.spec.kind,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    say(f"Wrote {out}: the merged model, {facts['parameters']:,} parameters.")
    report.finish(facts)
