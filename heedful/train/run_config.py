"""A run's directory: its settings, from several places, its lock and its files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heedful.config import dump_toml, flat, merge, read_toml
from heedful.durable import replace_synced, try_lock
from heedful.errors import ConfigError, UserError
from heedful.events import Events, MetricsFile, Sink, TensorBoard
from heedful.pretrained.catalogue import pinned
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.run_settings import TASK_DEFAULTS, RunSettings

CONFIG_FILE = "config.toml"
METRICS_FILE = "metrics.jsonl"

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
    "checkpointing",
    "data.train",
    "data.valid",
    "data.cache",
    "parallel",
    "data.workers",
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
    if published or values.get("init") is not None:
        usual.pop("model", None)  # the model that training starts from has its own
    shape = values.get("model")
    if isinstance(shape, Mapping) and ("recurrent" in shape or "convolution" in shape):
        usual.pop("model", None)  # it is of blocks of attention
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


def with_choices_of_run(run_dir: Path, settings: RunSettings) -> RunSettings:
    """The settings of a resumed run: what they leave open is what was picked when it began.

    Args:
        run_dir: the run.
        settings: with which it is resumed; of processes that start anew those of the command.
    """
    began = settings_of_run(run_dir)
    if settings.data.batch_tokens == "auto":
        settings = settings.with_batch_tokens(began.data.budget)
    if settings.parallel.parts is None and began.parallel.parts is not None:
        settings = settings.with_parts(began.parallel.parts)
    return settings


def with_pinned_init(run_dir: Path, settings: RunSettings, *, resume: bool) -> RunSettings:
    """The settings with the commit of an initial model that is named as on the hub.

    A resumed run begins with the commit it began with.

    Args:
        run_dir: the run.
        settings: with which it begins or is resumed.
        resume: whether it is resumed.

    Raises:
        UserError: and its kinds, when the model cannot be fetched.
    """
    if settings.init is None:
        return settings
    if not resume:
        return settings.model_copy(update={"init": pinned(settings.init)})
    before = settings_of_run(run_dir).init
    same = before is not None and before.rpartition("@")[0] == settings.init
    return settings.model_copy(update={"init": before}) if same else settings


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


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """A context that holds the run directory; the system frees it also when the process is killed.

    Raises:
        UserError: when another process holds it, or nothing can be written there.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(
            f"Cannot write in the run directory: {error.strerror}",
            where=str(directory),
            remedy="Make it writable or name another one",
        ) from None
    try:
        if not try_lock(descriptor):
            raise UserError(
                "Another process is training in this run directory",
                where=str(directory),
                remedy="Wait for it or name another directory",
            )
        yield
    finally:
        os.close(descriptor)


def check_directory(run_dir: Path, settings: RunSettings, *, resume: bool) -> None:
    """Refuse a directory in use. A run that has saved nothing yet may start again.

    Raises:
        UserError: when there is a run, or there is none to resume.
        ConfigError: when the settings of a resumed run have changed.
    """
    if resume:
        check_resumable(settings_of_run(run_dir), settings)
        return
    exists = (run_dir / CONFIG_FILE).exists()
    for result in (run_dir / "model", *(run_dir / "checkpoints").glob("*step-*")):
        if result.exists() and exists:
            raise UserError(
                "There is a run here already",
                where=str(run_dir),
                remedy="Add --resume to go on with it, or name another directory",
            )
        if result.exists():
            raise UserError(
                f"The directory is not a run, but has {result.name!r}, which a run would overwrite",
                where=str(run_dir),
                remedy="Name an empty or new directory",
            )


def saved_tokenizers(run_dir: Path, settings: RunSettings) -> TokenizerPair | None:
    """The tokenizers of a run that began before; None where the examples are no text."""
    return TokenizerPair.load(run_dir / "tokenizer") if settings.has_text else None


def write_run(run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None) -> None:
    """Write the files that make the directory a run; config.toml comes last."""
    if tokenizers is not None:
        (run_dir / "tokenizer").mkdir(exist_ok=True)
        for name, content in tokenizers.files().items():
            replace_synced(run_dir / "tokenizer" / name, content.encode())
    replace_synced(run_dir / CONFIG_FILE, dump_toml(settings.plain()).encode())


@contextmanager
def recorded(
    run_dir: Path, events: Events, step: int | None, *, tensorboard: bool
) -> Iterator[Events]:
    """A context whose events are also written into the directory.

    Args:
        run_dir: the run.
        events: of the caller.
        step: that the run is resumed from; None when it begins.
        tensorboard: also write TensorBoard's files.
    """
    sinks: list[Sink] = [MetricsFile(run_dir / METRICS_FILE, step)]
    if tensorboard:
        sinks.append(TensorBoard(run_dir / "tensorboard", step))
    try:
        yield events.also(*sinks)
    finally:
        for sink in sinks:
            sink.close()
