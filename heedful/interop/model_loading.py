"""Load a model from any directory, ours or another project's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heedful.errors import ModelError
from heedful.interop.hf_files import CONFIG_FILE, read_json_file
from heedful.memory import ask_for_huge_pages
from heedful.models.checkpoint import load_model

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.text.tokenizer_pair import TokenizerPair


def load_any(path: Path) -> tuple[AnyModel, TokenizerPair | None]:
    """A model of ours, of a run, or of a Hugging Face directory, in float32.

    Raises:
        ModelError: when it is none of these, damaged or unknown.
    """
    ask_for_huge_pages()
    if is_hugging_face(path):
        from heedful.interop.hugging_face import import_model  # a model of ours needs none of it

        imported = import_model(path)
        return imported.model, imported.tokenizers
    return load_model(path)


def is_hugging_face(path: Path) -> bool:
    """Return whether a directory's config.json is one of Hugging Face's."""
    try:
        config = read_json_file(path / CONFIG_FILE)
    except ModelError:
        return False
    return config is not None and "model_type" in config and "schema_version" not in config
