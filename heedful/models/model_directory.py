"""Model directories without PyTorch: `config.json`, the sizes of stored tensors, tokenizers.

`config.json` has the `schema_version`, the complete spec of the `model`, facts about its `training`
and `origin`, and the digests of all other `files`. Version 3 is version 2 with matrices of 8 bits.
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
from heedful.text.tokenizer_pair import (
    CHAT_FILE,
    PROTECTION_FILE,
    READING_FILE,
    SOFT_TERMS_FILE,
    WORDS_FILE,
    WRITING_FILE,
    TokenizerPair,
)

SCHEMA_VERSION = 2
COMPACT_VERSION = 3
"""Version of directories with weights in 8 bits; readers of version 2 refuse it by its number."""
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_FILES = (
    *(CONFIG_FILE, WEIGHTS_FILE, "tokenizer.json", "target_tokenizer.json"),
    *(PROTECTION_FILE, SOFT_TERMS_FILE, READING_FILE, WRITING_FILE, WORDS_FILE, CHAT_FILE),
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
"""Settings that are at most the largest dimension of a model's tensors."""

_LARGEST_INTEGER = 2**31 - 1  # the product of two still fits the 64 bits of a tensor's size
_LARGEST_HEADER = 100_000_000  # bytes; the format allows no more


class HuggingFaceConfig(ModelError):
    """A directory's `config.json` is one of Hugging Face."""


@dataclass(frozen=True)
class ModelFacts:
    """The content of a model directory's `config.json`.

    Args:
        spec: complete description of the model.
        training: facts about its training (steps, scores), JSON types.
        origin: source of an imported model, such as `model_type`; empty for others.
        digests: digests of the other files.
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
    # Checked before the first read: a pipe in the place of a file would block for ever.
    _check_files_are_ordinary(directory)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise lacks(directory, CONFIG_FILE) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"Cannot be read as JSON: {error}", where=str(file), remedy="Copy the model again"
        ) from None
    # The most frequent mistake, so it gets its own remedy.
    if isinstance(config, dict) and "model_type" in config and "schema_version" not in config:
        raise HuggingFaceConfig(
            f"This is a Hugging Face model of type {config['model_type']!r}, not yet Heedful's",
            where=str(file),
            remedy=f"Import it first: heedful import {directory} OUT",
        )
    # `bool` is a subclass of `int`, and `true` is valid JSON.
    version = config.get("schema_version") if isinstance(config, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < SCHEMA_VERSION:
        raise ModelError(
            f"This is no model of this Heedful: its schema_version is not {SCHEMA_VERSION} or more",
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
    # Checked before parsing, so that an absurd size gets no further.
    _check_sizes(parts["model"], directory)
    spec = parse_spec(parts["model"], where=str(file))
    digests = _digests(parts["files"], where=str(file))
    return ModelFacts(spec, parts["training"], parts["origin"], digests)


def renew_digests(directory: Path) -> None:
    """Write the digests of the present files into `config.json`.

    It is for files that were changed on purpose, other than by `save_model`.
    """
    file = directory / CONFIG_FILE
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= {
        "schema_version": max(SCHEMA_VERSION, config.get("schema_version", 0)),
        "files": file_digests(directory, leave_out=CONFIG_FILE),  # it cannot hold its own
    }
    replace_synced(file, (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())


def locate(path: Path) -> Path:
    """Return the directory of a model that is given as a directory or as a name of the hub.

    Args:
        path: directory, which may not exist, or name of a bundled model or of one of the hub.

    Raises:
        UserError: when a model of the hub cannot be fetched (it or a subclass).
    """
    recover(path)
    # A path with several parts cannot be the name of a bundled model, so the catalogue is not read.
    if len(path.parts) > 1 and path.exists():
        return path
    from heedful.pretrained.catalogue import directory_of

    return directory_of(path)


def find_model_directory(path: Path) -> Path:
    """Return the model directory of a path: the path itself, or `model/` of a run directory.

    Raises:
        ModelError: when the path is neither.
        UserError: when a model of the hub cannot be fetched.
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
            remedy=f"Let it train further: heedful train {path} --resume",
        )
    raise ModelError(
        "This is neither a model directory (config.json, model.safetensors, tokenizer.json) "
        "nor a run directory",
        where=str(path),
        remedy="Check the path",
    )


def load_tokenizers(directory: Path, spec: ModelSpec) -> TokenizerPair | None:
    """Read the tokenizers of a model directory and check their sizes; None for images.

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

    Imported models often have more rows than tokens, up to a multiple of 8 or 64.

    Raises:
        ModelError: when sizes differ; it names both.
    """
    vocabularies = spec.vocabularies()
    rows = (vocabularies["source"], vocabularies["target"])
    sizes = (tokenizers.source.size, tokenizers.target.size)
    # Tokenizers of our own always fit exactly: a difference is a mistake.
    padded = tokenizers.source.is_imported
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


def no_translator(kind: str, where: str) -> ModelError:
    """Return the error for a model of another kind."""
    return ModelError(
        f"This model is no translator; its kind is {kind!r}",
        where=where,
        remedy="Give a model that was trained on pairs of texts",
    )


def lacks(directory: Path, name: str) -> ModelError:
    """Return the error for a file that a model directory lacks."""
    return ModelError(
        f"The model directory lacks {name}", where=str(directory), remedy="Copy the model again"
    )


def place_of_previous(directory: Path) -> Path:
    """Return the path to which a directory is moved while a new one takes its name."""
    return directory.with_name(f".{directory.name}.previous")


def recover(directory: Path) -> None:
    """Undo a replacement that a crash stopped between its two renames."""
    previous = place_of_previous(directory)
    if previous.is_dir() and not directory.exists():
        previous.rename(directory)


def _check_files_are_ordinary(directory: Path) -> None:
    """Refuse pipes, sockets and devices, whose reading might never end."""
    for name in _FILES:
        path = directory / name
        # `is_file` follows links, so links to ordinary files are allowed.
        if path.exists() and not path.is_file():
            raise ModelError(
                f"{name} is no ordinary file", where=str(path), remedy="Copy the model again"
            )


def _digests(files: Mapping[str, Any], *, where: str) -> Digests:
    """Return the digests in `config.json`."""
    wrong = [
        name
        for name, chunks in files.items()
        # A name with a folder in it could make this function read any file of the machine.
        if Path(name).name != name or not isinstance(chunks, list) or not chunks
    ]
    if wrong or WEIGHTS_FILE not in files:
        raise ModelError(
            f"Its 'files' has no digests of {wrong[0] if wrong else WEIGHTS_FILE}",
            where=where,
            remedy="Copy the model again",
        )
    return files


def _check_sizes(values: Mapping[str, Any], directory: Path) -> None:
    """Refuse a spec of more layers or larger dimensions than the weights have.

    To build such a model, if only to compare its tensors, could take hours or all memory.

    Args:
        values: spec as plain data.
        directory: folder of `config.json` and the weights.
    """
    shapes = stored_sizes(directory / WEIGHTS_FILE)
    if shapes is None:  # damaged: reading the weights gives the better message
        return
    limits = {f"{name}.num_layers": _layers(shapes, name) for name in ("encoder", "decoder")}
    largest = max((size for shape in shapes.values() for size in shape), default=0)
    for path, number in _integers(values):
        limit = limits.get(path, _LARGEST_INTEGER)
        if path.rpartition(".")[2] in _DIMENSIONS:  # the last name of the dotted path
            limit = min(limit, largest)
        if number > limit:
            size = f"{limit} layers" if path in limits else f"at most {limit} in any dimension"
            raise ModelError(
                f"model.{path} is {number}, and the weights have {size}",
                where=str(directory / CONFIG_FILE),
                remedy="Use the config.json that was saved with these weights; copy both again",
            )


def stored_sizes(file: Path) -> dict[str, list[int]] | None:
    """Return the tensors' shapes from the header of a safetensors file; None if it is damaged."""
    try:
        with file.open("rb") as stream:
            # 8 bytes of little-endian length, then as much JSON: no tensor is read.
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _LARGEST_HEADER:
                return None
            header = json.loads(stream.read(length))
        return {name: each["shape"] for name, each in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None


def _layers(shapes: Mapping[str, Any], stack: str) -> int:
    """Return the number of layers of a stack in the weights."""
    # `encoder.blocks.3.self_attention.query.weight`: the third field is the layer.
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


# Several threads read a large file at once; most files have one digest, which `sha256sum` prints
# as well. SHA-256 is the fastest of the standard library where processors have instructions for
# it: 1 GB on two cores in 0.5 s, BLAKE2b in 1.1 s.
CHUNK = 1 << 26
_BUFFER = 1 << 20  # bytes; hashlib releases the GIL while it hashes a buffer
_THREADS = 4

Digests = Mapping[str, Sequence[str]]
"""The hexadecimal SHA-256 of each `CHUNK` bytes of a file, by the file's name."""


def file_digests(directory: Path, *, leave_out: str) -> dict[str, list[str]]:
    """Return the digests of the files in a directory.

    Args:
        directory: directory without subdirectories.
        leave_out: name of the file that will hold the digests.
    """
    paths = sorted(path for path in directory.iterdir() if path.name != leave_out)
    return {
        path.name: [_digest(path, start) for start in _starts(path.stat().st_size)]
        for path in paths
    }


@contextmanager
def verified(directory: Path, digests: Digests) -> Iterator[None]:
    """Compare files with their digests while the block reads them.

    An error of the block has precedence: it says more than that a file has changed.

    Args:
        directory: folder of the files.
        digests: result of `file_digests`; files without digests are not checked.

    Raises:
        ModelError: at the end of the block, when a file is missing or differs; it names the file.
    """
    check = _Check(directory, digests)
    try:
        yield
    except BaseException:
        check.cancel()
        raise
    check.finish()


class _Check:
    """Threads that hash the chunks of files and keep the first difference as an error."""

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
        self._work.reverse()  # `pop` takes from the end, and is atomic, so threads need no lock
        count = min(_THREADS, os.cpu_count() or 1, len(self._work))
        # Daemons: an interrupted command must not wait for gigabytes to be hashed.
        self._threads = [threading.Thread(target=self._compare, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def cancel(self) -> None:
        """Stop each thread after its present chunk."""
        self._work.clear()

    def finish(self) -> None:
        """Wait for the threads.

        Raises:
            ModelError: when a file is missing or differs; it names the file.
        """
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _check_size(self, name: str, chunks: int) -> None:
        """Record an error for a file that is missing, or too long or short for its digests."""
        path = self._directory / name
        if not path.is_file():
            self._error = lacks(self._directory, name)
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
            except OSError:  # removed or replaced since `_check_size`
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
    """Return the offsets of a file's chunks in bytes; an empty file has one chunk."""
    return range(0, max(size, 1), CHUNK)


def _digest(path: Path, start: int) -> str:
    """Return the SHA-256 of the chunk of a file that begins at byte `start`."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(_BUFFER, max(1, path.stat().st_size - start))))
    # Unbuffered into one reused buffer: bytes are copied once.
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = CHUNK
        while left and (count := file.readinto(buffer[:left])):
            digest.update(buffer[:count])
            left -= count
    return digest.hexdigest()
