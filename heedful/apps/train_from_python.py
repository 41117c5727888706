"""Training as one call, on files or on examples in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from heedful.apps.cleaning.training_sample import foresee
from heedful.config import merge
from heedful.data.in_memory import file_spec, write_examples, write_records
from heedful.device import standard_tensors
from heedful.errors import ConfigError, UserError
from heedful.events import Event, Events, Sink, Terminal
from heedful.train.run import RunSummary, run_training
from heedful.train.run_config import CONFIG_FILE, resolve_settings, settings_of_run
from heedful.train.run_settings import RunSettings

EXAMPLES = "examples"
"""Folder of a run with the examples that came from memory."""

_NAMES = {
    "translation": ("source", "target"),
    "classify": ("text", "label"),
    "causal_lm": ("text",),
    "masked_lm": ("text",),
    "span_corruption": ("text",),
    "denoising": ("text",),
}
"""Texts of an example by task; records of token sequences have fields of their own."""


@standard_tensors()
def train(
    data: Any = None,
    out: str | Path | None = None,
    *,
    valid: Any = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | str | Path | None = None,
    callbacks: Iterable[Sink | Callable[[Event], object]] | None = None,
    resume: bool = False,
    **options: Any,
) -> RunSummary:
    """Train a model on pairs in memory or in files; `heedful.load(out)` loads the best one.

    As on the command line, exchanged sides are refused before training, and after about twenty
    updates an event says how many fit into the budget and what as many gave before.

    Args:
        data: pairs of texts: a list or another iterable of tuples or tables, a `datasets.Dataset`,
            a data frame; or files: one path, or two `Path`s. A classifier takes texts and labels, a
            language model texts, the task `tokens` records, the task `contrast` images with
            captions, such as {"image": pixels, "caption": "a seven"}. Examples are written into the
            run, which resumes from there. Their languages are checked where `data.languages` of
            the settings gives them.
        out: run directory, created if it does not exist.
        valid: examples or files of validation, in the same forms.
        preset: preset of `heedful presets`, such as `tiny`.
        settings: further settings by name, or a TOML file.
        callbacks: functions or `heedful.events.Sink`s that get each event; a bar if None.
        resume: continuation from the newest checkpoint of `out`, without `data`.
        **options: settings at the top, such as `max_minutes=5`, `task="classify"` or `seed=2`;
            a section is a table, such as `model={"width": 128}`.

    Returns:
        The summary; `finished` is False after Ctrl-C.

    Raises:
        UserError: when a setting, a file or an example is wrong (it or a subclass).
    """
    if out is None:
        raise ConfigError("No run directory was given", remedy="Give one: out = 'run'")
    run_dir = Path(out)
    events = Events([Terminal()] if callbacks is None else list(map(_sink, callbacks)))
    file = Path(settings) if isinstance(settings, str | Path) else None
    overrides = {**(settings if isinstance(settings, Mapping) else {}), **options}
    if resume:
        if data is not None or valid is not None:
            raise ConfigError(
                "A resumed run trains on the examples it began with",
                where="resume",
                remedy="Leave data and valid out",
            )
        # The run may have moved, and its examples with it.
        moved = {each.stem: [{"file": str(each)}] for each in (run_dir / EXAMPLES).glob("*.jsonl")}
        before = settings_of_run(run_dir, merge({"data": moved} if moved else {}, overrides))
        return _run(run_dir, before, events, resume=True)
    # Before anything is written: examples of another run must stay as they are.
    if (run_dir / CONFIG_FILE).exists():
        raise UserError(
            "There is a run already",
            where=str(run_dir),
            remedy="Give resume = True to go on with it, or another directory",
        )
    sections = dict(overrides.get("data", {}))
    task = str(overrides.get("task", "translation"))
    for name, each in (("train", data), ("valid", valid)):
        if each is not None:
            sections[name] = [_corpus(each, task, run_dir / EXAMPLES / f"{name}.jsonl")]
    resolved = resolve_settings(preset, file, {**overrides, "data": sections})
    return _run(run_dir, resolved, events, resume=False)


def _run(run_dir: Path, settings: RunSettings, events: Events, *, resume: bool) -> RunSummary:
    """Train as `heedful train` does: the data is looked at first, and the budget is foretold."""
    events = foresee(settings, events, resume=resume)
    return run_training(run_dir, settings, resume=resume, events=events)


class _Called:
    """A function as a receiver of events."""

    def __init__(self, function: Callable[[Event], object]) -> None:
        self._function = function

    def handle(self, event: Event) -> None:
        """Call the function."""
        self._function(event)

    def close(self) -> None:
        """Nothing to finish."""


def _sink(callback: Any) -> Sink:
    if not callable(getattr(callback, "handle", callback)):
        raise ConfigError(
            f"An object of the type {type(callback).__name__!r} receives no events",
            where="callbacks",
            remedy="Give a function of an event, or an object with handle(event) and close()",
        )
    if hasattr(callback, "handle"):
        sink: Sink = callback
        return sink
    return _Called(callback)


def _corpus(data: Any, task: str, path: Path) -> dict[str, str]:
    """Return a corpus of files; examples from memory are written into the run first."""
    files = file_spec(data)
    if files is not None:
        return files
    if task in ("tokens", "contrast"):
        write_records(data, path)
        return {"file": str(path)}
    if task not in _NAMES:
        raise ConfigError(
            f"The task {task!r} trains on files, not on examples in memory",
            where="data",
            remedy="Write the examples to a file in the format of the task's guide",
        )
    write_examples(data, _NAMES[task], path)
    return {"file": str(path)}
