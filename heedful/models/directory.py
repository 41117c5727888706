"""What a model directory says of itself, read without PyTorch: `config.json` and tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.errors import ModelError
from heedful.models.family import CausalLMSpec, EncoderSpec, ModelSpec, VisionSpec, parse_spec
from heedful.models.spec import TranslatorSpec
from heedful.text.imported import ImportedTokenizer
from heedful.text.pair import TokenizerPair

SCHEMA_VERSION = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"

TextModelSpec = TranslatorSpec | CausalLMSpec | EncoderSpec


@dataclass(frozen=True)
class ModelFacts:
    """What a model directory's `config.json` says.

    Args:
        spec: the complete description of the model.
        training: facts about its training (steps, scores), JSON types.
        origin: where an imported model came from, such as `model_type`; empty for others.
    """

    spec: ModelSpec
    training: Mapping[str, Any]
    origin: Mapping[str, Any]


def read_spec(directory: Path) -> ModelSpec:
    """The spec in a model directory's `config.json`, without loading its weights.

    Raises:
        ModelError: when the file is missing, damaged or of a newer schema.
        ConfigError: when a setting in it is unknown or wrong.
    """
    return read_facts(directory).spec


def read_facts(directory: Path) -> ModelFacts:
    """All that a model directory's `config.json` says, without loading its weights.

    Raises:
        ModelError: when the file is missing, damaged or of a newer schema.
        ConfigError: when a setting in it is unknown or wrong.
    """
    file = directory / CONFIG_FILE
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise lacks(directory, CONFIG_FILE) from None
    except (OSError, ValueError) as error:
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
    if version > SCHEMA_VERSION:
        raise ModelError(
            f"The model has schema version {version}; this Heedful reads up to {SCHEMA_VERSION}",
            where=str(file),
            remedy="Install a newer Heedful",
        )
    parts = {name: config.get(name, {}) for name in ("model", "training", "origin")}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise ModelError(
                f"Its {name!r} is no table", where=str(file), remedy="Copy the model again"
            )
    spec = parse_spec(parts["model"], where=str(file))
    return ModelFacts(spec, parts["training"], parts["origin"])


def find_model_directory(path: Path) -> Path:
    """The model directory a path means: itself, or `model/` of a run directory.

    Raises:
        ModelError: when it is neither.
    """
    for directory in (path, path / "model"):
        recover(directory)
        if (directory / CONFIG_FILE).is_file():
            return directory
    if not path.exists():
        raise ModelError(
            "No such model directory", where=str(path), remedy="Check the path, or train a model"
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
    """The tokenizers of a model directory, which must fit the model; None for images.

    Raises:
        ModelError: when a file is missing, damaged, or of another model.
    """
    if isinstance(spec, VisionSpec):
        return None
    tokenizers = TokenizerPair.load(directory)
    check_vocabulary(tokenizers, spec, where=str(directory))
    return tokenizers


def check_vocabulary(tokenizers: TokenizerPair, spec: TextModelSpec, *, where: str) -> None:
    """Refuse tokenizers of another model.

    Imported models often have more rows than their tokenizer has pieces, to a round number.

    Raises:
        ModelError: naming both sizes.
    """
    if isinstance(spec, TranslatorSpec):
        rows = (spec.source_vocabulary, spec.target_vocabulary)
    else:
        rows = (spec.vocabulary, spec.vocabulary)
    sizes = (tokenizers.source.size, tokenizers.target.size)
    padded = isinstance(tokenizers.source, ImportedTokenizer)
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
    """What to raise where a file of a model directory is not there."""
    return ModelError(
        f"The model directory lacks {name}", where=str(directory), remedy="Copy the model again"
    )


def place_of_previous(directory: Path) -> Path:
    """Where a directory stands while another takes its place."""
    return directory.with_name(f".{directory.name}.previous")


def recover(directory: Path) -> None:
    """Put back what a crash left between the two renames that replace a directory."""
    previous = place_of_previous(directory)
    if previous.is_dir() and not directory.exists():
        previous.rename(directory)
