"""Model directories: `config.json`, `model.safetensors` and tokenizers, read and written whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from heedful.durable import sync
from heedful.errors import ModelError, RunError
from heedful.models.build import build_model
from heedful.models.family import CausalLMSpec, EncoderSpec, ModelSpec, VisionSpec, parse_spec
from heedful.models.spec import TranslatorSpec
from heedful.models.translator import Translator
from heedful.models.weights import canonical_weights, load_weights
from heedful.nn.undrawn import undrawn
from heedful.text.imported import ImportedTokenizer
from heedful.text.pair import TokenizerPair

if TYPE_CHECKING:
    from heedful.models.build import AnyModel

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


def save_model(
    model: nn.Module,
    tokenizers: TokenizerPair | None,
    directory: Path,
    *,
    training: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write a model directory, or replace one, in one step: never half of it is seen.

    Args:
        model: what `build_model` built; its weights are stored in the dtype they have.
        tokenizers: what turns raw text into its ids and back; a joint pair where there is one
            tokenizer, None for a model of images.
        directory: where to; its parent must exist.
        training: facts about its training worth keeping (steps, scores), JSON types.
        origin: where an imported model came from, JSON types.

    Raises:
        RunError: when the disk is full or the directory cannot be written.
    """
    config = {
        "schema_version": SCHEMA_VERSION,
        "model": cast("AnyModel", model).spec.plain(),
        "training": dict(training or {}),
    }
    if origin:
        config["origin"] = dict(origin)
    weights = {name: t.contiguous() for name, t in canonical_weights(model).items()}

    def write(fresh: Path) -> None:
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (fresh / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
        save_file(weights, str(fresh / WEIGHTS_FILE), metadata={"format": "pt"})
        if tokenizers is not None:
            tokenizers.save(fresh)

    write_directory(directory, write)


def write_directory(directory: Path, write: Callable[[Path], None]) -> None:
    """Write a directory of files, or replace one, in one step.

    Args:
        directory: where to; its parent must exist.
        write: fills the empty directory it is given.

    Raises:
        RunError: when the disk is full or the directory cannot be written.
    """
    fresh = directory.with_name(f".{directory.name}.writing")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        write(fresh)
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
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


ReadModel = Callable[[Path], tuple["AnyModel", "TokenizerPair | None"]]
"""Reads a model and its tokenizers; None for a model of images."""


def load_model(directory: Path) -> tuple[AnyModel, TokenizerPair | None]:
    """Read a model directory, or a run directory's best model; the model is in eval mode.

    Returns:
        The model in float32, and its tokenizers; None for a model of images.

    Raises:
        ModelError: when it is no such directory, of a newer schema, damaged or inconsistent.
    """
    directory = find_model_directory(directory)
    spec = read_spec(directory)
    tokenizers = load_tokenizers(directory, spec)
    weights = read_weights(directory)
    with undrawn():
        model = build_model(spec)
    load_weights(model, weights, where=str(directory / WEIGHTS_FILE))
    return model.eval(), tokenizers


def load_translator(
    directory: Path, read: ReadModel = load_model
) -> tuple[Translator, TokenizerPair]:
    """A model for those who can use nothing but a translator.

    Args:
        directory: where it is.
        read: what reads it.

    Raises:
        ModelError: as `read`, and when the model is of another kind.
    """
    model, tokenizers = read(directory)
    if not isinstance(model, Translator) or tokenizers is None:
        raise ModelError(
            f"This model is no translator; its kind is {model.spec.kind!r}",
            where=str(directory),
            remedy="Give a model that was trained on pairs of texts",
        )
    return model, tokenizers


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


def read_weights(directory: Path) -> dict[str, Tensor]:
    """The tensors of a model directory under their canonical names, as they are stored.

    Raises:
        ModelError: when the file is missing or damaged.
    """
    file = directory / WEIGHTS_FILE
    try:
        return load_file(str(file))
    except FileNotFoundError:
        raise _lacks(directory, WEIGHTS_FILE) from None
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The weights cannot be read: {error}",
            where=str(file),
            remedy="The file is damaged; copy it again or use another checkpoint",
        ) from None


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
        raise _lacks(directory, CONFIG_FILE) from None
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
