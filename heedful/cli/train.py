"""`heedful train`: a translator from sentence pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.settings_flags import flags_of, overrides
from heedful.cli.tables import say
from heedful.config import merge
from heedful.errors import ConfigError, UserError
from heedful.train.settings import RunSettings

# Words of the command line that name corpora; in a settings file they are tables.
_NOT_FLAGS = ("data.train", "data.valid", "preset")

if TYPE_CHECKING:
    from heedful.train.summary import RunSummary

    SettingsFlags = Any
else:
    SettingsFlags = flags_of(RunSettings, "Run", skip=_NOT_FLAGS)

_CORPORA_FLAGS = Group("Corpora", sort_key=1)


def train(
    run: Annotated[Path, Parameter(help="Folder of the run, made if missing; also the model.")],
    /,
    *,
    train: Annotated[
        list[str] | None,
        Parameter(
            group=_CORPORA_FLAGS,
            consume_multiple=True,
            negative=(),
            help="Source and target files, aligned line by line, or one .tsv or .jsonl file of "
            "pairs; all may be .gz. Several corpora: name them one after the other. For a "
            "language model: files of text. For a classifier: .tsv or .jsonl files of texts with "
            "labels. For images: IDX files of images and of labels, or a folder with a folder of "
            "pictures for each label.",
        ),
    ] = None,
    valid: Annotated[
        list[str] | None,
        Parameter(
            group=_CORPORA_FLAGS,
            consume_multiple=True,
            negative=(),
            help="Files to validate with, in the same way.",
        ),
    ] = None,
    weights: Annotated[
        list[float] | None,
        Parameter(
            group=_CORPORA_FLAGS,
            consume_multiple=True,
            negative=(),
            help="How often an epoch shows each training corpus: 0.5 is half of it.",
        ),
    ] = None,
    preset: Annotated[
        str | None, Parameter(help="Named size to start from; `heedful presets` lists them.")
    ] = None,
    config: Annotated[
        Path | None, Parameter(help="TOML file of settings; flags go before it, it before presets.")
    ] = None,
    resume: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Go on from the run's last checkpoint, with its settings.",
        ),
    ] = False,
    settings: SettingsFlags | None = None,
    output: Output = PLAIN,
) -> int:
    """Train a translator from sentence pairs, or a model of text.

    The model, its tokenizer and its settings land in RUN/model as soon as it was validated once,
    and are replaced whenever it got better. Ctrl-C saves and stops; `--resume` goes on from there,
    bit for bit as if it had not stopped. `--task masked_lm` trains an encoder from text,
    `--task span_corruption` and `--task denoising` an encoder-decoder, and `--task classify` a
    classifier from texts with labels.

    For example:

        heedful train run --preset tiny --train train.en train.de --valid valid.en valid.de
        heedful train run --task causal_lm --train books.txt --valid other.txt
        heedful train run --task classify --train train.tsv --valid valid.tsv
        heedful train run --task images --train photos --valid other-photos

    Every setting below is a flag and a key of the TOML file: `--model.width 256` is `width = 256`
    in the table `[model]`. RUN/config.toml keeps all of them.
    """
    given = overrides(settings)
    # images and their labels are two files too
    pairs = _task(run, config, given, resume=resume) in ("translation", "images")
    given = merge(given, _corpora(train, valid, weights, pairs=pairs))
    report = Report(
        "train", output, {"run": str(run), "preset": preset, "overrides": given, "resume": resume}
    )
    if train is None and config is None and not resume:
        raise UserError(
            "There is nothing to train on",
            where="heedful train",
            remedy="Name the pairs: --train SOURCE_FILE TARGET_FILE (or one .tsv or .jsonl file)"
            if pairs
            else "Name the text: --train FILE",
        )
    resolved = _resolve(run, preset, config, given, resume=resume)
    from heedful.events import Events, Terminal
    from heedful.train.run import run_training

    events = Events([Terminal()])
    try:
        summary = run_training(run, resolved, resume=resume, events=events)
    finally:
        events.close()
    if not output.json:
        _show(run, summary)
    facts = summary.plain()
    facts["training_seconds"] = facts.pop(
        "seconds"
    )  # over all resumes; the report's are this call's
    report.finish(facts)
    return summary.exit_status


def _resolve(
    run: Path, preset: str | None, config: Path | None, given: dict[str, Any], *, resume: bool
) -> RunSettings:
    """A new run's settings; or those of the run, with what the command line says on top."""
    from heedful.train.resolve import resolve_settings, settings_of_run

    if not resume:
        return resolve_settings(preset, config, given)
    from heedful.config import read_toml
    from heedful.models.sizes import read_preset

    below = read_preset(preset) if preset is not None else {}
    return settings_of_run(run, merge(below, read_toml(config) if config else {}, given))


def _task(run: Path, config: Path | None, given: dict[str, Any], *, resume: bool) -> str:
    """The task, which decides how the files of the corpora flags belong together."""
    from heedful.config import read_toml
    from heedful.train.resolve import settings_of_run

    if "task" in given:
        return str(given["task"])
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


def _corpora(
    train: Sequence[str] | None,
    valid: Sequence[str] | None,
    weights: Sequence[float] | None,
    *,
    pairs: bool,
) -> dict[str, Any]:
    """The corpora flags as settings."""
    data: dict[str, Any] = {}
    if train:
        data["train"] = corpora(train, "--train", pairs=pairs)
        if weights is not None and len(weights) != len(data["train"]):
            raise ConfigError(
                f"There are {len(weights)} weights for {len(data['train'])} training corpora",
                where="--weights",
                remedy="Give one number for each corpus of --train",
            )
        for corpus, weight in zip(data["train"], weights or (), strict=False):
            corpus["weight"] = weight
    elif weights is not None:
        raise ConfigError("There are weights but no --train", where="--weights")
    if valid:
        data["valid"] = corpora(valid, "--valid", pairs=pairs)
    return {"data": data} if data else {}


def corpora(files: Sequence[str], flag: str, *, pairs: bool = True) -> list[dict[str, Any]]:
    """Corpora from file names.

    Args:
        files: the names.
        flag: they were given with, for the error message.
        pairs: each .tsv or .jsonl and each folder alone, others in pairs of source and target;
            else each alone.

    Raises:
        ConfigError: when a source has no target.
    """
    if not pairs:
        return [{"file": file} for file in files]
    found: list[dict[str, Any]] = []
    source: str | None = None
    for file in files:
        if source is not None:
            found.append({"source": source, "target": file})
            source = None
        elif Path(file.removesuffix(".gz")).suffix in (".tsv", ".jsonl") or Path(file).is_dir():
            found.append({"file": file})
        else:
            source = file
    if source is not None:
        raise ConfigError(
            f"{source!r} has no partner",
            where=flag,
            remedy="Give source and target files, or one .tsv or .jsonl file of pairs",
        )
    return found
