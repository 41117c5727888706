"""The training loop: updates, metrics, validation, checkpoints, stopping."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor

from heedful.errors import RunError
from heedful.memory import Trimmer, ran_out, reuse_freed
from heedful.train.batch_source import Batch, Place, Prefetched, Source
from heedful.train.checkpoints import MovingAverage, load_weights, using, weights_of
from heedful.train.nonfinite import first_bad_weight
from heedful.train.optimizers import export_moments, import_moments, learning_rate
from heedful.train.update import OneTooLarge, Updater, UpdateResult

if TYPE_CHECKING:
    from torch import nn

    from heedful.device import Precision
    from heedful.events import Events, Value
    from heedful.train.checkpoints import Checkpoint, CheckpointStore
    from heedful.train.objective import CarriedState, Objective
    from heedful.train.run_settings import RunSettings
    from heedful.train.validation import Scores


class StopRequest:
    """A context in which SIGTERM and SIGINT ask for a stop instead of killing the process.

    A second Ctrl-C aborts at once with `KeyboardInterrupt`. Outside the main thread, where Python
    cannot handle signals, a stop can only be asked for with `ask`.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.name is not None

    def ask(self, name: str) -> None:
        """Ask for a stop; `name` says who asked."""
        self.name = name

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.name is not None:
            raise KeyboardInterrupt
        self.name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


MAX_SKIPPED = 10
"""Updates in a row that may fail before the run is given up."""

MAX_OVERFLOWS = 50
"""The same for float16, whose loss scale needs some failures to settle."""

MAX_ROLLBACKS = 5
"""Returns to the same checkpoint before the run is given up."""


@dataclass(frozen=True)
class Scored:
    """The result of a validation that later steps need.

    Args:
        step: when it was.
        score: the score that decides, larger is better.
    """

    step: int
    score: float


@dataclass
class TrainingState:
    """The counters of a run; weights and optimiser are beside it.

    Args:
        step: updates made or skipped.
        epoch: passes over the corpus finished.
        batch: place of the next batch in the present pass.
        tokens: target tokens trained on.
        seconds: wall-clock time, over all resumes.
        best: the best validation so far.
        stale: validations since then.
        validated: the last validation, which may be the best one.
        skipped: updates skipped in a row because something was not finite.
        rollbacks: returns to a checkpoint since the last one was written.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: Scored | None = None
    stale: int = 0
    validated: Scored | None = None
    skipped: int = 0
    rollbacks: int = 0

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """The state of which a checkpoint has the fields as JSON types."""
        scored = {
            name: None if values[name] is None else Scored(**values[name])
            for name in ("best", "validated")
        }
        return cls(**{**values, **scored})


@dataclass(frozen=True)
class Hooks:
    """Callbacks of the training loop.

    Args:
        validate: scores the model; None when there is nothing to validate on.
        offer: hands over a model that may be the best so far: the step and its scores.
        facts: makes the plain data that every checkpoint carries beside the counters.
    """

    validate: Callable[[Any], Scores] | None
    offer: Callable[[Any, int, Scores | None], None]
    facts: Callable[[], Mapping[str, Any]]


class Trainer:
    """Trains one model.

    Args:
        model: to train.
        objective: its loss.
        source: where batches come from.
        settings: of the run.
        precision: of the products.
        store: where checkpoints go.
        hooks: validation and publishing.
        events: receive progress, metrics and notes.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        source: Source,
        settings: RunSettings,
        precision: Precision,
        *,
        store: CheckpointStore,
        hooks: Hooks,
        events: Events,
    ) -> None:
        self.updater = Updater.of_run(model, objective, settings, precision)
        self.model = model
        self.source = source
        self.settings = settings
        self.width = cast(Any, model).spec.width  # for the paper's learning rate
        self.store = store
        self.hooks = hooks
        self.events = events
        self.state = TrainingState()
        self.carried_state: CarriedState = {}
        decay = settings.checkpoint.ema_decay
        self.average = MovingAverage(weights_of(self.model), decay) if decay else None
        self.trimmer = Trimmer()
        self.prefetched = Prefetched(
            self._batches_from, lambda place: place.epoch == settings.max_epochs
        )
        self._saved_step: int | None = None
        self._saved_seconds = 0.0

    def fit(self, stop: StopRequest) -> str:
        """Train until the end or until asked to stop.

        Returns:
            Why it ended, a few words.

        Raises:
            RunError: when training cannot go on.
        """
        if self.updater.device.type == "cpu":
            reuse_freed()
        self.events.progress(self.state.step, self.settings.max_steps, "training")
        try:
            return self._fit(stop)
        finally:
            self.prefetched.close()
            self.source.close()

    def _fit(self, stop: StopRequest) -> str:
        while not (stop or self._end()):
            started = time.monotonic()
            place = Place(self.state.epoch, self.state.batch)
            batches, (epoch, used) = self.prefetched.take(place)
            step = self.state.step + 1
            schedule, max_steps = self.settings.schedule, self.settings.max_steps
            rate = learning_rate(schedule, step, width=self.width, max_steps=max_steps)
            result = self._update(batches, step, rate, stop)
            if result is None:
                break
            seconds = time.monotonic() - started
            self.state.seconds += seconds
            self.state.tokens += result.tokens
            self.state.step, self.state.epoch, self.state.batch = step, epoch, used
            before = self.carried_state
            self.carried_state = result.carried_state if result.finite else {}
            self._tell(result, rate, seconds)
            self.trimmer.step()
            if not result.finite:
                self._not_finite(batches, result, before)
                continue
            self.state.skipped = 0
            if self.average is not None:
                self.average.update(weights_of(self.model), step)
            self._due()
        reason = self._end()
        if reason is None:
            self.save()
            return f"asked to stop by {stop.name}"
        validated = self.state.validated
        if self.hooks.validate is not None and (
            validated is None or validated.step != self.state.step
        ):
            self.validate()
        self.save()
        return reason

    def validate(self) -> None:
        """Score the model, keep count of the best, offer it for publishing."""
        assert self.hooks.validate is not None
        started = time.monotonic()
        with self._judged():
            self.model.eval()
            scores = self.hooks.validate(self.model)
            state = self.state
            state.validated = Scored(state.step, scores.score)
            if state.best is None or scores.score > state.best.score:
                state.best, state.stale = state.validated, 0
            else:
                state.stale += 1
            self.events.metric(state.step, scores.values, "validation")
            self.events.samples(state.step, scores.samples)
            self.events.note(f"step {state.step}: {scores.describe()}")
            if state.stale == 0:
                self.hooks.offer(self.model, state.step, scores)
        self.model.train()
        state.seconds += time.monotonic() - started

    def save(self) -> None:
        """Write a checkpoint of this moment unless there is one."""
        state = self.state
        if self._saved_step == state.step:
            return
        state.rollbacks = 0
        training = export_moments(self.updater.optimizer, self.model)
        if self.average is not None:
            training |= {f"average/{name}": t for name, t in self.average.tensors.items()}
        training |= {f"carried/{name}": tensor for name, tensor in self.carried_state.items()}
        validated = state.validated
        here = validated is not None and validated.step == state.step
        facts = {
            **self.hooks.facts(),
            "training": asdict(state),
            "score": validated.score if here and validated else None,
            "regular": state.step % self.settings.checkpoint.every_steps == 0,
            "scaler": self.updater.scaler.state_dict(),
        }
        self.store.save(state.step, weights_of(self.model), training, facts)
        if self.hooks.validate is None:
            with self._judged():
                self.hooks.offer(self.model, state.step, None)
        self._saved_step, self._saved_seconds = state.step, state.seconds

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the exact state that the checkpoint was written in."""
        load_weights(self.model, checkpoint.model())
        moments: dict[str, Tensor] = {}
        average: dict[str, Tensor] = {}
        carried: dict[str, Tensor] = {}
        for name, tensor in checkpoint.training().items():
            kind, _, rest = name.partition("/")
            if kind == "average":
                average[rest] = tensor
            elif kind == "carried":
                carried[rest] = tensor
            else:
                moments[name] = tensor
        import_moments(self.updater.optimizer, self.model, moments)
        if self.average is not None:
            self.average.load(average)
        self.updater.scaler.load_state_dict(dict(checkpoint.state["scaler"]))
        self.state = TrainingState.parse(checkpoint.state["training"])
        self.carried_state = carried
        self._saved_step, self._saved_seconds = self.state.step, self.state.seconds

    def _judged(self) -> AbstractContextManager[None]:
        """A context in which the model has the weights that count: the moving average if kept."""
        return nullcontext() if self.average is None else using(self.model, self.average.tensors)

    def _batches_from(self, place: Place) -> tuple[list[Batch], Place]:
        """The batches of one update, and the place after them."""
        batches: list[Batch] = []
        while len(batches) < self.settings.optimizer.accumulate:
            batches.append(self.source.batch(*place))
            place = self.source.after(place)
            if place.epoch == self.settings.max_epochs:
                break
        return batches, place

    def _end(self) -> str | None:
        """The reason why training is over, or None."""
        settings, state = self.settings, self.state
        if state.step >= settings.max_steps:
            return f"max_steps = {settings.max_steps} reached"
        if settings.max_minutes is not None and state.seconds >= 60 * settings.max_minutes:
            return f"max_minutes = {settings.max_minutes:g} reached"
        if settings.max_epochs is not None and state.epoch >= settings.max_epochs:
            return f"max_epochs = {settings.max_epochs} reached"
        patience = settings.validation.patience
        if patience is not None and state.stale >= patience:
            return f"no improvement in {state.stale} validations"
        return None

    def _due(self) -> None:
        settings, state = self.settings, self.state
        if self.hooks.validate is not None and state.step % settings.validation.every_steps == 0:
            self.validate()
        minutes = settings.checkpoint.every_minutes
        late = minutes is not None and state.seconds - self._saved_seconds >= 60 * minutes
        if late or state.step % settings.checkpoint.every_steps == 0:
            self.save()

    def _update(
        self, batches: Sequence[Batch], step: int, rate: float, stop: StopRequest
    ) -> UpdateResult | None:
        try:
            return self.updater.update(
                batches, step, rate, cancelled=lambda: bool(stop), carried_state=self.carried_state
            )
        except OneTooLarge as error:
            (line,) = self.source.lines(error.index.tolist())
            raise self._given_up(
                f"There is not enough memory for one example of {error.positions} positions "
                f"({line}) at step {step}",
                "Lower data.max_length or take a smaller model",
            ) from error
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            raise self._given_up(
                f"There is not enough memory for the optimiser at step {step}",
                "Take a smaller model, or a machine with more memory",
            ) from error

    def _tell_split(self, too_large: Sequence[tuple[int, int]]) -> None:
        step = self.state.step
        batches = ", ".join(f"{where} positions ({count} examples)" for where, count in too_large)
        most = self.updater.splitting.most
        budget = self.settings.data.budget
        assert most is not None
        self.events.metric(step, {"positions": most, "budget": budget}, "out_of_memory")
        self.events.warn(
            f"Out of memory at step {step} with a batch of {batches}. It was split, and so will be "
            f"all of more than {most} positions from now on: the gradient is that of the whole "
            f"batch, but parts take longer. To avoid it lower data.batch_tokens ({budget}) and "
            "raise optimizer.accumulate by as much"
        )

    def _tell(self, result: UpdateResult, rate: float, seconds: float) -> None:
        state = self.state
        if result.too_large:
            self._tell_split(result.too_large)
        speed = result.tokens / max(seconds, 1e-9)
        values: dict[str, Value] = {
            **result.values,
            "lr": rate,
            "grad_norm": result.grad_norm,
            "tokens": result.tokens,
            "epoch": state.epoch,
            "total_tokens": state.tokens,
            "tokens_per_second": round(speed, 1),
            "seconds": round(state.seconds, 3),
        }
        self.events.metric(state.step, values)
        figures = {"loss": result.values["loss"], "tokens/s": round(speed)}
        self.events.progress(state.step, self.settings.max_steps, "training", **figures)

    def _not_finite(
        self, batches: Sequence[Batch], result: UpdateResult, before: CarriedState
    ) -> None:
        """Report the origin, then skip, roll back or give up."""
        state, updater = self.state, self.updater
        state.skipped += 1
        if updater.scaler.is_enabled() and bool(
            torch.isfinite(torch.tensor(result.values["loss"]))
        ):
            if state.skipped > MAX_OVERFLOWS:
                raise self._given_up("float16 gradients overflow at any scale", "Use bf16 or fp32")
            return
        results, indices = updater.diagnose(batches, state.step, before)
        lines = self.source.lines(indices.tolist())
        action = self.settings.on_nonfinite
        what = f"Not finite at step {state.step}: {results.describe(lines)}"
        values = {"place": results.place, "lines": ", ".join(lines), "action": action}
        self.events.metric(state.step, values, "nonfinite")
        if action == "stop":
            raise self._given_up(what, "Look at these lines, or lower schedule.peak_learning_rate")
        if action == "rollback":
            self._roll_back(what)
            return
        self.events.warn(f"{what}. The update was skipped")
        if state.skipped >= MAX_SKIPPED:
            weight = first_bad_weight(self.model)
            why = f"; the weight {weight} itself is not finite" if weight else ""
            raise self._given_up(
                f"{state.skipped} updates in a row were not finite{why}",
                "Lower schedule.peak_learning_rate, set optimizer.clip_norm, or use fp32",
            )

    def _roll_back(self, what: str) -> None:
        failed = self.state
        checkpoint = self.store.newest(self.events)
        if checkpoint is None:
            raise self._given_up(
                f"{what}; there is no checkpoint to return to", "Lower schedule.peak_learning_rate"
            )
        if failed.rollbacks >= MAX_ROLLBACKS:
            raise self._given_up(
                f"{what}; {failed.rollbacks} returns to step {checkpoint.step} did not help",
                "Lower schedule.peak_learning_rate, set optimizer.clip_norm, or use fp32",
            )
        self.restore(checkpoint)
        # go on with the data after the batch that failed: the same batch would fail again
        self.state.epoch, self.state.batch = failed.epoch, failed.batch
        self.state.seconds, self.state.tokens = failed.seconds, failed.tokens
        self.state.rollbacks = failed.rollbacks + 1
        self.events.warn(f"{what}. Went back to the checkpoint of step {checkpoint.step}")

    def _given_up(self, what: str, remedy: str) -> RunError:
        advice = (
            "" if self._saved_step is None else f", then use --resume from step {self._saved_step}"
        )
        return RunError(what, where=str(self.store.directory.parent), remedy=remedy + advice)
