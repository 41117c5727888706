"""The training loop: updates, metrics, validation, checkpoints, stopping.

Where a device decides by itself whether an update is made, the result of one is read when the next
has been launched, so that the device never waits. Nothing else is different: an update launched
after one that was not finite has changed nothing, and is launched again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from heedful.errors import RunError, UserError
from heedful.memory import Trimmer, ran_out, reuse_freed
from heedful.train.launches import Launch, Launches
from heedful.train.splitting import OneTooLarge
from heedful.train.stop_request import StopRequest
from heedful.train.training_state import Scored, TrainingState

__all__ = ["StopRequest", "Trainer"]

if TYPE_CHECKING:
    from heedful.events import Events, Value
    from heedful.train.objective import CarriedState
    from heedful.train.parallel.shares import UpdateParts
    from heedful.train.run_settings import RunSettings
    from heedful.train.splitting import BatchPart
    from heedful.train.training_state import SavedState
    from heedful.train.update import Updater
    from heedful.train.update_result import LaunchedUpdate, UpdateResult


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
        self.events = events
        self.state = TrainingState()
        self.carried_state: CarriedState = {}
        self.trimmer = Trimmer()
        self._read = 0.0  # when the latest result was
        width = cast(Any, self.model).spec.width
        self.launches = Launches(self._update, parts, settings, width)

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
                self._settle()
            with suppress(UserError):
                self.saved.store.finish()  # the thread may not outlive the process
            raise
        finally:
            self.parts.close()

    def _fit(self, stop: StopRequest) -> str:
        while True:
            over = self._stopped(stop) or self._end() is not None
            if over and self.launches.in_flight is None:
                break
            if over or self._is_waited_for():
                self._settle()
            elif not self._go_on(stop):
                self._settle()
                break
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

    def _is_waited_for(self) -> bool:
        """Return whether something is due between the update in flight and the next."""
        flight = self.launches.in_flight
        if flight is None:
            return False
        then = replace(self.state, step=flight.step, epoch=flight.after.epoch)
        is_last = self._end(then) is not None
        return is_last or self._validates_at(flight.step) or self._saves_at(flight.step)

    def _go_on(self, stop: StopRequest) -> bool:
        """Launch the next update and read a result; False when asked to stop."""
        before = self.launches.in_flight
        launched = self.launches.launch(self.state, self.carried_state, lambda: bool(stop))
        if launched is None:
            return False
        if launched.update.skipped is None:
            self._settle()
            return True
        # Before the next update changes the weights.
        self.saved.update_average(launched.step, launched.update.skipped)
        if before is not None:
            self._settled(before)
        return True

    def _settle(self) -> None:
        """Read the result of the update in flight, if there is one, and do what is due then."""
        flight = self.launches.landed()
        if flight is not None:
            self._settled(flight)

    def _settled(self, flight: Launch) -> None:
        result = flight.update.read()
        now = time.monotonic()
        seconds, self._read = now - max(flight.started, self._read), now
        self.state.seconds = self.team.of_main(self.state.seconds + seconds)
        self.state.tokens += result.tokens
        self.state.step = flight.step
        self.state.epoch, self.state.batch = flight.after
        self.carried_state = result.carried_state if result.finite else {}
        if not result.finite:  # the one after it was launched in vain
            self.launches.discard()
        self._tell(result, flight.rate, seconds)
        self.trimmer.step()
        if not result.finite:
            self._not_finite(flight.parts, result, flight.before)
            return
        self.state.skipped = 0
        if flight.update.skipped is None:
            self.saved.update_average(flight.step)
        if self.launches.in_flight is None:
            self._due()

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

    def _end(self, state: TrainingState | None = None) -> str | None:
        """The reason why training is over in a state, the present one if None; or None."""
        settings, state = self.settings, state or self.state
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
        step = self.state.step
        if self._validates_at(step):
            self.validate()
        if self._saves_at(step):
            self.save()

    def _validates_at(self, step: int) -> bool:
        every_steps = self.settings.validation.every_steps
        return self.hooks.validate is not None and step % every_steps == 0

    def _saves_at(self, step: int) -> bool:
        every = self.settings.checkpoint
        seconds = self.state.seconds - self.saved.seconds
        is_late = every.every_minutes is not None and seconds >= 60 * every.every_minutes
        return is_late or step % every.every_steps == 0

    def _update(
        self,
        parts: Sequence[BatchPart],
        step: int,
        rate: float,
        cancelled: Callable[[], bool],
        carried_state: CarriedState,
    ) -> LaunchedUpdate | None:
        try:
            return self.updater.launch(parts, step, rate, cancelled, carried_state)
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
        self, parts: Sequence[BatchPart], result: UpdateResult, before: CarriedState
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
        self, parts: Sequence[BatchPart], before: CarriedState
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
