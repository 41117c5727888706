"""The training loop: updates, metrics, validation, checkpoints, stopping."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import torch

from heedful.errors import RunError, UserError
from heedful.memory import Trimmer, ran_out, reuse_freed
from heedful.train.optimizers import learning_rate
from heedful.train.splitting import OneTooLarge, Part
from heedful.train.stop_request import StopRequest
from heedful.train.training_state import Scored, TrainingState
from heedful.train.update import Updater, UpdateResult

__all__ = ["StopRequest", "Trainer"]

if TYPE_CHECKING:
    from heedful.events import Events, Value
    from heedful.train.objective import CarriedState
    from heedful.train.parallel.shares import UpdateParts
    from heedful.train.run_settings import RunSettings
    from heedful.train.training_state import SavedState


MAX_SKIPPED = 10
"""Updates in a row that may fail before the run is given up."""

MAX_OVERFLOWS = 50
"""The same for float16, whose loss scale needs some failures to settle."""

MAX_ROLLBACKS = 5
"""Returns to the same checkpoint before the run is given up."""


class Trainer:
    """Trains one model, alone or with other processes that do the same.

    Args:
        updater: of the model.
        parts: of each update, that this process learns from.
        settings: of the run.
        saved: its state in checkpoints, with the processes and their hooks.
        events: receive progress, metrics and notes.
    """

    def __init__(
        self,
        updater: Updater,
        parts: UpdateParts,
        settings: RunSettings,
        *,
        saved: SavedState,
        events: Events,
    ) -> None:
        self.updater = updater
        self.saved, self.team, self.hooks = saved, saved.team, saved.hooks
        self.model = updater.model
        self.parts = parts
        self.settings = settings
        self.width = cast(Any, self.model).spec.width  # for the paper's learning rate
        self.events = events
        self.state = TrainingState()
        self.carried_state: CarriedState = {}
        self.trimmer = Trimmer()

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
        except UserError:
            with suppress(UserError):  # which may follow from this one
                self.saved.store.finish()  # the thread may not outlive the process
            raise
        finally:
            self.parts.close()

    def _fit(self, stop: StopRequest) -> str:
        while not (self._stopped(stop) or self._end()):
            started = time.monotonic()
            parts, (epoch, used) = self.parts.take(self.state.place)
            step = self.state.step + 1
            schedule, max_steps = self.settings.schedule, self.settings.max_steps
            rate = learning_rate(schedule, step, width=self.width, max_steps=max_steps)
            result = self._update(parts, step, rate, stop)
            if result is None:
                break
            seconds = time.monotonic() - started
            self.state.seconds = self.team.of_main(self.state.seconds + seconds)
            self.state.tokens += result.tokens
            self.state.step, self.state.epoch, self.state.batch = step, epoch, used
            before = self.carried_state
            self.carried_state = result.carried_state if result.finite else {}
            self._tell(result, rate, seconds)
            self.trimmer.step()
            if not result.finite:
                self._not_finite(parts, result, before)
                continue
            self.state.skipped = 0
            self.saved.update_average(step)
            self._due()
        reason = self._end()
        if reason is None:
            self.save(finish=True)
            return f"asked to stop by {stop.name}"
        validated = self.state.validated
        if self.hooks.validate is not None and (
            validated is None or validated.step != self.state.step
        ):
            self.validate()
        self.save(finish=True)
        return reason

    def validate(self) -> None:
        """Score the model, keep count of the best, offer it for publishing."""
        validate, state = self.hooks.validate, self.state
        assert validate is not None
        started = time.monotonic()

        def judge() -> float:
            model.eval()
            scores = validate(model)
            self.events.metric(state.step, scores.values, "validation")
            self.events.samples(state.step, scores.samples)
            self.events.note(f"step {state.step}: {scores.describe()}")
            if state.best is None or scores.score > state.best.score:
                self.hooks.offer(model, state.step, scores)
            return scores.score

        with self.saved.judged() as model:
            score = self.team.of_main(self.team.only_main(judge) or 0.0)
        state.validated = Scored(state.step, score)
        if state.best is None or score > state.best.score:
            state.best, state.stale = state.validated, 0
        else:
            state.stale += 1
        self.model.train()
        state.seconds = self.team.of_main(state.seconds + time.monotonic() - started)

    def save(self, *, finish: bool = False) -> None:
        """Write a checkpoint of this moment unless there is one.

        Args:
            finish: wait until it is written, also in the background.
        """
        if self.saved.step != self.state.step:
            self.saved.save(self.state, self.carried_state)
        if finish:
            self.saved.finish()

    def _stopped(self, stop: StopRequest) -> bool:
        """Return whether a process was asked to stop; all of them hear of it."""
        stopped = self.team.any(stop)
        if stopped and not stop:
            stop.ask("another process")
        return stopped

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
        late = minutes is not None and state.seconds - self.saved.seconds >= 60 * minutes
        if late or state.step % settings.checkpoint.every_steps == 0:
            self.save()

    def _update(
        self, parts: Sequence[Part], step: int, rate: float, stop: StopRequest
    ) -> UpdateResult | None:
        try:
            return self.updater.update(
                parts, step, rate, cancelled=lambda: bool(stop), carried_state=self.carried_state
            )
        except OneTooLarge as error:
            lines = self.parts.lines(error.numbers.tolist())
            packed = self.settings.data.packed_length is not None
            what, name = ("row", "packed_length") if packed else ("example", "max_length")
            raise self._given_up(
                f"There is not enough memory for one {what} of {error.positions} positions "
                f"({', '.join(lines[:1])}{' …' if lines[1:] else ''}) at step {step}",
                f"Lower data.{name} or take a smaller model",
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
        self, parts: Sequence[Part], result: UpdateResult, before: CarriedState
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
        action = self.settings.on_nonfinite
        what, values = self._diagnosed(parts, before)
        self.events.metric(state.step, values | {"action": action}, "nonfinite")
        if action == "stop":
            raise self._given_up(what, "Look at these lines, or lower schedule.peak_learning_rate")
        if action == "rollback":
            self._roll_back(what)
            return
        self.events.warn(f"{what}. The update was skipped")
        if state.skipped >= MAX_SKIPPED:
            weight = updater.bad_weight()
            why = f"; the weight {weight} itself is not finite" if weight else ""
            raise self._given_up(
                f"{state.skipped} updates in a row were not finite{why}",
                "Lower schedule.peak_learning_rate, set optimizer.clip_norm, or use fp32",
            )

    def _diagnosed(
        self, parts: Sequence[Part], before: CarriedState
    ) -> tuple[str, dict[str, Value]]:
        """The origin of what was not finite, in words and as values: of the first that knows."""
        step = self.state.step
        own = self.updater.origin(parts, step, before, self.parts.lines)
        told = [json.loads(each) for each in self.team.texts(json.dumps(own))]
        _, described, values = next((each for each in told if each[0]), told[0])
        return f"Not finite at step {step}: {described}", values

    def _roll_back(self, what: str) -> None:
        failed = self.state
        checkpoint, step = self.saved.newest(self.events)
        if step < 0:
            raise self._given_up(
                f"{what}; there is no checkpoint to return to", "Lower schedule.peak_learning_rate"
            )
        if failed.rollbacks >= MAX_ROLLBACKS:
            raise self._given_up(
                f"{what}; {failed.rollbacks} returns to step {step} did not help",
                "Lower schedule.peak_learning_rate, set optimizer.clip_norm, or use fp32",
            )
        self.state, self.carried_state = self.saved.restore(checkpoint)
        # go on with the data after the batch that failed: the same batch would fail again
        self.state.epoch, self.state.batch = failed.epoch, failed.batch
        self.state.seconds, self.state.tokens = failed.seconds, failed.tokens
        self.state.rollbacks = failed.rollbacks + 1
        self.events.warn(f"{what}. Went back to the checkpoint of step {step}")

    def _given_up(self, what: str, remedy: str) -> RunError:
        advice = (
            "" if self.saved.step is None else f", then use --resume from step {self.saved.step}"
        )
        return RunError(what, where=str(self.saved.store.directory.parent), remedy=remedy + advice)
