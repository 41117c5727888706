"""Hugging Face model directories, read as models of ours and written from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.interop.architecture import find_architecture, fitting_architecture
from heedful.interop.hf_files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    is_hugging_face,
    read_config_file,
    read_json_file,
    read_tensors,
    tensor_names,
    write_json_file,
    write_tensors,
)
from heedful.interop.hf_tokenizers import SETTINGS_FILE, read_tokenizers
from heedful.interop.image_processor import PREPROCESSOR_FILE, read_pixels, with_preprocessor
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
from heedful.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from heedful.models.build import AnyModel

# Small files of theirs with settings that no spec holds; an export writes them back.
_COMPANIONS = (
    SETTINGS_FILE,
    "special_tokens_map.json",
    PREPROCESSOR_FILE,
    GENERATION_FILE,
)
_TOKEN_ID = "_token_id"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Imported:
    """A model of another project's directory.

    Args:
        model: in eval mode.
        spec: its description.
        tokenizers: a joint pair where there is one tokenizer; None for a model of images.
        origin: what an export needs to write the directory again, JSON types.
    """

    model: AnyModel
    spec: ModelSpec
    tokenizers: TokenizerPair | None
    origin: Mapping[str, Any]


@dataclass(frozen=True)
class Description:
    """A directory's description of its model, without the weights.

    Args:
        spec: its description.
        tokenizers: as in `Imported`.
        origin: as in `Imported`; empty for a model of ours.
    """

    spec: ModelSpec
    tokenizers: TokenizerPair | None
    origin: Mapping[str, Any]


def import_model(directory: Path, *, keep_dtype: bool = False) -> Imported:
    """Read a Hugging Face directory: config.json, safetensors and tokenizer files.

    Args:
        directory: with these files, or the name of a model of the hub; nothing in it is executed.
        keep_dtype: the weights stay in the dtype they are stored in, if all are in one; else they
            become float32.

    Raises:
        ModelError: naming the file and what is wrong with it: a file is missing or damaged, the
            architecture or a setting is unknown, tensors are missing, unknown or of another shape,
            the tokenizer is of another model.
    """
    directory = locate(directory)
    theirs = read_tensors(directory)
    description = _describe(directory, theirs.keys())
    ours = _to_ours(directory, description, theirs)
    dtype = _dtype(ours, directory)
    stored_dtype = dtype if keep_dtype and dtype is not None else torch.float32
    model = build_around(description.spec, ours, where=str(directory), dtype=stored_dtype)
    return Imported(model.eval(), description.spec, description.tokenizers, description.origin)


def export_model(model: Path, out: Path) -> dict[str, Any]:
    """Write a model of ours as a directory that `transformers` loads.

    The weights keep the dtype they are stored in.

    Args:
        model: a model directory, or a run directory (its best model).
        out: where to; its parent must exist.

    Returns:
        The config.json that was written.

    Raises:
        ModelError: when no architecture of theirs computes what the model does.
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
    ids = origin.get("token_ids")
    if not ids and tokenizers is not None:
        ids = token_ids(form.spec, tokenizers.target)
        companions = {GENERATION_FILE: generation_settings(form.spec, ids), **companions}
    if facts.spec.kind == "vision":
        companions = with_preprocessor(companions, facts.spec)
    config |= ids or {}

    def write(fresh: Path) -> None:
        write_json_file(fresh / CONFIG_FILE, config)
        write_tensors(fresh / WEIGHTS_FILE, theirs)
        if tokenizers is not None:
            write_tokenizers(
                fresh,
                tokenizers,
                companions.get(SETTINGS_FILE, {}),
                continues=form.spec.kind == "causal_lm",
            )
        for name in _COMPANIONS:
            if companions.get(name) and not (fresh / name).exists():
                write_json_file(fresh / name, companions[name])

    write_directory(out, write)
    return config


def describe_any(path: Path) -> Description:
    """Describe the model of a directory that `load_any` takes, without reading its weights.

    Raises:
        ModelError: as `load_any`.
    """
    path = locate(path)
    if is_hugging_face(path):
        return _describe(path, tensor_names(path))
    directory = find_model_directory(path)
    facts = read_facts(directory)
    return Description(facts.spec, load_tokenizers(directory, facts.spec), facts.origin)


def read_any_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a directory that `load_any` takes, under canonical names, as stored.

    Raises:
        ModelError: as `load_any`.
    """
    path = locate(path)
    if not is_hugging_face(path):
        return read_weights(find_model_directory(path))
    theirs = read_tensors(path)
    return _to_ours(path, _describe(path, theirs.keys()), theirs)


def _describe(directory: Path, names: Collection[str]) -> Description:
    """Describe a directory of theirs whose tensors have these names."""
    where = str(directory / CONFIG_FILE)
    config = read_config_file(directory)
    architecture = find_architecture(config["model_type"], where=where)
    spec: ModelSpec = architecture.read_config(config, where=where, names=names)
    tokenizers = None
    if spec.kind == "vision":
        spec = spec.model_copy(update={"pixels": read_pixels(directory, spec)})
    else:
        tokenizers = read_tokenizers(directory, config)
        check_vocabulary(tokenizers, spec, where=str(directory))
    return Description(spec, tokenizers, _origin(directory, config))


def _to_ours(
    directory: Path, description: Description, theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return their tensors as ours."""
    architecture = find_architecture(description.origin["model_type"], where=str(directory))
    table = architecture.table(description.spec, theirs.keys())
    return table.to_ours(theirs, where=str(directory))


def _dtype(tensors: Mapping[str, Tensor], directory: Path) -> torch.dtype | None:
    """Return the one dtype of all tensors; None where there are several.

    Raises:
        ModelError: naming tensors that are no floating-point numbers.
    """
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
            for key, value in config.items()
            if key.endswith(_TOKEN_ID) and value is not None
        },
        "files": {name: content for name, content in files.items() if content is not None},
        **source_of(directory),
    }
