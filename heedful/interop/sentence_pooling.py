"""Pooling of sentence-transformers: the files beside an encoder that define a text's vector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heedful.interop.hf_files import read_bytes, read_json_file
from heedful.models.model_directory import (
    HuggingFaceConfig,
    find_model_directory,
    locate,
    read_facts,
)

MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"

_MODES = {"cls_token": "first", "cls": "first", "mean_tokens": "mean", "mean": "mean"} | {
    "max_tokens": "max",
    "max": "max",
}
_PREFIX = "pooling_mode_"


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


def read_pooling(directory: Path) -> dict[str, Any] | None:
    """Return the pooling of a directory of sentence-transformers; None without one.

    Args:
        directory: Hugging Face directory.

    Returns:
        `mode`, which is `first`, `mean` or `max`, and `normalize`; or `refusal`, a sentence about
        what the vectors need and Heedful lacks. The encoder itself may serve all the same.

    Raises:
        ModelError: when a file is damaged.
    """
    config = read_json_file(directory / POOLING_FILE)
    if config is None:
        return None
    try:
        modules = json.loads(read_bytes(directory / MODULES_FILE).decode())
        classes = [str(each["type"]) for each in modules]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"refusal": f"{MODULES_FILE} beside its pooling is no list of modules"}
    # `sentence_transformers.models.Normalize`: the class decides, in whatever package it is.
    kinds = [name.rpartition(".")[2] for name in classes]
    others = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if others:
        return {"refusal": f"Its vectors go through further modules: {', '.join(others)}"}
    # Newer versions name the mode, older ones have a flag for each.
    named = config.get("pooling_mode")
    flags = [
        key.removeprefix(_PREFIX) for key, on in config.items() if key.startswith(_PREFIX) and on
    ]
    chosen = [named] if isinstance(named, str) else flags
    if len(chosen) != 1 or chosen[0] not in _MODES:
        return {"refusal": f"Its texts are pooled by {' and '.join(map(str, chosen)) or 'nothing'}"}
    return {"mode": _MODES[chosen[0]], "normalize": "Normalize" in kinds}
