"""A whole training run, from settings and files to a model directory."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from heedful.events import Events
from heedful.memory import ask_for_huge_pages, peak_memory_bytes
from heedful.train.choose_updater import has_one_shape, updater_of_run
from heedful.train.lora import merged_parameters, parameter_counts
from heedful.train.parallel.distribution import distribute
from heedful.train.parallel.shares import UpdateParts
from heedful.train.published_model import Publisher, choose_final_model
from heedful.train.run_settings import RunSettings
from heedful.train.run_start import Start, start_run
from heedful.train.stop_request import Stopped, StopRequest, interruptible
from heedful.train.trainer import Trainer
from heedful.train.training_state import Hooks, SavedState


@dataclass(frozen=True)
class RunSummary:
    """The summary of a run.

    Args:
        finished: false if the run was stopped; it can then be resumed.
        reason: reason of the end, a few words.
        steps: number of updates made.
        epochs: number of whole passes over the corpus.
        target_tokens: number of target tokens trained on, repeats counted.
        seconds: wall-clock time of training and validation, over all resumes.
        parameters: number of parameters of the published model.
        trained_parameters: number of trainable parameters, low-rank updates included.
        model: kind of RUN/model: `weights`, `moving average`, or an average of checkpoints.
        model_step: number of updates behind RUN/model.
        scores: validation scores of RUN/model, by name.
        signatures: sacreBLEU's signatures, by metric.
        precision: number format of the training, described.
        compiling: compilation of the training pass, with its reason.
        peak_memory_bytes: largest resident size of this process.
    """

    finished: bool
    reason: str
    steps: int
    epochs: int
    target_tokens: int
    seconds: float
    parameters: int
    trained_parameters: int
    model: str | None
    model_step: int | None
    scores: Mapping[str, float] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)
    precision: str = ""
    compiling: str = ""
    peak_memory_bytes: int = 0

    @property
    def exit_status(self) -> int:
        """0 when the run finished, 1 when it was stopped and waits to be resumed."""
        return 0 if self.finished else 1

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def run_training(
    run_dir: Path, settings: RunSettings, *, resume: bool = False, events: Events
) -> RunSummary:
    """Train a model, or resume training one.

    Args:
        run_dir: run directory; made when missing.
        settings: settings of the training run.
        resume: continuation from the newest whole checkpoint.
        events: receivers of progress, metrics and notes; `metrics.jsonl` is written as well.

    Returns:
        The summary; `finished` is False after SIGTERM or Ctrl-C.

    Raises:
        UserError: for everything that a user can fix (it or a subclass).
    """
    # Set before the first tensor, as PyTorch reads it once. Updates of `base` in bfloat16 gain
    # 5 to 10 % where Linux grants huge pages.
    ask_for_huge_pages()
    with start_run(run_dir, settings, resume=resume, events=events) as start:
        return _Run(run_dir, start).train()


class _Run:
    def __init__(self, run_dir: Path, start: Start) -> None:
        self.start = start
        self.settings, self.task, self.plan = start.settings, start.task, start.plan
        self.store, self.team, self.events = start.store, start.team, start.events
        self.model = start.model
        self.publisher = Publisher.of_run(run_dir, self.settings, self.task.tokenizers)
        # Scores in float32, as `heedful evaluate` computes them. The matmul kernels are those of
        # the run, so that a resumed run chooses the same best model.
        precision = dataclasses.replace(self.plan.precision, name="fp32")
        self.validator = self.task.validator(self.settings, precision, self.team.show_progress)
        objective, twin = self.task.objective, self.task.new_model
        self.distribution, self.share = distribute(
            self.model, objective, self.settings, self.team, twin
        )

    def train(self) -> RunSummary:
        """Train from a checkpoint or from the start, then choose the final model."""
        self.events.note(f"Training in {self.plan.precision.describe()}")
        self.events.note(f"Training's pass is {self.plan.compiling.describe()}")
        if self.settings.checkpointing != "none":
            mode = self.settings.checkpointing
            self.events.note(f"Blocks are computed again for their gradients ({mode})")
        learned, total = parameter_counts(self.model)
        if learned < total:
            self.events.note(
                f"{learned:,} of {total:,} parameters are trained, the others are frozen"
            )
        trainer = self._trainer()
        with StopRequest() as stop:
            try:
                reason = self._fit(trainer, stop)
            except Stopped:
                reason = f"asked to stop by {stop.name}"
        if stop:
            step = trainer.saved.step
            there = "Nothing is saved yet" if step is None else f"Saved at step {step}"
            self.events.note(f"{there}; go on with --resume")
        summary = self._summary(trainer, reason, finished=not stop)
        if summary.finished:
            # TensorBoard and metrics.jsonl take plain values; scores are merged in by name.
            figures = {k: v for k, v in summary.plain().items() if isinstance(v, int | float | str)}
            self.events.metric(summary.steps, figures | dict(summary.scores), "summary")
        return summary

    def _fit(self, trainer: Trainer, stop: StopRequest) -> str:
        """Restore the checkpoint, compile, train, and choose the model; return why it ended."""
        checkpoint = self.start.checkpoint
        # Only the first process knows the checkpoint; all processes have to restore it.
        if self.team.any(checkpoint is not None):
            if checkpoint is not None:
                self._note_environment(checkpoint.state["environment"])
            trainer.state, trainer.carried_state = trainer.saved.restore(checkpoint)
        # Compiling counts as training time, since `max_minutes` limits how long people wait.
        trainer.state.seconds += self._compile(trainer)
        if trainer.saved.step is not None:
            self.events.note(f"Resumed from step {trainer.state.step}")
        elif self.start.resume:
            self.events.note("There is no checkpoint yet, so training starts from the beginning")
        reason = trainer.fit(stop)
        # A stopped run keeps its checkpoints for the resumed one to average.
        if not stop:
            self._choose_final_model(trainer)
        return reason

    def _trainer(self) -> Trainer:
        precision = self.plan.precision
        updater = updater_of_run(self.distribution, self.settings, precision, self.events)
        hooks = Hooks(self.validator, self._offer, self._facts)
        saved = SavedState(updater, self.team, self.store, hooks)
        batches, epochs = self.settings.optimizer.accumulate, self.settings.max_epochs
        on_gpu = updater.device.type == "cuda"
        # Asynchronous copies to a GPU need page-locked memory; elsewhere it would be a copy for
        # nothing.
        parts = UpdateParts(self.task.source, self.share, batches, epochs, pin=on_gpu)
        return Trainer(updater, parts, self.settings, saved=saved, events=self.events)

    def _compile(self, trainer: Trainer) -> float:
        """Compile where the plan says so; return the seconds it took."""
        compiling = self.plan.compiling
        if not compiling.on:
            return 0.0
        begun = time.monotonic()
        checkpoint = self.start.checkpoint
        # Every resume uses this same batch, as graphs may depend on the sizes that come first.
        batch, step = self.task.source.batch(0, 0), 0 if checkpoint is None else checkpoint.step
        how = {
            "asked_for": compiling.asked_for,
            "one_shape": has_one_shape(self.settings),
        }
        # No pass of it changes a weight, and it takes minutes on a processor.
        with self._interruptible(), self.events.ticking("compiling the training pass"):
            compiled = trainer.updater.compile(batch, step, self.events, **how)
        if not compiled:
            # Kept in checkpoints, so a resumed run does not try again and change its numbers
            # midway.
            why = "compiling failed when training began"
            failed = dataclasses.replace(self.plan.compiling, on=False, reason=why, asked_for=False)
            self.plan = dataclasses.replace(self.plan, compiling=failed)
        return time.monotonic() - begun

    def _choose_final_model(self, trainer: Trainer) -> None:
        def choose() -> None:
            model.eval()
            if not self.publisher.facts():  # RUN/model was removed by hand
                self._offer(model, trainer.state.step, None)
            # A model is published whole or not at all, so a stop may come at any time.
            with self._interruptible():
                choose_final_model(model, self.store, self.publisher, self.validator, self.events)

        # Checkpoints are averaged over plain weights, not over moving averages.
        with trainer.saved.evaluation_model(averaged=False) as model:
            self.team.only_main(choose)

    def _interruptible(self) -> AbstractContextManager[object]:
        # Several processes wait for each other's work.
        return interruptible() if self.team.alone else nullcontext()

    def _offer(self, model: Any, step: int, scores: Any) -> None:
        kind = "moving average" if self.settings.checkpoint.ema_decay else "weights"
        self.publisher.offer(model, step, kind, scores)

    def _facts(self) -> dict[str, Any]:
        return {
            "seed": self.settings.seed,
            "settings": self.settings.plain(),
            "data_fingerprint": self.task.fingerprint,
            **self.plan.plain(),
        }

    def _note_environment(self, before: Mapping[str, Any]) -> None:
        if changed := self.plan.environment_changes(before):
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
            precision=self.plan.precision.describe(),
            compiling=self.plan.compiling.describe(),
            peak_memory_bytes=peak_memory_bytes(),
        )
