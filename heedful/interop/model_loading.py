"""Loading of a model from a Heedful or a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heedful.memory import ask_for_huge_pages
from heedful.models.model_directory import (
    HuggingFaceConfig,
    find_model_directory,
    locate,
    read_facts,
)

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.text.tokenizer_pair import TokenizerPair


def load_any(path: Path) -> tuple[AnyModel, TokenizerPair | None]:
    """Load a model in float32 from a model, run or Hugging Face directory.

    Args:
        path: directory, or the name of a local model or of a model of the hub.

    Raises:
        ModelError: when the directory holds no such model, or a damaged or unknown one.
        UserError: when a model of the hub cannot be downloaded.
    """
    from heedful.models.checkpoint import load_model  # loads PyTorch

    # PyTorch reads this setting with its first tensor, so it comes before the weights.
    ask_for_huge_pages()
    path = locate(path)
    try:
        return load_model(path)
    except HuggingFaceConfig:
        # Imported here, since a model of ours needs neither tokenizers nor architectures of theirs.
        from heedful.interop.hugging_face import import_model

    imported = import_model(path)
    return imported.model, imported.tokenizers


def stored_kind(path: Path) -> str | None:
    """Return the kind of a model without loading it; None for a Hugging Face directory.

    Args:
        path: directory or name, as for `load_any`.

    Raises:
        ModelError: when the directory holds no model, or a damaged one.
        UserError: when a model of the hub cannot be downloaded.
    """
    try:
        return read_facts(find_model_directory(path)).spec.kind
    except HuggingFaceConfig:
        return None
