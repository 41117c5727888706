"""Loading of a model for people: any kind, and translators that write as their models state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heedful.errors import ModelError
from heedful.interop.model_loading import load_any
from heedful.pipelines.any_pipeline import load_pipeline
from heedful.pretrained.catalogue import directory_of, languages_of


def load(
    path: str | Path | Sequence[str | Path],
    *,
    numbers: str | None = None,
    copy_unknown: bool | None = None,
    rotary: tuple[Any, Any, Any] = (None, None, None),
    **options: Any,
) -> Any:
    """Load a model; `heedful.load` has the documentation.

    Args:
        path: directory or name, or several of them.
        numbers: form of numbers in translations; as the model states if unset.
        copy_unknown: true to copy unknown words and names; as the model states if unset.
        rotary: arguments of `stretching_reader`.
        **options: arguments of `load_pipeline`.

    Raises:
        ModelError: when the directory holds no model, or the model has no such option.
        ConfigError: when an option contradicts the model or the machine.
    """
    read: Any = load_any
    if rotary != (None, None, None):
        from heedful.models.rotary_override import stretching_reader

        # Stretched by the reader, as the pipeline makes an engine of the model.
        read = stretching_reader(read, *rotary)
    pipeline = load_pipeline(path, read=read, **options)
    stated: dict[str, Any] = {"numbers": numbers, "copy_unknown": copy_unknown}
    asked = {name: value for name, value in stated.items() if value is not None}
    if "translate" not in pipeline.verbs:
        for name in asked:
            raise ModelError(
                f"Only translators have the option {name}", where=str(path), remedy="Leave it out"
            )
        return pipeline
    if not asked and pipeline.tokenizers.writing is None:
        return pipeline
    from heedful.apps.quality.stated_writing import as_stated

    first = Path(path if isinstance(path, str | Path) else path[0])
    languages: Any = languages_of(directory_of(first)) or (None, None)
    return as_stated(pipeline, languages=languages, **asked)
