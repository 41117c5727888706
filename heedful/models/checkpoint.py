"""Reading and writing model directories: `config.json`, `model.safetensors` and tokenizers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from heedful.durable import sync
from heedful.errors import ModelError, RunError
from heedful.models.build import build_around, canonical_weights
from heedful.models.model_directory import (
    COMPACT_VERSION,
    CONFIG_FILE,
    SCHEMA_VERSION,
    WEIGHTS_FILE,
    file_digests,
    find_model_directory,
    lacks,
    load_tokenizers,
    no_translator,
    place_of_previous,
    read_facts,
    verified,
)
from heedful.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.models.compact_weights import Storage
    from heedful.models.translator import Translator


def save_model(
    model: nn.Module,
    tokenizers: TokenizerPair | None,
    directory: Path,
    *,
    training: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
    storage: Storage | None = None,
) -> None:
    """Write a model directory, or replace one, in one step: no reader sees half of it.

    Args:
        model: result of `build_model`.
        tokenizers: tokenizers of source and target; a joint pair where there is one tokenizer, None
            for a model of images.
        directory: directory to write; its parent must exist.
        training: facts about the training (steps, scores), JSON types.
        origin: source of an imported model, JSON types.
        storage: stored type of the weights of a float32 model; their own type if None.

    Raises:
        RunError: when the disk is full or the directory cannot be written.
        ModelError: when a weight is too large for the storage.
    """
    config = {
        # The older version is written where it suffices, so that older versions of Heedful read the
        # model.
        "schema_version": COMPACT_VERSION if storage == "int8" else SCHEMA_VERSION,
        "model": cast("AnyModel", model).spec.plain(),
        "training": dict(training or {}),
    }
    if origin:
        config["origin"] = dict(origin)
    # safetensors refuses tensors that are not contiguous.
    weights = {name: t.contiguous() for name, t in canonical_weights(model).items()}
    if storage is not None:
        from heedful.models.compact_weights import compact

        arrays = {name: t.detach().float().cpu().numpy() for name, t in weights.items()}
        weights = {name: torch.from_numpy(a) for name, a in compact(arrays, storage).items()}

    def write(fresh: Path) -> None:
        # Hugging Face libraries ask for this entry before they load a file.
        save_file(weights, str(fresh / WEIGHTS_FILE), metadata={"format": "pt"})
        if tokenizers is not None:
            tokenizers.save(fresh)
        # This file is written last, as it holds the digests of the other files.
        files = {"files": file_digests(fresh, leave_out=CONFIG_FILE)}
        text = json.dumps(config | files, indent=2, ensure_ascii=False)
        (fresh / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")

    write_directory(directory, write)


def write_directory(directory: Path, write: Callable[[Path], None]) -> None:
    """Write a directory of files, or replace one, in one step.

    Args:
        directory: directory to write; its parent must exist.
        write: function that fills an empty directory.

    Raises:
        RunError: when the disk is full or the directory cannot be written.
    """
    # The new directory lies beside the old one, as a rename must not cross file systems.
    fresh = directory.with_name(f".{directory.name}.writing")
    try:
        shutil.rmtree(fresh, ignore_errors=True)  # left by a process that was killed
        fresh.mkdir()
        write(fresh)
        # Files are synced before the rename: a power cut could otherwise leave complete names of
        # empty files.
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
    except BaseException:  # Ctrl-C, too
        shutil.rmtree(fresh, ignore_errors=True)
        raise


ReadModel = Callable[[Path], tuple["AnyModel", "TokenizerPair | None"]]
"""Function from a directory to a model and its tokenizers; None for a model of images."""


def load_model(directory: Path) -> tuple[AnyModel, TokenizerPair | None]:
    """Read a model directory, or a run directory's best model; the model is in eval mode.

    Returns:
        The model in float32, and its tokenizers; None for a model of images.

    Raises:
        ModelError: when it is no model directory, of a newer schema, damaged or inconsistent.
    """
    directory = find_model_directory(directory)
    facts = read_facts(directory)
    try:
        with verified(directory, facts.digests):
            # Weights are read inside of the block: other threads hash the files meanwhile.
            tokenizers = load_tokenizers(directory, facts.spec)
            weights = _read_tensors(directory)
            model = build_around(facts.spec, weights, where=str(directory / WEIGHTS_FILE))
    except ModelError:
        if read_facts(directory).digests == facts.digests:
            raise
        return load_model(directory)  # training replaced the directory between two reads
    return model.eval(), tokenizers


def load_translator(
    directory: Path, read: ReadModel = load_model
) -> tuple[Translator, TokenizerPair]:
    """Read a model directory that must hold a translator.

    Args:
        directory: model directory.
        read: reader of the directory.

    Raises:
        ModelError: when `read` fails, or the model is of another kind.
    """
    model, tokenizers = read(directory)
    if model.spec.kind != "translator" or tokenizers is None:
        raise no_translator(model.spec.kind, str(directory))
    return model, tokenizers


def read_weights(directory: Path) -> dict[str, Tensor]:
    """Read the tensors of a model directory under their canonical names, as they are stored.

    Raises:
        ModelError: when the file is missing or damaged.
    """
    digests = read_facts(directory).digests
    # Only this file is checked: tokenizers are not read here, and version 1 has no digests.
    weights_digests = {name: digests[name] for name in digests if name == WEIGHTS_FILE}
    with verified(directory, weights_digests):
        return _read_tensors(directory)


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    """Read the tensors of a model directory without comparing digests."""
    file = directory / WEIGHTS_FILE
    try:
        tensors = load_file(str(file))
        if not any(tensor.dtype == torch.int8 for tensor in tensors.values()):
            return tensors
        from heedful.models.compact_weights import restore

        # The conversion is done in NumPy, as the command line without PyTorch uses it too.
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        return {name: torch.from_numpy(array) for name, array in restore(arrays).items()}
    except FileNotFoundError:
        raise lacks(directory, WEIGHTS_FILE) from None
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The weights cannot be read: {error}",
            where=str(file),
            remedy="The file is damaged; copy it again or use another checkpoint",
        ) from None


def _swap(fresh: Path, directory: Path) -> None:
    """Put `fresh` in the place of `directory`; see `recover` for a crash between the renames."""
    previous = place_of_previous(directory)
    if directory.exists():
        shutil.rmtree(previous, ignore_errors=True)
        # A rename cannot replace a directory that is not empty.
        directory.rename(previous)
    fresh.rename(directory)
    sync(directory.parent)  # renames are entries of the parent
    shutil.rmtree(previous, ignore_errors=True)
