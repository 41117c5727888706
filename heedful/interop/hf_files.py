"""Files of a Hugging Face model directory: JSON, and safetensors in one file or in shards."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.durable import check_regular, open_regular
from heedful.errors import ModelError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth")
# Small files in the cache are named by a Git hash of 40 digits instead, which is not checked.
_SHA256 = re.compile("[0-9a-f]{64}")


MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"

_MODES = {"cls_token": "first", "cls": "first", "mean_tokens": "mean", "mean": "mean"} | {
    "max_tokens": "max",
    "max": "max",
}
_PREFIX = "pooling_mode_"


def read_config_file(directory: Path) -> dict[str, Any]:
    """Read the config.json of a Hugging Face directory.

    Raises:
        ModelError: when the directory or the file is missing, or the file names no architecture.
    """
    if not directory.is_dir():
        raise ModelError("No such directory", where=str(directory), remedy="Check the path")
    config = read_json_file(directory / CONFIG_FILE)
    if config is None:
        raise ModelError(
            f"The directory lacks {CONFIG_FILE}",
            where=str(directory),
            remedy="Give the directory that holds a model's config.json and safetensors",
        )
    where = str(directory / CONFIG_FILE)
    # Both projects call their file config.json, so a user may well give the wrong directory.
    if "schema_version" in config and "model" in config:
        raise ModelError("This is a Heedful model already", where=where, remedy="Use it as it is")
    if not isinstance(config.get("model_type"), str):
        raise ModelError(
            "It does not say which architecture the model is of: model_type is missing",
            where=where,
            remedy="Check that this is the config.json of a Hugging Face model",
        )
    return config


def read_json_file(file: Path) -> dict[str, Any] | None:
    """Read a JSON object, None if there is no file; raise a `ModelError` for other content."""
    if not file.exists():
        return None
    try:
        content = json.loads(read_bytes(file).decode())
    # Deeply nested brackets of a hostile file end in a RecursionError.
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"Cannot be read as JSON: {error}", where=str(file), remedy="Copy the file again"
        ) from None
    if not isinstance(content, dict):
        raise ModelError(
            "A JSON object is needed here", where=str(file), remedy="Copy the file again"
        )
    return content


def read_pooling(directory: Path) -> dict[str, Any] | None:
    """Return the pooling of a directory of sentence-transformers; None without one.

    Args:
        directory: Hugging Face directory.

    Returns:
        `mode`, which is `first`, `mean` or `max`, and `normalize`; or `refusal`, a sentence about
        what the vectors need and Heedful lacks. The encoder itself may serve all the same.

    Raises:
        ModelError: when a file is damaged.
    """
    config = read_json_file(directory / POOLING_FILE)
    if config is None:
        return None
    try:
        modules = json.loads(read_bytes(directory / MODULES_FILE).decode())
        classes = [str(each["type"]) for each in modules]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"refusal": f"{MODULES_FILE} beside its pooling is no list of modules"}
    # `sentence_transformers.models.Normalize`: the class decides, in whatever package it is.
    kinds = [name.rpartition(".")[2] for name in classes]
    others = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if others:
        return {"refusal": f"Its vectors go through further modules: {', '.join(others)}"}
    # Newer versions name the mode, older ones have a flag for each.
    named = config.get("pooling_mode")
    flags = [
        key.removeprefix(_PREFIX) for key, on in config.items() if key.startswith(_PREFIX) and on
    ]
    chosen = [named] if isinstance(named, str) else flags
    if len(chosen) != 1 or chosen[0] not in _MODES:
        return {"refusal": f"Its texts are pooled by {' and '.join(map(str, chosen)) or 'nothing'}"}
    return {"mode": _MODES[chosen[0]], "normalize": "Normalize" in kinds}


def read_bytes(file: Path) -> bytes:
    """Return the content of a file.

    Raises:
        ModelError: when the file is missing, unreadable, or no regular file; reading a pipe would
            block for ever.
    """
    try:
        with open_regular(file) as content:
            return content.read()
    except OSError as error:
        raise ModelError(
            f"Cannot be read: {error.strerror}", where=str(file), remedy="Copy the file again"
        ) from None


def is_hugging_face(path: Path) -> bool:
    """Return True if a directory's config.json has the format of Hugging Face."""
    try:
        config = read_json_file(path / CONFIG_FILE)
    except ModelError:
        return False
    # A config.json of ours has a schema version.
    return config is not None and "model_type" in config and "schema_version" not in config


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Read all tensors of a Hugging Face directory in their stored dtypes.

    Raises:
        ModelError: when there are no safetensors, a file is damaged or missing, or a tensor is not
            in the shard that the index names.
    """
    if (directory / WEIGHTS_FILE).exists():
        return _read_shard(directory / WEIGHTS_FILE)
    index_file = directory / INDEX_FILE
    index = read_json_file(index_file)
    if index is None:
        raise _no_weights(directory)
    # Imported here, as directories of our models need `is_hugging_face` only.
    from heedful.interop.tensor_table import first_names

    places = _places(index, index_file)
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        file = directory / name
        if not file.is_file():
            raise ModelError(
                f"The file {name} is missing, which {INDEX_FILE} names",
                where=str(directory),
                remedy="Copy all files of the model",
            )
        shard = _read_shard(file)
        promised = {tensor for tensor, place in places.items() if place == name}
        if missing := sorted(promised - shard.keys()):
            raise ModelError(
                f"Tensors are missing that {INDEX_FILE} places here: {first_names(missing)}",
                where=str(file),
                remedy="Copy all files of the model again, from one version of it",
            )
        # With two versions of a tensor, the order of the files would decide which one is used.
        if twice := sorted((shard.keys() - promised) & (tensors.keys() | places.keys())):
            raise ModelError(
                f"Tensors are here that {INDEX_FILE} places elsewhere: {first_names(twice)}",
                where=str(file),
                remedy="Copy all files of the model again, from one version of it",
            )
        tensors.update(shard)
    return tensors


def tensor_names(directory: Path) -> frozenset[str]:
    """Return the names of all tensors of a Hugging Face directory, from headers and index only.

    Raises:
        ModelError: when there are no safetensors, or the header or index is damaged.
    """
    file = directory / WEIGHTS_FILE
    if file.exists():
        try:
            check_regular(file)
            with safe_open(str(file), framework="pt") as tensors:
                return frozenset(tensors.keys())
        except (OSError, SafetensorError) as error:
            raise _damaged(file, error) from None
    index = read_json_file(directory / INDEX_FILE)
    if index is None:
        raise _no_weights(directory)
    return frozenset(_places(index, directory / INDEX_FILE))


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the metadata that `from_pretrained` needs.

    Raises:
        OSError: when the file cannot be written.
        SafetensorError: when safetensors cannot store a tensor.
    """
    # Safetensors stores contiguous tensors, and `format: pt` is what from_pretrained insists on.
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(whole, str(file), metadata={"format": "pt"})


def write_json_file(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object to a file, or raise an `OSError`."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def _places(index: Mapping[str, Any], file: Path) -> dict[str, str]:
    """Return the file name of each tensor, from a shard index."""
    places = index.get("weight_map")
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(name, str) for name in places.values())
    ):
        raise ModelError(
            "It has no weight_map that gives each tensor a file",
            where=str(file),
            remedy="Copy the file again",
        )
    for name in places.values():
        # An index of the hub is not trusted: `../` would read files of the user.
        if Path(name).name != name or "\\" in name:
            raise ModelError(
                f"It names a file outside the model's directory: {name}",
                where=str(file),
                remedy="Do not use this model; its files belong side by side",
            )
    return places


def _read_shard(file: Path) -> dict[str, Tensor]:
    try:
        check_regular(file)
        _check_digest(file)
        return load_file(str(file))
    except (OSError, SafetensorError) as error:
        raise _damaged(file, error) from None


def _check_digest(file: Path) -> None:
    """Verify a file of the hub's cache by its SHA-256 digest, which is the name of its blob.

    Weights of a snapshot are links to `blobs/<SHA-256>`; copied files have no digest.

    Raises:
        ModelError: when the digests differ.
        OSError: when the file cannot be read.
    """
    if not file.is_symlink():
        return
    # Only the first link is resolved: the blob itself may be a link to a file that models share.
    blob = file.parent / file.readlink()
    if blob.parent.name != "blobs" or not _SHA256.fullmatch(blob.name):
        return
    with blob.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != blob.name:
        raise ModelError(
            f"The file's SHA-256 is {digest}, and the hub's {blob.name}",
            where=str(file),
            remedy="The file is damaged; delete it and download the model again",
        )


def _damaged(file: Path, error: Exception) -> ModelError:
    return ModelError(
        f"The tensors cannot be read: {error}",
        where=str(file),
        remedy="The file is damaged or not whole; copy it again",
    )


def _no_weights(directory: Path) -> ModelError:
    # Unpickling runs code of whoever made the file.
    pickles = [name for name in _PICKLES if (directory / name).exists()]
    if pickles:
        return ModelError(
            f"Its weights are a pickle, {pickles[0]}, which can run any program when it is "
            "opened; Heedful does not read such files",
            where=str(directory),
            remedy="Convert it where you trust it: load it with torch.load(FILE, "
            "weights_only=True, map_location='cpu'), clone shared tensors, and write them with "
            f"safetensors.torch.save_file as {WEIGHTS_FILE}; or take the model's safetensors "
            "version",
        )
    return ModelError(
        f"The directory holds neither {WEIGHTS_FILE} nor {INDEX_FILE}",
        where=str(directory),
        remedy="Copy all files of the model",
    )
