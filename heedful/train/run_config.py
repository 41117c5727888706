"""Settings from several places: defaults, a preset, a file, flags. Later ones win."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.config import flat, merge, read_toml
from heedful.errors import ConfigError, UserError
from heedful.train.run_settings import TASK_DEFAULTS, RunSettings

CONFIG_FILE = "config.toml"

# What may differ when a run is resumed, because no past or future update depends on it. The files
# themselves are compared by content.
_FREE = (
    "preset",
    "max_steps",
    "max_minutes",
    "max_epochs",
    "on_nonfinite",
    "tensorboard",
    "validation",
    "checkpoint",
    "data.train",
    "data.valid",
    "data.cache",
)
_FIXED_WITHIN = ("validation.choose_by", "checkpoint.ema_decay")


def resolve_settings(
    preset: str | None = None,
    config_file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> RunSettings:
    """The settings of a run: defaults < those of the task < preset < file < overrides.

    Args:
        preset: a name from `heedful presets`; the file may name one too.
        config_file: TOML.
        overrides: nested plain data, from flags.

    Raises:
        ConfigError: naming the key at fault and, where it came from the file, the file.
    """
    from heedful.models.preset_files import has_spec, read_preset

    from_file = read_toml(config_file) if config_file is not None else {}
    flags = dict(overrides or {})
    name = preset or flags.get("preset") or from_file.get("preset")
    below = read_preset(name) if isinstance(name, str) else {}
    values = merge(below, from_file, flags, {"preset": name} if name is not None else {})
    task = values.get("task")
    usual = dict(TASK_DEFAULTS.get(task, {})) if isinstance(task, str) else {}
    published = isinstance(name, str) and has_spec(name)
    if published or (values.get("init") is not None and task != "images"):
        usual.pop("model", None)  # the model that training starts from has its own
    values = merge(usual, values)
    where = str(config_file) if config_file is not None else None
    settings = RunSettings.parse(values, where=where)
    settings.check_preset()
    return settings


def settings_of_run(run_dir: Path, overrides: Mapping[str, Any] | None = None) -> RunSettings:
    """The settings of an existing run, with changes; what `--resume` starts from.

    Raises:
        UserError: when there is no run.
        ConfigError: when its configuration cannot be read.
    """
    path = run_dir / CONFIG_FILE
    if not path.exists():
        raise UserError(
            "There is no run to resume here",
            where=str(run_dir),
            remedy="Check the path, or leave out --resume to start a run",
        )
    return RunSettings.parse(merge(read_toml(path), dict(overrides or {})), where=str(path))


def check_resumable(before: RunSettings, now: RunSettings) -> None:
    """Refuse changes that would make a resumed run differ from one that was never stopped.

    Raises:
        ConfigError: naming the settings.
    """
    old, new = flat(before.plain()), flat(now.plain())
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    fixed = [key for key in changed if not _is_free(key, now)]
    if fixed:
        listed = ", ".join(f"{key} ({old.get(key)!r} before)" for key in fixed)
        raise ConfigError(
            f"A run cannot be resumed with other values of {listed}",
            where=", ".join(fixed),
            remedy="Leave them as they were, or start a new run",
        )


def _is_free(key: str, settings: RunSettings) -> bool:
    if key == "max_steps" and settings.schedule.kind in ("cosine", "linear"):
        return False  # the schedule ends there, so every step's learning rate depends on it
    if any(_within(key, fixed) for fixed in _FIXED_WITHIN):
        return False
    return any(_within(key, free) for free in _FREE)


def _within(key: str, table: str) -> bool:
    return key == table or key.startswith(table + ".")
