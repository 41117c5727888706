"""A run's directory: its settings, merged from several sources, its lock and its files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from heedful.config import dump_toml, flat, merge, read_toml
from heedful.durable import replace_synced, try_lock
from heedful.errors import ConfigError, UserError
from heedful.events import Events, MetricsFile, Sink
from heedful.models.preset_files import has_spec, read_preset
from heedful.pretrained.catalogue import pinned
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.run_settings import RunSettings
from heedful.train.task_rules import TASK_DEFAULTS, base_task
from heedful.train.trackers import SafeTracker, TrackedRun, trackers_of

CONFIG_FILE = "config.toml"
METRICS_FILE = "metrics.jsonl"

# Settings that may differ when a run is resumed, since no update depends on them. Data files may
# move: they are compared by content.
_FREE = (
    "preset",
    "max_steps",
    "max_minutes",
    "max_epochs",
    "on_nonfinite",
    "tensorboard",
    "trackers",
    "validation",
    "checkpoint",
    "checkpointing",
    "data.train",
    "data.valid",
    "data.cache",
    "parallel",
    "data.workers",
)
# Exceptions within these sections: with another value, the best score so far and the moving average
# would not be comparable.
_FIXED_WITHIN = ("validation.choose_by", "checkpoint.ema_decay")


def resolve_settings(
    preset: str | None = None,
    config_file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> RunSettings:
    """Merge the settings of a run: general defaults < task defaults < preset < file < overrides.

    Args:
        preset: preset from `heedful presets`; the file may name one too.
        config_file: TOML file with settings.
        overrides: nested plain data from flags.

    Raises:
        ConfigError: when a setting is wrong; its key is named, and the file that it comes from.
    """
    from_file = read_toml(config_file) if config_file is not None else {}
    flags = dict(overrides or {})
    name = preset or flags.get("preset") or from_file.get("preset")
    below = read_preset(name) if isinstance(name, str) else {}
    values = merge(below, from_file, flags, {"preset": name} if name is not None else {})
    task = values.get("task")
    usual = dict(TASK_DEFAULTS.get(base_task(task), {})) if isinstance(task, str) else {}
    shape = values.get("model")
    recurs = isinstance(shape, Mapping) and ("recurrent" in shape or "convolution" in shape)
    # A preset with weights or an initial model brings its own shape, and the task's defaults would
    # count as flags that contradict it; for recurrent and convolutional blocks they make no sense.
    if recurs or values.get("init") is not None or (isinstance(name, str) and has_spec(name)):
        usual.pop("model", None)
    values = merge(usual, values)
    where = str(config_file) if config_file is not None else None
    settings = RunSettings.parse(values, where=where)
    settings.check_preset()
    return settings


def settings_of_run(
    run_dir: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    config_file: Path | None = None,
) -> RunSettings:
    """Read the settings of an existing run and apply others, for `--resume`.

    Args:
        run_dir: run directory.
        overrides: nested plain data from flags.
        preset, config_file: arguments of `resolve_settings`, below the overrides.

    Raises:
        UserError: when the directory has no run.
        ConfigError: when its configuration cannot be read.
    """
    path = run_dir / CONFIG_FILE
    if not path.exists():
        raise UserError(
            "There is no run to resume here",
            where=str(run_dir),
            remedy="Check the path, or leave out --resume to start a run",
        )
    below = read_preset(preset) if preset is not None else {}
    from_file = read_toml(config_file) if config_file is not None else {}
    values = merge(read_toml(path), below, from_file, dict(overrides or {}))
    return RunSettings.parse(values, where=str(path))


def with_choices_of_run(run_dir: Path, settings: RunSettings) -> RunSettings:
    """Fill open settings of a resumed run with the choices made when it began.

    Args:
        run_dir: run directory.
        settings: settings of the resumed run; for restarted processes those of the command.
    """
    began = settings_of_run(run_dir)
    # `auto` depends on the free memory of the moment; a resumed run needs the batches it had.
    if settings.data.batch_tokens == "auto":
        settings = settings.with_batch_tokens(began.data.budget)
    if settings.parallel.parts is None and began.parallel.parts is not None:
        settings = settings.with_parts(began.parallel.parts)
    return settings


def with_pinned_init(run_dir: Path, settings: RunSettings, *, resume: bool) -> RunSettings:
    """Pin an initial model named as on the hub (OWNER/NAME) to a commit.

    A resumed run keeps the commit that it began with.

    Args:
        run_dir: run directory.
        settings: settings of the new or resumed run.
        resume: true for a resumed run.

    Raises:
        UserError: when the model cannot be fetched (it or a subclass).
    """
    if settings.init is None:
        return settings
    if not resume:
        return settings.model_copy(update={"init": pinned(settings.init)})
    before = settings_of_run(run_dir).init
    # The stored name is NAME@COMMIT; another name is a change, which `check_resumable` refuses.
    same = before is not None and before.rpartition("@")[0] == settings.init
    return settings.model_copy(update={"init": before}) if same else settings


def check_resumable(before: RunSettings, now: RunSettings) -> None:
    """Refuse changes of settings that would make a resumed run differ from an unstopped one.

    Raises:
        ConfigError: when there are such changes; the settings are named.
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
    if key == "max_steps" and settings.schedule.ends:
        return False  # every step's learning rate depends on where the schedule ends
    if any(_within(key, fixed) for fixed in _FIXED_WITHIN):
        return False
    return any(_within(key, free) for free in _FREE)


def _within(key: str, table: str) -> bool:
    return key == table or key.startswith(table + ".")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """A context that locks the run directory; the system frees the lock of a killed process.

    Raises:
        UserError: when another process holds the lock, or the directory is not writable.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # An open file is locked; a lock by existence would stay behind a killed process.
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
    """Refuse a directory that a new run would overwrite, or without a run to resume.

    Raises:
        UserError: when the directory holds a run, or lacks the one to resume.
        ConfigError: when the settings of a resumed run have changed, or a tracker is missing.
    """
    trackers_of(settings)
    if resume:
        check_resumable(settings_of_run(run_dir), settings)
        return
    exists = (run_dir / CONFIG_FILE).exists()
    # A run that saved neither model nor checkpoint lost nothing, and may start again.
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
    """Load the tokenizers of an existing run; None for tasks without text."""
    return TokenizerPair.load(run_dir / "tokenizer") if settings.has_text else None


def write_run(run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None) -> None:
    """Write tokenizers and settings; `config.toml` comes last, as it marks a directory as a run."""
    if tokenizers is not None:
        write_tokenizers(run_dir, tokenizers.files())
    replace_synced(run_dir / CONFIG_FILE, dump_toml(settings.plain()).encode())


def write_tokenizers(run_dir: Path, files: Mapping[str, str]) -> None:
    """Write the files of tokenizers, given as content by name, into a run directory."""
    (run_dir / "tokenizer").mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = run_dir / "tokenizer" / name
        # Unchanged files stay untouched: on a shared folder other processes may be reading them.
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            replace_synced(path, content.encode())


@contextmanager
def recorded(
    run_dir: Path, events: Events, step: int | None, settings: RunSettings
) -> Iterator[Events]:
    """A context with events that also go to files of the run directory and to trackers.

    Args:
        run_dir: run directory.
        events: events of the caller.
        step: step of the checkpoint to resume from; None for a new run.
        settings: settings of the run, which name its trackers.

    Raises:
        ConfigError: when a tracker cannot begin.
    """
    run = TrackedRun(run_dir, settings.plain(), step)
    # One that cannot begin, or end, must not leave the others open.
    with ExitStack() as stack:
        # Records after `step` are dropped: the resumed run writes them again.
        sinks: list[Sink] = [
            stack.enter_context(closing(MetricsFile(run_dir / METRICS_FILE, step)))
        ]
        for tracker in trackers_of(settings):
            sinks.append(stack.enter_context(closing(SafeTracker(tracker, run, events))))
        yield events.also(*sinks)
