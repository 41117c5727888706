"""Model directories: `config.json`, `model.safetensors` and tokenizers, read and written whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from heedful.durable import sync
from heedful.errors import ModelError, RunError
from heedful.models.spec import TranslatorSpec
from heedful.models.translator import Translator
from heedful.models.weights import canonical_weights, load_weights
from heedful.text.pair import TokenizerPair

SCHEMA_VERSION = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_model(
    model: Translator,
    tokenizers: TokenizerPair,
    directory: Path,
    *,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a model directory, or replace one, in one step: never half of it is seen.

    Args:
        model: the model; its weights are stored in the dtype they have.
        tokenizers: what turns raw text into its ids and back.
        directory: where to; its parent must exist.
        training: facts about its training worth keeping (steps, scores), JSON types.

    Raises:
        RunError: when the disk is full or the directory cannot be written.
    """
    config = {
        "schema_version": SCHEMA_VERSION,
        "model": model.spec.plain(),
        "training": dict(training or {}),
    }
    fresh = directory.with_name(f".{directory.name}.writing")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (fresh / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
        weights = {name: t.contiguous() for name, t in canonical_weights(model).items()}
        save_file(weights, str(fresh / WEIGHTS_FILE), metadata={"format": "pt"})
        tokenizers.save(fresh)
        for file in fresh.iterdir():
            sync(file)
        _swap(fresh, directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise RunError(
            f"The model cannot be written: {error}",
            where=str(directory),
            remedy="Free some space or give a directory that can be written",
        ) from error


def load_model(directory: Path) -> tuple[Translator, TokenizerPair]:
    """Read a model directory, or a run directory's best model; the model is in eval mode.

    Raises:
        ModelError: when it is no such directory, of a newer schema, damaged or inconsistent.
    """
    directory = find_model_directory(directory)
    spec = read_spec(directory)
    tokenizers = TokenizerPair.load(directory)
    sizes = (tokenizers.source.size, tokenizers.target.size)
    if sizes != (spec.source_vocabulary, spec.target_vocabulary):
        raise ModelError(
            f"The tokenizers have {sizes[0]} and {sizes[1]} pieces, the model "
            f"{spec.source_vocabulary} and {spec.target_vocabulary}",
            where=str(directory),
            remedy="Use the tokenizer files that were saved with this model",
        )
    file = directory / WEIGHTS_FILE
    try:
        weights = load_file(str(file))
    except FileNotFoundError:
        raise _lacks(directory, WEIGHTS_FILE) from None
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The weights cannot be read: {error}",
            where=str(file),
            remedy="The file is damaged; copy it again or use another checkpoint",
        ) from None
    with torch.random.fork_rng(devices=[]):  # its first weights are thrown away: draw nothing
        model = Translator(spec)
    load_weights(model, weights, where=str(file))
    return model.eval(), tokenizers


def read_spec(directory: Path) -> TranslatorSpec:
    """The spec in a model directory's `config.json`, without loading its weights.

    Raises:
        ModelError: when the file is missing, damaged or of a newer schema.
        ConfigError: when a setting in it is unknown or wrong.
    """
    file = directory / CONFIG_FILE
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _lacks(directory, CONFIG_FILE) from None
    except (OSError, ValueError) as error:
        raise ModelError(
            f"Cannot be read as JSON: {error}", where=str(file), remedy="Copy the model again"
        ) from None
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
    return TranslatorSpec.parse(config.get("model", {}), where=str(file))


def find_model_directory(path: Path) -> Path:
    """The model directory a path means: itself, or `model/` of a run directory.

    Raises:
        ModelError: when it is neither.
    """
    for directory in (path, path / "model"):
        _recover(directory)
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


def _lacks(directory: Path, name: str) -> ModelError:
    return ModelError(
        f"The model directory lacks {name}", where=str(directory), remedy="Copy the model again"
    )


def _previous(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.previous")


def _swap(fresh: Path, directory: Path) -> None:
    """Put `fresh` in the place of `directory`; see `_recover` for a crash in between."""
    previous = _previous(directory)
    if directory.exists():
        shutil.rmtree(previous, ignore_errors=True)
        directory.rename(previous)
    fresh.rename(directory)
    sync(directory.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _recover(directory: Path) -> None:
    """Put back what a crash left between the two renames of `_swap`."""
    previous = _previous(directory)
    if previous.is_dir() and not directory.exists():
        previous.rename(directory)
