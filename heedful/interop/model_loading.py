"""Load a model from any directory, ours or another project's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heedful.interop.hf_files import is_hugging_face
from heedful.memory import ask_for_huge_pages
from heedful.models.checkpoint import load_model
from heedful.models.model_directory import locate

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.text.tokenizer_pair import TokenizerPair


def load_any(path: Path) -> tuple[AnyModel, TokenizerPair | None]:
    """A model of ours, of a run, or of a Hugging Face directory, in float32.

    Args:
        path: of a directory, or the name of a model at hand or of the hub.

    Raises:
        ModelError: when it is none of these, damaged or unknown.
        UserError: and its kinds, when a model of the hub cannot be fetched.
    """
    ask_for_huge_pages()
    path = locate(path)
    if is_hugging_face(path):
        from heedful.interop.hugging_face import import_model  # a model of ours needs none of it

        imported = import_model(path)
        return imported.model, imported.tokenizers
    return load_model(path)
