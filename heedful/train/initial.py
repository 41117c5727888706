"""Beginning with the weights of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heedful.config import flat
from heedful.errors import ModelError
from heedful.models.checkpoint import (
    find_model_directory,
    load_tokenizers,
    read_spec,
    read_weights,
)
from heedful.models.weights import load_weights

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.text.pair import TokenizerPair


def tokenizers_of(directory: Path) -> TokenizerPair | None:
    """The tokenizers of a model or run directory.

    Raises:
        ModelError: when there is no model, or its tokenizers are damaged.
    """
    directory = find_model_directory(directory)
    return load_tokenizers(directory, read_spec(directory))


def begin_with(model: AnyModel, directory: Path) -> None:
    """Put a trained model's weights into a new model of the same kind and size.

    Args:
        model: with first weights of its own.
        directory: a model or run directory.

    Raises:
        ModelError: naming the settings in which the two differ, dropout aside.
    """
    directory = find_model_directory(directory)
    before, now = flat(read_spec(directory).plain()), flat(model.spec.plain())
    different = [
        f"{key} ({before.get(key)!r} there, {now.get(key)!r} here)"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not key.endswith("dropout")
    ]
    if different:
        raise ModelError(
            f"The model to begin with is another one: {', '.join(different)}",
            where=str(directory),
            remedy="Give the dials it was trained with, for example its run's config.toml",
        )
    load_weights(model, read_weights(directory), where=str(directory))
