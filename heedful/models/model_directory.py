"""Model directories without PyTorch: `config.json`, the sizes of stored tensors, tokenizers.

`config.json` has the `schema_version`, the complete spec of the `model`, facts about its `training`
and `origin`, and since version 2 the digests of all other `files`. Version 1 had no digests, and
blocks of three named parts, which specs upgrade when they are parsed. Version 3 is version 2 with
matrices of 8 bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.durable import replace_synced
from heedful.errors import ModelError
from heedful.models.model_spec import CommonSpec, ModelSpec, parse_spec
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_pair import PROTECTION_FILE, SOFT_TERMS_FILE, TokenizerPair

SCHEMA_VERSION = 2
COMPACT_VERSION = 3
"""Of directories whose weights are stored in 8 bits; readers of version 2 refuse them in words."""
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_FILES = (
    *(CONFIG_FILE, WEIGHTS_FILE, "tokenizer.json", "target_tokenizer.json"),
    PROTECTION_FILE,
    SOFT_TERMS_FILE,
)

_DIMENSIONS = {
    "width",
    "vocabulary",
    "source_vocabulary",
    "target_vocabulary",
    "num_heads",
    "num_kv_heads",
    "head_width",
    "num_experts",
    "num_segments",
    "num_buckets",
    "channels",
    "patch_size",
    "num_classes",
}
"""Settings that no stored model has larger than the largest dimension of its tensors."""

_LARGEST_INTEGER = 2**31 - 1
_LARGEST_HEADER = 100_000_000  # bytes; the format allows no more


@dataclass(frozen=True)
class ModelFacts:
    """The content of a model directory's `config.json`.

    Args:
        spec: the complete description of the model.
        training: facts about its training (steps, scores), JSON types.
        origin: where an imported model came from, such as `model_type`; empty for others.
        digests: of the other files; empty in directories of schema version 1.
    """

    spec: ModelSpec
    training: Mapping[str, Any]
    origin: Mapping[str, Any]
    digests: Digests


def read_spec(directory: Path) -> ModelSpec:
    """Return the spec in a model directory's `config.json`, without loading its weights.

    Raises:
        ModelError: when the file is missing, damaged or of a newer schema.
        ConfigError: when a setting in it is unknown or wrong.
    """
    return read_facts(directory).spec


def read_facts(directory: Path) -> ModelFacts:
    """Read a model directory's `config.json`, without loading its weights.

    Raises:
        ModelError: when the file is missing, damaged or of a newer schema, or describes a model
            larger than the stored weights.
        ConfigError: when a setting in it is unknown or wrong.
    """
    file = directory / CONFIG_FILE
    _check_files_are_ordinary(directory)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise lacks(directory, CONFIG_FILE) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"Cannot be read as JSON: {error}", where=str(file), remedy="Copy the model again"
        ) from None
    if isinstance(config, dict) and "model_type" in config and "schema_version" not in config:
        raise ModelError(
            f"This is a Hugging Face model of type {config['model_type']!r}, not yet Heedful's",
            where=str(file),
            remedy=f"Import it first: heedful import {directory} OUT",
        )
    version = config.get("schema_version") if isinstance(config, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ModelError(
            "This is no configuration of a Heedful model: it has no schema_version",
            where=str(file),
            remedy="Give a model directory or a run directory",
        )
    if version > COMPACT_VERSION:
        raise ModelError(
            f"The model has schema version {version}; this Heedful reads up to {COMPACT_VERSION}",
            where=str(file),
            remedy="Install a newer Heedful",
        )
    parts = {name: config.get(name, {}) for name in ("model", "training", "origin", "files")}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise ModelError(
                f"Its {name!r} is no table", where=str(file), remedy="Copy the model again"
            )
    _check_sizes(parts["model"], directory)
    spec = parse_spec(parts["model"], where=str(file))
    digests = _digests(parts["files"], version, where=str(file))
    return ModelFacts(spec, parts["training"], parts["origin"], digests)


def renew_digests(directory: Path) -> None:
    """Write the digests of the files that are there now into `config.json`.

    For files that were changed on purpose, by other means than `save_model`.
    """
    file = directory / CONFIG_FILE
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= {
        "schema_version": max(SCHEMA_VERSION, config.get("schema_version", 0)),
        "files": file_digests(directory, leave_out=CONFIG_FILE),
    }
    replace_synced(file, (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())


def locate(path: Path) -> Path:
    """Return the directory that a word for a model means: itself, a model at hand or of the hub.

    Args:
        path: a directory, which may not exist, or a name.

    Raises:
        UserError: and its kinds, when a model of the hub cannot be fetched.
    """
    recover(path)
    if len(path.parts) > 1 and path.exists():
        return path
    from heedful.pretrained.catalogue import directory_of  # most models are directories

    return directory_of(path)


def find_model_directory(path: Path) -> Path:
    """Return the model directory a path means: `locate` it, or `model/` in it of a run.

    Raises:
        ModelError: when it is none of these.
        UserError: and its kinds, as `locate`.
    """
    path = locate(path)
    for directory in (path, path / "model"):
        recover(directory)
        if (directory / CONFIG_FILE).is_file():
            return directory
    if not path.exists():
        from heedful.pretrained.catalogue import models_at_hand

        raise ModelError(
            "No such model directory",
            where=str(path),
            remedy="Check the path, train a model, or take one at hand: "
            + (", ".join(models_at_hand()) or "none yet"),
        )
    if (path / "config.toml").is_file():
        raise ModelError(
            "This run has no model yet: it was not validated once",
            where=str(path),
            remedy="Let it train further: heedful train RUN --resume",
        )
    raise ModelError(
        "This is neither a model directory (config.json, model.safetensors, tokenizer.json) "
        "nor a run directory",
        where=str(path),
        remedy="Check the path",
    )


def load_tokenizers(directory: Path, spec: ModelSpec) -> TokenizerPair | None:
    """Read the tokenizers of a model directory, which must fit the model; None for images.

    Raises:
        ModelError: when a file is missing, damaged, or of another model.
    """
    if spec.reads == "images":
        return None
    tokenizers = TokenizerPair.load(directory)
    check_vocabulary(tokenizers, spec, where=str(directory))
    return tokenizers


def check_vocabulary(tokenizers: TokenizerPair, spec: CommonSpec, *, where: str) -> None:
    """Refuse tokenizers of another model.

    Imported models often have more rows than their tokenizer has pieces, to a round number.

    Raises:
        ModelError: naming both sizes.
    """
    vocabularies = spec.vocabularies()
    rows = (vocabularies["source"], vocabularies["target"])
    sizes = (tokenizers.source.size, tokenizers.target.size)
    padded = not isinstance(tokenizers.source, Tokenizer)
    fits = all(s <= r for s, r in zip(sizes, rows, strict=True)) if padded else sizes == rows
    if fits:
        return
    one = sizes[0] == sizes[1] and rows[0] == rows[1]
    have, wants = (
        (sizes[0], rows[0]) if one else (f"{sizes[0]} and {sizes[1]}", f"{rows[0]} and {rows[1]}")
    )
    raise ModelError(
        f"The tokenizers have {have} pieces, the model's vocabulary {wants}",
        where=where,
        remedy="Use the tokenizer files that were saved with this model",
    )


def lacks(directory: Path, name: str) -> ModelError:
    """Return the error for a file that a model directory lacks."""
    return ModelError(
        f"The model directory lacks {name}", where=str(directory), remedy="Copy the model again"
    )


def place_of_previous(directory: Path) -> Path:
    """Return where a directory stands while another takes its place."""
    return directory.with_name(f".{directory.name}.previous")


def recover(directory: Path) -> None:
    """Put back what a crash left between the two renames that replace a directory."""
    previous = place_of_previous(directory)
    if previous.is_dir() and not directory.exists():
        previous.rename(directory)


def _check_files_are_ordinary(directory: Path) -> None:
    """Refuse pipes, sockets and devices, whose reading might never end."""
    for name in _FILES:
        path = directory / name
        if path.exists() and not path.is_file():
            raise ModelError(
                f"{name} is no ordinary file", where=str(path), remedy="Copy the model again"
            )


def _digests(files: Mapping[str, Any], version: int, *, where: str) -> Digests:
    """Return the digests in `config.json`, which every version but the first has."""
    wrong = [
        name
        for name, chunks in files.items()
        if Path(name).name != name or not isinstance(chunks, list) or not chunks
    ]
    if wrong or (version > 1 and WEIGHTS_FILE not in files):
        raise ModelError(
            f"Its 'files' has no digests of {wrong[0] if wrong else WEIGHTS_FILE}",
            where=where,
            remedy="Copy the model again",
        )
    return files


def _check_sizes(values: Mapping[str, Any], directory: Path) -> None:
    """Refuse a spec of more layers or larger dimensions than the weights have.

    Building such a model, if only to compare its tensors, could take hours or all memory.

    Args:
        values: the spec as plain data, of any version.
        directory: where `config.json` and the weights are.
    """
    shapes = stored_sizes(directory / WEIGHTS_FILE)
    if shapes is None:  # reading the weights says what is wrong with them
        return
    limits = {f"{name}.num_layers": _layers(shapes, name) for name in ("encoder", "decoder")}
    largest = max((size for shape in shapes.values() for size in shape), default=0)
    for path, number in _integers(values):
        limit = limits.get(path, _LARGEST_INTEGER)
        if path.rpartition(".")[2] in _DIMENSIONS:
            limit = min(limit, largest)
        if number > limit:
            size = f"{limit} layers" if path in limits else f"at most {limit} in any dimension"
            raise ModelError(
                f"model.{path} is {number}, and the weights have {size}",
                where=str(directory / CONFIG_FILE),
                remedy="Use the config.json that was saved with these weights; copy both again",
            )


def stored_sizes(file: Path) -> dict[str, list[int]] | None:
    """Read the shapes of a safetensors file's tensors from its header; None if it is damaged."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _LARGEST_HEADER:
                return None
            header = json.loads(stream.read(length))
        return {name: each["shape"] for name, each in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None


def _layers(shapes: Mapping[str, Any], stack: str) -> int:
    """Return the number of layers that a stack has in the weights."""
    numbers = (name.split(".")[2] for name in shapes if name.startswith(f"{stack}.blocks."))
    return max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)


def _integers(values: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the integers in nested plain data, each with its dotted path."""
    if isinstance(values, int):
        yield path, values
    elif isinstance(values, dict):
        for name, value in values.items():
            yield from _integers(value, f"{path}.{name}" if path else str(name))
    elif isinstance(values, list):
        for place, value in enumerate(values):
            yield from _integers(value, f"{path}.{place}")


# A large file is read by several threads at once; most files have one digest, which `sha256sum`
# prints too. SHA-256 is the fastest of the standard library where processors have instructions for
# it: 1 GB on two cores in 0.5 s, BLAKE2b in 1.1 s.
CHUNK = 1 << 26
_BUFFER = 1 << 20
_THREADS = 4

Digests = Mapping[str, Sequence[str]]
"""By file name, the hexadecimal SHA-256 of each `CHUNK` bytes."""


def file_digests(directory: Path, *, leave_out: str) -> dict[str, list[str]]:
    """Return the digests of the files in a directory.

    Args:
        directory: of files only.
        leave_out: the name of the file that will hold the digests.
    """
    paths = sorted(path for path in directory.iterdir() if path.name != leave_out)
    return {
        path.name: [_digest(path, start) for start in _starts(path.stat().st_size)]
        for path in paths
    }


@contextmanager
def verified(directory: Path, digests: Digests) -> Iterator[None]:
    """Compare files with their digests while the block reads them.

    What the block raises comes first: it says more than that a file has changed.

    Args:
        directory: where the files are.
        digests: as `file_digests` gave them; files that are not named are not looked at.

    Raises:
        ModelError: at the end, naming the file that is missing or differs.
    """
    check = _Check(directory, digests)
    try:
        yield
    except BaseException:
        check.cancel()
        raise
    check.finish()


class _Check:
    """Threads that hash the chunks of files; only the first difference is told."""

    def __init__(self, directory: Path, digests: Digests) -> None:
        self._directory = directory
        self._work = [
            (name, place * CHUNK, digest)
            for name, chunks in digests.items()
            for place, digest in enumerate(chunks)
        ]
        self._error: ModelError | None = None
        for name, chunks in digests.items():
            self._check_size(name, len(chunks))
        self._work.reverse()  # as chunks are taken from the end
        count = min(_THREADS, os.cpu_count() or 1, len(self._work))
        self._threads = [threading.Thread(target=self._compare, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def cancel(self) -> None:
        """Stop after the chunks at hand."""
        self._work.clear()

    def finish(self) -> None:
        """Wait for the threads.

        Raises:
            ModelError: naming the file that is missing or differs.
        """
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _check_size(self, name: str, chunks: int) -> None:
        """Note a file that is missing, or too long or short for its digests."""
        path = self._directory / name
        if not path.is_file():
            self._error = ModelError(
                f"The model directory lacks {name}",
                where=str(self._directory),
                remedy="Copy the model again",
            )
        elif len(_starts(path.stat().st_size)) != chunks:
            self._error = self._changed(name)
        if self._error is not None:
            self.cancel()

    def _compare(self) -> None:
        while self._work and self._error is None:
            try:
                name, start, digest = self._work.pop()
            except IndexError:  # another thread took the last
                return
            try:
                same = _digest(self._directory / name, start) == digest
            except OSError:
                same = False
            if not same:
                self._error = self._changed(name)

    def _changed(self, name: str) -> ModelError:
        return ModelError(
            f"{name} is not the file that was saved with the model: its digest differs",
            where=str(self._directory / name),
            remedy="The file is damaged or was changed; copy the model again",
        )


def _starts(size: int) -> range:
    """Return where the chunks of a file start; an empty file has one."""
    return range(0, max(size, 1), CHUNK)


def _digest(path: Path, start: int) -> str:
    """Return the SHA-256 of the chunk of a file from `start` on."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(_BUFFER, max(1, path.stat().st_size - start))))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = CHUNK
        while left and (count := file.readinto(buffer[:left])):
            digest.update(buffer[:count])
            left -= count
    return digest.hexdigest()
