"""`heedful train`: train a model from sentence pairs, text or images."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter, validators

from heedful.cli.parser import flags_of, overrides
from heedful.cli.text_io import Output, Report, say, terminal
from heedful.config import merge
from heedful.data.corpus_spec import PAIR_FORMS, SHARD_INDEX
from heedful.errors import ConfigError, UserError
from heedful.train.run_settings import RunSettings
from heedful.train.task_rules import takes_pairs

# The flags --train, --valid and --preset set these; in a settings file corpora are tables.
_NOT_FLAGS = ("data.train", "data.valid", "preset")

_MOST_USED = Group("Most used", sort_key=0)
# What a person asks first: the budget, where to start from, how large, and on which device.
_FIRST = (
    *("task", "max_minutes", "max_steps", "init", "device", "seed", "data.batch_tokens"),
    *("tokenizer.vocabulary_size", "model.width", "model.encoder_layers", "model.decoder_layers"),
)

if TYPE_CHECKING:
    from heedful.train.run import RunSummary

    SettingsFlags = Any
else:
    SettingsFlags = flags_of(RunSettings, "Run", skip=_NOT_FLAGS, first=_FIRST, leading=_MOST_USED)

_CORPORA = Parameter(group=_MOST_USED, consume_multiple=True)
_USED = Parameter(group=_MOST_USED)
_PROCESSES = Parameter(group=Group("Processes", sort_key=2))


def train(
    run: Path,
    /,
    *,
    train: Annotated[list[str] | None, _CORPORA] = None,
    valid: Annotated[list[str] | None, _CORPORA] = None,
    weights: Annotated[list[float] | None, _CORPORA] = None,
    task_prefixes: Annotated[list[str] | None, _CORPORA] = None,
    preset: Annotated[str | None, _USED] = None,
    config: Annotated[Path | None, _USED] = None,
    resume: Annotated[bool, _USED] = False,
    processes: Annotated[int, _PROCESSES, Parameter(validator=validators.Number(gte=1))] = 1,
    restarts: Annotated[int, _PROCESSES, Parameter(validator=validators.Number(gte=0))] = 3,
    settings: SettingsFlags | None = None,
    output: Output = Output(),
) -> int:
    """Train a translator from sentence pairs, or another model from text or images.

    RUN/model holds the model, its tokenizer and its settings after the first validation, and is
    replaced whenever validation improves. Ctrl-C saves and stops; `--resume` continues, bit for bit
    as if the run had not stopped. `--task causal_lm` trains a language model on text,
    `--task masked_lm` an encoder, `--task span_corruption` and `--task denoising` an
    encoder-decoder, and `--task classify` a classifier on labelled texts.

    For example:

        heedful train run --preset tiny --train train.en train.de --valid valid.en valid.de
        heedful train run --task causal_lm --train books.txt --valid other.txt
        heedful train run --task classify --train train.tsv --valid valid.tsv
        heedful train run --task images --train photos --valid other-photos
        heedful train run --preset transformer-base --processes 2 --train train.en train.de

    Every setting below is also a key of the TOML file --config: `--model.width 256` is
    `width = 256` in the table `[model]`. RUN/config.toml records all of them.

    Args:
        run: Folder for the run and its model, created if missing.
        train: Training files; several corpora follow one another. Translation: source and target
            files, aligned line by line, or one file of pairs (.tsv, .csv, .jsonl, .parquet, .arrow,
            .tar) or a folder of such files. Language models: files of text. Classifiers: .tsv,
            .jsonl or other tables of texts with labels. Images: IDX files of images and labels, or
            a folder with a subfolder of images for each label; with captions also a .jsonl file.
            Text files may be .gz or .zst.
        valid: Validation files, in the format of --train.
        weights: Number of passes over each corpus of --train in an epoch; 0.5 reads half of it.
        task_prefixes: Text before the sources of each corpus of --train, and of --valid in the same
            order, for one model of several tasks, such as "summarise: " "answer: ".
        preset: Named settings or model size to start from; `heedful presets` lists them with their
            tasks.
        config: TOML file of settings; it overrides the preset, and flags override it.
        resume: Continue from the last checkpoint of the run, with its settings.
        processes: Number of training processes on this machine; --parallel.* divides the work among
            them. For several machines, start the command with torchrun on each.
        restarts: Number of times that all processes restart from the last checkpoint after one was
            lost.
    """
    values = overrides(settings)
    pairs = takes_pairs(_task(run, config, values, resume=resume))
    values = merge(values, corpora_settings(train, valid, weights, task_prefixes, pairs=pairs))
    report = Report("train", output, run=run, preset=preset, overrides=values, resume=resume)
    if not train and config is None and not resume:
        raise UserError(
            "There is nothing to train on",
            where="heedful train",
            remedy="Name the pairs: --train SOURCE_FILE TARGET_FILE (or one .tsv or .jsonl file)"
            if pairs
            else "Name the text: --train FILE",
        )
    resolved = _resolve(run, preset, config, values, resume=resume)
    if processes > 1 and "WORLD_SIZE" not in os.environ:
        from heedful.apps.launcher import launch

        return launch(sys.argv[1:], resolved, processes, restarts)

    def work() -> int:
        return _train(run, resolved, report, resume=resume, output=output)

    if "WORLD_SIZE" not in os.environ:
        return work()
    from heedful.apps.launcher import run_worker
    from heedful.cli.main import report_error

    return run_worker(work, report_error)


def _train(
    run: Path, settings: RunSettings, report: Report, *, resume: bool, output: Output
) -> int:
    from heedful.apps.cleaning.training_sample import foresee
    from heedful.train.run import run_training

    with terminal() as events:
        events = foresee(settings, events, resume=resume)
        summary = run_training(run, settings, resume=resume, events=events)
    if os.environ.get("RANK", "0") != "0":
        return summary.exit_status  # the first process reports
    if not output.json:
        _show(run, summary)
    facts = summary.plain()
    # Seconds of all calls, including resumed ones; `seconds` in the report are those of this call.
    facts["training_seconds"] = facts.pop("seconds")
    report.finish(facts)
    return summary.exit_status


def _resolve(
    run: Path, preset: str | None, config: Path | None, values: dict[str, Any], *, resume: bool
) -> RunSettings:
    """Return the settings of a new run, or those of a resumed run with the flags applied."""
    from heedful.train.run_config import resolve_settings, settings_of_run

    if not resume:
        return resolve_settings(preset, config, values)
    return settings_of_run(run, values, preset=preset, config_file=config)


def _task(run: Path, config: Path | None, values: dict[str, Any], *, resume: bool) -> str:
    """Return the task, which decides whether files of --train and --valid are pairs."""
    from heedful.config import read_toml
    from heedful.train.run_config import settings_of_run

    if "task" in values:
        return str(values["task"])
    if resume:
        return settings_of_run(run).task
    return str((read_toml(config) if config else {}).get("task", "translation"))


def _show(run: Path, summary: RunSummary) -> None:
    state = "Done" if summary.finished else "Stopped"
    say(
        f"{state} ({summary.reason}) after {summary.steps:,} updates, {summary.epochs} epochs, "
        f"{summary.seconds / 60:.1f} minutes."
    )
    if summary.model is not None:
        scores = ", ".join(f"{name} {score:.4g}" for name, score in summary.scores.items())
        say(f"{run / 'model'}: {summary.model}, step {summary.model_step}. {scores}")
    else:
        say(f"{run / 'model'} is not there yet: the first validation writes it.")


def corpora_settings(
    train: Sequence[str] | None,
    valid: Sequence[str] | None,
    weights: Sequence[float] | None,
    prefixes: Sequence[str] | None = None,
    *,
    pairs: bool,
) -> dict[str, Any]:
    """Return the flags of corpora as settings.

    Args:
        train, valid: file names of --train and --valid.
        weights: passes over each training corpus per epoch.
        prefixes: text before the sources of each corpus.
        pairs: True if files come in pairs of source and target.

    Raises:
        ConfigError: when a source has no target, or the numbers of weights or prefixes and of
            corpora differ.
    """
    data: dict[str, Any] = {}
    if train:
        data["train"] = corpora(train, "--train", pairs=pairs)
    if valid:
        data["valid"] = corpora(valid, "--valid", pairs=pairs)
    _give(data, "weight", weights, "--weights", ("train",))
    _give(data, "task_prefix", prefixes, "--task-prefixes", ("train", "valid"))
    return {"data": data} if data else {}


def _give(
    data: Mapping[str, Sequence[dict[str, Any]]],
    field: str,
    values: Sequence[float] | Sequence[str] | None,
    flag: str,
    parts: Sequence[str],
) -> None:
    """Set a field of each corpus, one value for each.

    Args:
        data: corpora by part.
        field: name of the field.
        values: values of the flag, if it was given.
        flag: name of the flag, for the error message.
        parts: parts whose corpora get the field, `train` first.

    Raises:
        ConfigError: when the numbers of values and corpora differ, or there is no corpus.
    """
    if values is None:
        return
    noun = flag.removeprefix("--").replace("-", " ")
    if "train" not in data:
        raise ConfigError(f"There are {noun} but no --train", where=flag)
    for part in filter(data.__contains__, parts):
        if len(values) != len(data[part]):
            name = "training" if part == "train" else "validation"
            raise ConfigError(
                f"There are {len(values)} {noun} for {len(data[part])} {name} corpora",
                where=flag,
                remedy=f"Give one for each corpus of --{part}",
            )
        for corpus, value in zip(data[part], values, strict=True):
            corpus[field] = value


def corpora(files: Sequence[str], flag: str, *, pairs: bool = True) -> list[dict[str, Any]]:
    """Return the corpora that file names stand for; a folder with an index is a folder of shards.

    Args:
        files: file names.
        flag: name of the flag, for the error message.
        pairs: True if two files are source and target of a corpus (folders and files of
            `PAIR_FORMS` are complete corpora); False if every file is a corpus.

    Raises:
        ConfigError: when a source has no target, or a file is of a form that holds no lines.
    """
    if not pairs:
        return [{"shards" if _has_shards(file) else "file": file} for file in files]
    result: list[dict[str, Any]] = []
    source: str | None = None
    for file in files:
        if source is not None:
            result.append({"source": source, "target": file})
            source = None
        elif _has_shards(file):
            result.append({"shards": file})
        elif (form := _form(file)) in PAIR_FORMS or Path(file).is_dir():
            result.append({"file": file})
        elif form in _NO_LINES:
            raise ConfigError(
                f"{form} files hold no lines of text",
                where=f"{flag} {file}",
                remedy=_NO_LINES[form],
            )
        else:
            source = file
    if source is not None:
        raise ConfigError(
            f"{source!r} has no partner",
            where=flag,
            remedy="Give source and target files, or one file of pairs: " + ", ".join(PAIR_FORMS),
        )
    return result


_SAVE_AS = "Save the table as CSV in UTF-8, with a column for each side"
_MAKE_PAIRS = "Make pairs of it: heedful data clean FILE --out FOLDER --languages en de"
_NO_LINES = {
    ".ods": _SAVE_AS,
    ".tmx": _MAKE_PAIRS,
    ".xls": _SAVE_AS,
    ".xlsx": _SAVE_AS,
}
"""Forms that people have pairs in and training does not read, with what to do."""


def _form(file: str) -> str:
    return Path(file.removesuffix(".gz").removesuffix(".zst")).suffix.lower()


def _has_shards(path: str) -> bool:
    """Return True for a folder that `heedful data shard` wrote."""
    return (Path(path) / SHARD_INDEX).is_file()
