"""Files beside the weights that say what a model reads and writes, as config.json does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.interop.image_processor import PREPROCESSOR_FILE as PREPROCESSOR_FILE
from heedful.interop.image_processor import with_image_preprocessor, with_pixels
from heedful.interop.sound_processor import with_features, with_prompt
from heedful.text.tokenizer_pair import TokenizerPair

_SEEING = ("images", "images_and_texts")


def complete(
    spec: Any, directory: Path, config: Mapping[str, Any], tokenizers: TokenizerPair | None
) -> Any:
    """Return the spec of a model with what files beside config.json say of it.

    Args:
        spec: spec by config.json.
        directory: directory of the files.
        config: content of config.json.
        tokenizers: tokenizers of the model; None for a model of images.

    Raises:
        ModelError: when a file asks for a step that is not supported here.
        ConfigError: when a number is out of range.
    """
    if spec.reads in _SEEING:
        return with_pixels(directory, spec)
    if spec.reads == "sounds":
        assert tokenizers is not None
        return with_prompt(spec, directory, config, tokenizers.target)
    return spec


def with_preprocessor(files: Mapping[str, Any], spec: Any) -> dict[str, Any]:
    """Return the companion files of an export with a preprocessor_config.json, if it needs one.

    Args:
        files: contents of companion files by name.
        spec: spec of the model.
    """
    if spec.reads in _SEEING:
        return with_image_preprocessor(files, spec)
    return with_features(files, spec) if spec.reads == "sounds" else dict(files)
