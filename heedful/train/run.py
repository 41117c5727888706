"""A whole training run: from settings and files to a model directory."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.device import resolve_device
from heedful.events import Events, TensorBoard
from heedful.memory import ask_for_huge_pages, peak_memory_bytes
from heedful.train.checkpoints import Checkpoint, CheckpointStore
from heedful.train.compute_plan import Compiling, ComputePlan, environment_changes
from heedful.train.lora import merged_parameters, parameter_counts
from heedful.train.published_model import Publisher, choose_final_model
from heedful.train.run_config import (
    budget_of_run,
    check_directory,
    locked,
    recorded,
    saved_tokenizers,
    with_pinned_init,
    write_run,
)
from heedful.train.tasks import Task, prepare_task
from heedful.train.trainer import Hooks, StopRequest, Trainer
from heedful.train.training_memory import check_size, with_budget

if TYPE_CHECKING:
    from torch import nn

    from heedful.train.run_settings import RunSettings


@dataclass(frozen=True)
class RunSummary:
    """The summary of a run.

    Args:
        finished: False when it was asked to stop; it can then be resumed.
        reason: why it ended.
        steps: updates made.
        epochs: whole passes over the corpus.
        target_tokens: trained on, repeats counted.
        seconds: wall-clock time of training and validation, over all resumes.
        parameters: of the model.
        trained_parameters: those that training changed; with low-rank changes, of these.
        model: what RUN/model holds: `weights`, `moving average`, or an average of checkpoints.
        model_step: the step it is of.
        scores: its validation figures.
        signatures: sacreBLEU's, by metric.
        precision: that was trained in.
        compiling: whether training's pass was compiled, and why.
        peak_memory_bytes: the largest resident size of this process.
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
    """Train a model, or go on training one.

    Args:
        run_dir: the run directory; made when missing.
        settings: everything the run depends on.
        resume: go on from the newest whole checkpoint.
        events: receive progress, metrics and notes; `metrics.jsonl` is written besides.

    Returns:
        The summary; `finished` is False after SIGTERM or Ctrl-C.

    Raises:
        UserError: and its kinds, for everything a person can mend.
    """
    ask_for_huge_pages()
    with locked(run_dir):
        if resume:
            settings = budget_of_run(run_dir, settings)
        settings = with_pinned_init(run_dir, settings, resume=resume)
        check_directory(run_dir, settings, resume=resume)
        if settings.tensorboard:
            TensorBoard.check()
        store = CheckpointStore(run_dir / "checkpoints", settings.checkpoint)
        checkpoint = store.newest(events) if resume else None
        device = resolve_device(settings.device)
        check_size(settings, device)
        settings = with_budget(settings, device, events)
        tokenizers = saved_tokenizers(run_dir, settings) if resume else None
        task = prepare_task(run_dir, settings, tokenizers, events)
        if checkpoint is not None:
            checkpoint.check_data(task.fingerprint)
        model = task.new_model().to(device)
        if checkpoint is not None:
            plan = ComputePlan.stored(checkpoint.state)
        else:
            plan = ComputePlan.choose(settings, device, model, task.source.count(0))
        write_run(run_dir, settings, task.tokenizers)
        store.open()
        step = None if checkpoint is None else checkpoint.step
        with recorded(run_dir, events, step, tensorboard=settings.tensorboard) as all_events:
            run = _Run(run_dir, settings, task, model, plan, store, all_events)
            return run.train(checkpoint, resume=resume)


class _Run:
    def __init__(
        self,
        run_dir: Path,
        settings: RunSettings,
        task: Task,
        model: nn.Module,
        plan: ComputePlan,
        store: CheckpointStore,
        events: Events,
    ) -> None:
        self.settings = settings
        self.task = task
        self.model = model
        self.plan = plan
        self.store = store
        self.events = events
        self.publisher = Publisher.of_run(run_dir, settings, task.tokenizers)
        # float32 as `heedful evaluate` uses it, on a route that a resumed run shares
        precision = dataclasses.replace(plan.precision, name="fp32")
        self.validator = task.validator(settings, precision)

    def train(self, checkpoint: Checkpoint | None, *, resume: bool) -> RunSummary:
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
        trainer = Trainer(
            self.model,
            self.task.objective,
            self.task.source,
            self.settings,
            self.plan.precision,
            store=self.store,
            hooks=Hooks(self.validator, self._offer, self._facts),
            events=self.events,
        )
        trainer.state.seconds += self._compile(trainer, checkpoint)
        if checkpoint is not None:
            self._note_environment(checkpoint)
            warm_up = trainer.state.seconds
            trainer.restore(checkpoint)
            trainer.state.seconds += warm_up
            self.events.note(f"Resumed from step {checkpoint.step}")
        elif resume:
            self.events.note("There is no checkpoint yet, so training starts from the beginning")
        with StopRequest() as stop:
            reason = trainer.fit(stop)
        if stop:
            self.events.note(f"Saved at step {trainer.state.step}; go on with --resume")
        else:
            self._choose_final_model(trainer)
        summary = self._summary(trainer, reason, finished=not stop)
        if summary.finished:
            figures = {k: v for k, v in summary.plain().items() if isinstance(v, int | float | str)}
            self.events.metric(summary.steps, figures | dict(summary.scores), "summary")
        return summary

    def _compile(self, trainer: Trainer, checkpoint: Checkpoint | None) -> float:
        """Compile where the plan says so; return the seconds it took."""
        compiling = self.plan.compiling
        if not compiling.on:
            return 0.0
        started = time.monotonic()
        batch, step = self.task.source.batch(0, 0), 0 if checkpoint is None else checkpoint.step
        updater, asked_for = trainer.updater, compiling.asked_for
        if not updater.compile(batch, step, self.events, asked_for=asked_for):
            failed = Compiling(False, "compiling failed when training began")
            self.plan = dataclasses.replace(self.plan, compiling=failed)
        return time.monotonic() - started

    def _choose_final_model(self, trainer: Trainer) -> None:
        self.model.eval()
        if not self.publisher.facts():  # someone removed RUN/model
            self._offer(self.model, trainer.state.step, None)
        choose_final_model(self.model, self.store, self.publisher, self.validator, self.events)

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

    def _note_environment(self, checkpoint: Checkpoint) -> None:
        if changed := environment_changes(checkpoint.state["environment"]):
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
