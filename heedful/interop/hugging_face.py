"""Import and export of Hugging Face model directories."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.interop.architecture import Architecture, find_architecture, fitting_architecture
from heedful.interop.hf_files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    is_hugging_face,
    read_config_file,
    read_json_file,
    read_pooling,
    read_tensors,
    tensor_names,
    write_json_file,
    write_tensors,
)
from heedful.interop.hf_tokenizers import SETTINGS_FILE, read_tokenizers
from heedful.interop.processors import PREPROCESSOR_FILE, complete, with_preprocessor
from heedful.interop.tokenizer_export import (
    GENERATION_FILE,
    generation_settings,
    token_ids,
    write_tokenizers,
)
from heedful.models.build import build_around
from heedful.models.checkpoint import read_weights, write_directory
from heedful.models.model_directory import (
    check_vocabulary,
    find_model_directory,
    load_tokenizers,
    locate,
    read_facts,
)
from heedful.models.model_spec import ModelSpec
from heedful.pretrained.hub import source_of
from heedful.text.tokenizer_pair import Reading, TokenizerPair

if TYPE_CHECKING:
    from heedful.models.build import AnyModel

# Small files of theirs with settings that a spec has no place for; an export writes them again.
_COMPANIONS = (
    SETTINGS_FILE,
    "special_tokens_map.json",
    PREPROCESSOR_FILE,
    GENERATION_FILE,
)
_TOKEN_ID = "_token_id"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Description:
    """Spec and tokenizers of a model directory, without the weights.

    Args:
        spec: spec of the model.
        tokenizers: tokenizers of source and target, a joint pair where there is one tokenizer;
            None for a model of images.
        origin: JSON data that an export needs to write the same directory again; empty for a model
            of ours.
    """

    spec: ModelSpec
    tokenizers: TokenizerPair | None
    origin: Mapping[str, Any]


@dataclass(frozen=True)
class Imported(Description):
    """A model that was imported from another project's directory.

    Args:
        model: the model in evaluation mode.
    """

    model: AnyModel


def import_model(directory: Path, *, keep_dtype: bool = False) -> Imported:
    """Read a Hugging Face directory: config.json, safetensors and tokenizer files.

    Args:
        directory: directory with these files, or the name of a model of the hub; no code in it is
            executed.
        keep_dtype: flag that keeps the stored dtype of the weights if they all share it; else they
            become float32.

    Raises:
        ModelError: when a file is missing or damaged, the architecture or a setting is unknown,
            tensors are missing, unknown or of another shape, or the tokenizer belongs to another
            model; the file is named.
    """
    directory = locate(directory)
    theirs = read_tensors(directory)
    description = _describe(directory, theirs.keys())
    ours = _to_ours(directory, description, theirs)
    dtype = _dtype(ours, directory)
    # Weights of several dtypes become float32, since a mixed module would fail in its first matmul.
    stored_dtype = dtype if keep_dtype and dtype is not None else torch.float32
    model = build_around(description.spec, ours, where=str(directory), dtype=stored_dtype)
    return Imported(**vars(description), model=model.eval())


def export_model(model: Path, out: Path) -> dict[str, Any]:
    """Write a model of ours as a directory that `transformers` loads.

    The weights keep the dtype they are stored in.

    Args:
        model: model directory, or run directory (its best model is exported).
        out: directory to write, whose parent exists.

    Returns:
        The content of the written config.json.

    Raises:
        ModelError: when no architecture of theirs can express the model.
        RunError: when the directory cannot be written.
    """
    directory = find_model_directory(model)
    facts = read_facts(directory)
    origin = facts.origin
    tokenizers = load_tokenizers(directory, facts.spec)
    architecture, form = fitting_architecture(
        facts.spec, origin.get("model_type"), where=str(directory)
    )
    theirs = architecture.table(form.spec).to_theirs(form.convert(read_weights(directory)))
    config = architecture.write_config(form.spec)
    config |= {"dtype": str(next(iter(theirs.values())).dtype).removeprefix("torch.")}
    companions = origin.get("files", {})
    # An imported model keeps the ids of its own config.json, which may be lists or unusual roles.
    ids = origin.get("token_ids")
    if not ids and tokenizers is not None:
        ids = token_ids(form.spec, tokenizers.target)
        # The imported file wins over ours, since it may hold settings that the model was tuned
        # with.
        companions = {GENERATION_FILE: generation_settings(form.spec, ids), **companions}
    companions = with_preprocessor(companions, form.spec)
    _check_ids(architecture, config, ids or {}, theirs.keys())
    config = _with_ids(config, ids or {})

    def write(fresh: Path) -> None:
        write_json_file(fresh / CONFIG_FILE, config)
        write_tensors(fresh / WEIGHTS_FILE, theirs)
        if tokenizers is not None:
            write_tokenizers(
                fresh,
                tokenizers,
                companions.get(SETTINGS_FILE, {}),
                continues=form.spec.generates and form.spec.reads == "texts",
            )
        for name in _COMPANIONS:
            # Files that the tokenizer export has just written are newer than the imported ones.
            if companions.get(name) and not (fresh / name).exists():
                write_json_file(fresh / name, companions[name])

    write_directory(out, write)
    return config


def _check_ids(
    architecture: Architecture[Any],
    config: Mapping[str, Any],
    ids: Mapping[str, Any],
    names: Collection[str],
) -> None:
    """Raise a `ModelError` if ids of special tokens make another model of a config.json."""
    # RoBERTa's positions begin after the padding id, wherever the model's own begin.
    before, after = (
        architecture.read_config(each, where=CONFIG_FILE, names=names)
        for each in (config, _with_ids(config, ids))
    )
    if before != after:
        raise ModelError(
            f"The ids of the tokenizer's special tokens, {dict(ids)}, move the positions of a "
            f"model of type {architecture.model_type!r}",
            where="pad_token_id",
            remedy="Export it with --format onnx, or train it with a tokenizer of Heedful's own",
        )


def _with_ids(config: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json with ids of special tokens, in the table of its texts if it has one."""
    if "text_config" not in config:
        return {**config, **ids}
    return {**config, "text_config": {**config["text_config"], **ids}}


def describe_any(path: Path) -> Description:
    """Return spec and tokenizers of any model directory, without reading its weights.

    Raises:
        ModelError: when the directory holds no model, or a damaged or unknown one.
    """
    path = locate(path)
    if is_hugging_face(path):
        return _describe(path, tensor_names(path))
    directory = find_model_directory(path)
    facts = read_facts(directory)
    return Description(facts.spec, load_tokenizers(directory, facts.spec), facts.origin)


def read_any_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of any model directory in their stored dtype, under our names.

    Raises:
        ModelError: when the directory holds no model, or a damaged or unknown one.
    """
    path = locate(path)
    if not is_hugging_face(path):
        return read_weights(find_model_directory(path))
    theirs = read_tensors(path)
    return _to_ours(path, _describe(path, theirs.keys()), theirs)


def _describe(directory: Path, names: Collection[str]) -> Description:
    """Return spec and tokenizers of a directory of theirs with tensors of these names."""
    where = str(directory / CONFIG_FILE)
    config = read_config_file(directory)
    architecture = find_architecture(config["model_type"], where=where, config=config)
    spec: Any = architecture.read_config(config, where=where, names=names)
    tokenizers = None
    if spec.reads != "images":
        tokenizers = read_tokenizers(directory, config)
        # A tokenizer of another model gives ids beyond the embedding table, and wrong words below.
        check_vocabulary(tokenizers, spec, where=str(directory))
        if spec.reads == "pairs" and tokenizers.reading is None:
            # T5 and BART were trained on passages.
            tokenizers = replace(tokenizers, reading=Reading("lines"))
    spec = complete(spec, directory, config, tokenizers)
    return Description(spec, tokenizers, _origin(directory, config))


def _to_ours(
    directory: Path, description: Description, theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Convert their tensors to ours."""
    architecture = find_architecture(description.origin["model_type"], where=str(directory))
    table = architecture.table(description.spec, theirs.keys())
    return table.to_ours(theirs, where=str(directory))


def _dtype(tensors: Mapping[str, Tensor], directory: Path) -> torch.dtype | None:
    """Return the common dtype of all tensors, None if they differ; `ModelError`s name integers."""
    # Quantised checkpoints (GPTQ, bitsandbytes) store packed integers under the usual names.
    wrong = [f"{n} is {t.dtype}" for n, t in tensors.items() if t.dtype not in _DTYPES]
    if wrong:
        raise ModelError(
            f"Tensors are of a type that cannot be imported: {', '.join(wrong[:5])}",
            where=str(directory),
            remedy="Only floating-point weights can be; take a model that is not quantised",
        )
    dtypes = {tensor.dtype for tensor in tensors.values()}
    return dtypes.pop() if len(dtypes) == 1 else None


def _origin(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    files = {name: read_json_file(directory / name) for name in _COMPANIONS}
    return {
        "model_type": config["model_type"],
        "token_ids": {
            key: value
            for key, value in (config.get("text_config") or config).items()
            # The ids of special tokens belong to config.json, but not to the architecture.
            if key.endswith(_TOKEN_ID) and value is not None
        },
        "files": {name: content for name, content in files.items() if content is not None},
        # Of sentence-transformers alone, and small: what a text's vector is.
        **({} if (pooling := read_pooling(directory)) is None else {"pooling": pooling}),
        **source_of(directory),
    }
