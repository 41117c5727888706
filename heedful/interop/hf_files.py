"""The files of a Hugging Face model directory: JSON and safetensors, whole or in shards."""

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
from heedful.interop.tensor_table import first_names

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth")
_SHA256 = re.compile("[0-9a-f]{64}")


def read_config_file(directory: Path) -> dict[str, Any]:
    """The config.json of a Hugging Face directory.

    Raises:
        ModelError: when there is no such directory or file, or it does not name an architecture.
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
    """A file that holds a JSON object; None where there is no file.

    Raises:
        ModelError: when it holds something else.
    """
    if not file.exists():
        return None
    try:
        content = json.loads(read_bytes(file).decode())
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"Cannot be read as JSON: {error}", where=str(file), remedy="Copy the file again"
        ) from None
    if not isinstance(content, dict):
        raise ModelError(
            "A JSON object is needed here", where=str(file), remedy="Copy the file again"
        )
    return content


def read_bytes(file: Path) -> bytes:
    """Return the content of a file.

    Raises:
        ModelError: when it is missing or cannot be read, or is no regular file: reading a pipe
            would wait for ever.
    """
    try:
        with open_regular(file) as content:
            return content.read()
    except OSError as error:
        raise ModelError(
            f"Cannot be read: {error.strerror}", where=str(file), remedy="Copy the file again"
        ) from None


def is_hugging_face(path: Path) -> bool:
    """Return whether a directory's config.json is one of Hugging Face's."""
    try:
        config = read_json_file(path / CONFIG_FILE)
    except ModelError:
        return False
    return config is not None and "model_type" in config and "schema_version" not in config


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of a Hugging Face directory, in the dtypes they are stored in.

    Raises:
        ModelError: when there are no safetensors, one is damaged, a shard is missing, or a tensor
            is not where the index says.
    """
    if (directory / WEIGHTS_FILE).exists():
        return _read_shard(directory / WEIGHTS_FILE)
    index_file = directory / INDEX_FILE
    index = read_json_file(index_file)
    if index is None:
        raise _no_weights(directory)
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
        if twice := sorted((shard.keys() - promised) & (tensors.keys() | places.keys())):
            raise ModelError(
                f"Tensors are here that {INDEX_FILE} places elsewhere: {first_names(twice)}",
                where=str(file),
                remedy="Copy all files of the model again, from one version of it",
            )
        tensors.update(shard)
    return tensors


def tensor_names(directory: Path) -> frozenset[str]:
    """The names of all tensors of a Hugging Face directory, without reading them.

    Raises:
        ModelError: when there are no safetensors, or the file that lists them is damaged.
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
    """Write a safetensors file as Hugging Face's loader wants it.

    Raises:
        OSError: when it cannot be written.
        SafetensorError: when it cannot be written.
    """
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(whole, str(file), metadata={"format": "pt"})


def write_json_file(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object.

    Raises:
        OSError: when it cannot be written.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def _places(index: Mapping[str, Any], file: Path) -> dict[str, str]:
    """The file name of each tensor."""
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
    """Compare a file of the hub's cache with its digest, which is its name there.

    A snapshot's weights are links to `blobs/<SHA-256>`; files copied out of it carry no digest.

    Raises:
        ModelError: when they differ.
        OSError: when it cannot be read.
    """
    if not file.is_symlink():
        return
    blob = file.parent / file.readlink()  # which may lead on, to a file that models share
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
