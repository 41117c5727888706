"""A whole training run: from settings and files to a model directory."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from heedful.config import dump_toml
from heedful.device import Precision, resolve_device, resolve_precision
from heedful.durable import replace_synced
from heedful.errors import DataError, UserError
from heedful.events import Events, MetricsFile, Sink, TensorBoard
from heedful.memory import ask_for_huge_pages, peak_memory_bytes
from heedful.nn.moe import adds_penalties
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.checkpoints import Checkpoint, CheckpointStore
from heedful.train.compiled_pass import CompiledPass
from heedful.train.compute_plan import Compiling, choose_compiling, choose_products, lacking_here
from heedful.train.lora import is_adapted, merged_parameters, parameter_counts
from heedful.train.memory_budget import budget_of_run, check_size, with_budget
from heedful.train.objective import Objective
from heedful.train.optimizers import build_optimizer
from heedful.train.published_model import Publisher, choose_final_model
from heedful.train.run_config import CONFIG_FILE, check_resumable, settings_of_run
from heedful.train.run_directory import locked
from heedful.train.run_summary import RunSummary
from heedful.train.signals import StopRequest
from heedful.train.task import Task
from heedful.train.tasks import prepare_task
from heedful.train.trainer import Hooks, Trainer
from heedful.train.update import Updater
from heedful.train.validation import Scores, Validator
from heedful.train.vocabulary_growth import extends_vocabulary
from heedful.train.warm_start import initial_origin

if TYPE_CHECKING:
    from torch import nn

    from heedful.models.build import AnyModel
    from heedful.train.run_settings import RunSettings

METRICS_FILE = "metrics.jsonl"


def run_training(
    run_dir: Path, settings: RunSettings, *, resume: bool = False, events: Events
) -> RunSummary:
    """Train a model, or go on training one.

    Args:
        run_dir: the run directory; made when missing.
        settings: everything the run depends on.
        resume: go on from the newest whole checkpoint.
        events: who is told; `metrics.jsonl` is written besides.

    Returns:
        What it came to; `finished` is False after SIGTERM or Ctrl-C.

    Raises:
        UserError: and its kinds, for everything a person can mend.
    """
    ask_for_huge_pages()
    with locked(run_dir):
        if resume:
            settings = budget_of_run(run_dir, settings)
        _check_directory(run_dir, settings, resume=resume)
        if settings.tensorboard:
            TensorBoard.check()
        store = CheckpointStore(run_dir / "checkpoints", settings.checkpoint)
        checkpoint = store.newest(events) if resume else None
        device = resolve_device(settings.device)
        check_size(settings, device)
        settings = with_budget(settings, device, events)
        had_tokenizers = resume and settings.has_text
        tokenizers = TokenizerPair.load(run_dir / "tokenizer") if had_tokenizers else None
        task = prepare_task(run_dir, settings, tokenizers, events)
        if checkpoint is not None:
            _check_same_data(checkpoint, task)
        model = task.new_model().to(device)
        precision = _precision(settings, device, model, checkpoint)
        compiling = _compiling(settings, device, model, task, checkpoint)
        _write_run(run_dir, settings, task.tokenizers)
        store.open()
        sinks = _sinks(run_dir, settings, checkpoint)
        try:
            told = events.also(*sinks)
            run = _Run(run_dir, settings, task, model, precision, compiling, store, told)
            return run.train(checkpoint, resume=resume)
        finally:
            for sink in sinks:
                sink.close()


class _Run:
    """The parts of one run, put together."""

    def __init__(
        self,
        run_dir: Path,
        settings: RunSettings,
        task: Task,
        model: nn.Module,
        precision: Precision,
        compiling: Compiling,
        store: CheckpointStore,
        events: Events,
    ) -> None:
        self.run_dir = run_dir
        self.settings = settings
        self.task = task
        self.model = model
        self.precision = precision
        self.compiling = compiling
        self.store = store
        self.events = events
        self.publisher = Publisher(
            run_dir / "model",
            task.tokenizers,
            origin=initial_origin(settings),
            grown=extends_vocabulary(settings),
        )

    def train(self, checkpoint: Checkpoint | None, *, resume: bool) -> RunSummary:
        """Train from a checkpoint or from the start, then choose the final model."""
        self.events.note(f"Training in {self.precision.describe()}")
        self.events.note(f"Training's pass is {self.compiling.describe()}")
        if is_adapted(self.model):
            some, all_of_them = parameter_counts(self.model)
            self.events.note(
                f"{some:,} of {all_of_them:,} parameters are trained, the others are frozen"
            )
        objective = self.task.objective
        validator = self._validator()
        updater = self._updater(objective)
        warm_up = self._compile(updater, 0 if checkpoint is None else checkpoint.step)
        trainer = self._trainer(updater, validator)
        if checkpoint is not None:
            self._check_environment(checkpoint)
            trainer.restore(checkpoint)
            self.events.note(f"Resumed from step {checkpoint.step}")
        elif resume:
            self.events.note("There is no checkpoint yet, so training starts from the beginning")
        trainer.state.seconds += warm_up
        with StopRequest() as stop:
            reason = trainer.fit(stop)
        if stop:
            self.events.note(f"Saved at step {trainer.state.step}; go on with --resume")
        else:
            self._choose_final_model(trainer, validator)
        summary = self._summary(trainer, reason, finished=not stop)
        if summary.finished:
            figures = {k: v for k, v in summary.plain().items() if isinstance(v, int | float | str)}
            self.events.metric(summary.steps, figures | dict(summary.scores), "summary")
        return summary

    def _choose_final_model(self, trainer: Trainer, validator: Validator | None) -> None:
        self.model.eval()
        if not self.publisher.facts():  # someone removed RUN/model
            self._offer(self.model, trainer.state.step, None)
        choose_final_model(self.model, self.store, self.publisher, validator, self.events)

    def _updater(self, objective: Objective) -> Updater:
        settings = self.settings
        return Updater(
            self.model,
            objective,
            build_optimizer(self.model, settings.optimizer),
            self.precision,
            seed=settings.seed,
            clip_norm=settings.optimizer.clip_norm,
        )

    def _compile(self, updater: Updater, step: int) -> float:
        """Compile before anything is learned, so that a failure costs nothing; the seconds."""
        if not self.compiling.on:
            return 0.0
        started = time.monotonic()
        asked_for = self.compiling.asked_for
        updater.compiled = CompiledPass(self.model, self.events, asked_for=asked_for)
        if not updater.warm_up(self.task.source.batch(0, 0), step):
            self.compiling = Compiling(False, "compiling failed when training began")
        return time.monotonic() - started

    def _trainer(self, updater: Updater, validator: Validator | None) -> Trainer:
        return Trainer(
            updater,
            self.task.source,
            self.settings,
            width=_width(self.model),
            store=self.store,
            hooks=Hooks(validator, self._offer, self._facts()),
            events=self.events,
        )

    def _validator(self) -> Validator | None:
        # float32 as `heedful evaluate` uses it, on a route that a resumed run shares
        precision = dataclasses.replace(self.precision, name="fp32")
        return self.task.validator(self.settings, precision)

    def _offer(self, model: Any, step: int, scores: Scores | None) -> None:
        kind = "moving average" if self.settings.checkpoint.ema_decay else "weights"
        if scores is None:
            self.publisher.publish(model, step, kind, None)
        else:
            self.publisher.offer(model, step, kind, scores)

    def _facts(self) -> dict[str, Any]:
        return {
            "seed": self.settings.seed,
            "settings": self.settings.plain(),
            "data_fingerprint": self.task.fingerprint,
            "precision": {
                "name": self.precision.name,
                "device": self.precision.device,
                "onednn": self.precision.onednn,
                "own": self.precision.own,
                "reason": "as before",
            },
            "compiling": self.compiling.plain(),
            "environment": _environment(),
        }

    def _check_environment(self, checkpoint: Checkpoint) -> None:
        before, now = checkpoint.state["environment"], _environment()
        changed = [f"{key} {before.get(key)} before, {now[key]} now" for key in now]
        changed = [
            text for key, text in zip(now, changed, strict=True) if before.get(key) != now[key]
        ]
        if changed:
            self.events.warn(
                f"The environment has changed ({'; '.join(changed)}): losses may differ from those "
                "of an unstopped run in their last digits"
            )

    def _summary(self, trainer: Trainer, reason: str, *, finished: bool) -> RunSummary:
        facts = self.publisher.facts()
        state = trainer.state
        return RunSummary(
            finished=finished,
            reason=reason,
            steps=state.step,
            epochs=state.epoch,
            target_tokens=state.tokens,
            seconds=state.seconds,
            parameters=merged_parameters(self.model),
            trained_parameters=parameter_counts(self.model)[0],
            model=facts.get("kind"),
            model_step=facts.get("step"),
            scores=facts.get("scores", {}),
            signatures=facts.get("signatures", {}),
            precision=self.precision.describe(),
            compiling=self.compiling.describe(),
            peak_memory_bytes=peak_memory_bytes(),
        )


def _check_directory(run_dir: Path, settings: RunSettings, *, resume: bool) -> None:
    """Refuse a directory in use. A run that has saved nothing yet may start again."""
    if resume:
        check_resumable(settings_of_run(run_dir), settings)
        return
    exists = (run_dir / CONFIG_FILE).exists()
    for found in (run_dir / "model", *(run_dir / "checkpoints").glob("*step-*")):
        if found.exists() and exists:
            raise UserError(
                "There is a run here already",
                where=str(run_dir),
                remedy="Add --resume to go on with it, or name another directory",
            )
        if found.exists():
            raise UserError(
                f"The directory is not a run, but has {found.name!r}, which a run would overwrite",
                where=str(run_dir),
                remedy="Name an empty or new directory",
            )


def _precision(
    settings: RunSettings, device: torch.device, model: nn.Module, checkpoint: Checkpoint | None
) -> Precision:
    """Measured once in a run's life: with another choice it would not resume exactly."""
    if checkpoint is not None:
        before = {"own": False}  # what those have that know no other
        return Precision(**before | checkpoint.state["precision"])
    width = _width(model)
    precision = resolve_precision(settings.precision, device, width=width)
    return choose_products(precision, width) if settings.precision == "auto" else precision


def _compiling(
    settings: RunSettings,
    device: torch.device,
    model: nn.Module,
    task: Task,
    checkpoint: Checkpoint | None,
) -> Compiling:
    """Chosen once in a run's life, as the precision is."""
    if checkpoint is not None:  # before there was a choice, nothing was compiled
        before = checkpoint.state.get("compiling")
        return Compiling(**before) if before else Compiling(False, "as before")
    updates = settings.max_steps
    if settings.max_epochs is not None:
        batches = settings.max_epochs * task.source.count(0)
        updates = min(updates, -(-batches // settings.optimizer.accumulate))
    return choose_compiling(
        settings.compile,
        device.type,
        lacking=lacking_here(device),
        experts=adds_penalties(model),
        updates=updates,
        minutes=settings.max_minutes,
    )


def _width(model: nn.Module) -> int:
    """D; a model that training begins with has its own."""
    return cast("AnyModel", model).spec.width


def _sinks(run_dir: Path, settings: RunSettings, checkpoint: Checkpoint | None) -> list[Sink]:
    step = None if checkpoint is None else checkpoint.step
    sinks: list[Sink] = [MetricsFile(run_dir / METRICS_FILE, step)]
    if settings.tensorboard:
        sinks.append(TensorBoard(run_dir / "tensorboard", step))
    return sinks


def _write_run(run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None) -> None:
    """Write the files that make the directory a run; config.toml comes last."""
    if tokenizers is not None:
        (run_dir / "tokenizer").mkdir(exist_ok=True)
        for name, content in tokenizers.files().items():
            replace_synced(run_dir / "tokenizer" / name, content.encode())
    replace_synced(run_dir / CONFIG_FILE, dump_toml(settings.plain()).encode())


def _check_same_data(checkpoint: Checkpoint, task: Task) -> None:
    if checkpoint.state["data_fingerprint"] != task.fingerprint:
        raise DataError(
            "The training files, their weights or the tokenizer are not those the run began with",
            where=str(checkpoint.path.parent.parent / CONFIG_FILE),
            remedy="Restore the files, or start a new run",
        )


def _environment() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "system": os.uname().machine,
    }
