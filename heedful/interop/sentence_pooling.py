"""Pooling of sentence-transformers, which defines the vector of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heedful.interop.hf_files import read_pooling
from heedful.models.model_directory import (
    HuggingFaceConfig,
    find_model_directory,
    locate,
    read_facts,
)


def pooling_of(path: Path) -> dict[str, Any]:
    """Return the pooling that an encoder was published with; empty without one.

    Args:
        path: model, run or Hugging Face directory, or name of a model.
    """
    directory = locate(path)
    try:
        pooling: Any = read_facts(find_model_directory(directory)).origin.get("pooling")
    except HuggingFaceConfig:
        pooling = read_pooling(directory)
    return pooling or {}
