"""The model and batches that the settings of a run describe, read without the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heedful.config import read_toml
from heedful.errors import ConfigError
from heedful.models.model_spec import parse_spec
from heedful.models.preset_files import own_vocabulary_error
from heedful.train.run_config import resolve_settings
from heedful.train.training_memory import likely_spec

if TYPE_CHECKING:
    from heedful.models.model_spec import ModelSpec


class UsualWork(NamedTuple):
    """Defaults of a plan from a settings file, which flags override; None if unset."""

    batch_tokens: int | None = None
    max_length: int | None = None
    tokens: int | None = None


def read_settings(path: Path, vocabulary: int | None) -> tuple[ModelSpec, UsualWork]:
    """Return the model and the batch settings of a TOML file.

    Args:
        path: TOML file with settings of a run, or with a table `[spec]` as in presets.
        vocabulary: vocabulary size that replaces that of the settings.

    Raises:
        ConfigError: when the file holds neither.
        ModelError: when the spec is invalid.
    """
    values = read_toml(path)
    if isinstance(values.get("spec"), dict):
        if vocabulary is not None:
            raise own_vocabulary_error(str(path))
        return parse_spec(values["spec"], where=str(path)), UsualWork()
    changes: dict[str, Any] = {}
    data = values.get("data", {})
    if isinstance(data, dict) and "train" not in data:
        changes["data"] = {"train": []}  # settings require a corpus, a plan does not
    if vocabulary is not None:
        changes["tokenizer"] = {"vocabulary_size": vocabulary}
    settings = resolve_settings(config_file=path, overrides=changes)
    if not settings.has_text and settings.init is None:
        raise ConfigError(
            "The size of the images is unknown until they are read",
            where=str(path),
            remedy="Plan for a preset of images, such as vit-b-16",
        )
    batch = settings.data.batch_tokens
    update = None if batch == "auto" else batch * settings.optimizer.accumulate
    usual = UsualWork(
        batch_tokens=update,
        max_length=settings.data.max_length if settings.cuts_windows else None,
        tokens=update * settings.max_steps if update and "max_steps" in values else None,
    )
    return likely_spec(settings), usual
