"""The training loop: updates, metrics, validation, checkpoints, and stopping.

Where a device decides by itself whether an update is made, a result is read after the next update
has been launched, so that the device never waits. Nothing else differs: an update launched after a
non-finite one changed no weight, and is launched again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, cast

import torch

from heedful.errors import RunError, UserError
from heedful.events import Events, Progress, Value
from heedful.memory import Trimmer, ran_out, reuse_freed
from heedful.train.objective import CarriedState
from heedful.train.optimizers import learning_rate
from heedful.train.parallel.shares import UpdateParts
from heedful.train.run_settings import RunSettings
from heedful.train.splitting import BatchPart, OneTooLarge
from heedful.train.stop_request import Stopped, StopRequest, interruptible
from heedful.train.training_state import SavedState, Scored, TrainingState
from heedful.train.update import Updater
from heedful.train.update_result import Launch, LaunchedUpdate, UpdateResult

MAX_SKIPPED = 10
"""Number of failed updates in a row that end the run."""

MAX_OVERFLOWS = 50
"""The same for float16, whose loss scaler halves its scale at each overflow until it fits."""

MAX_ROLLBACKS = 5
"""Number of rollbacks to the same checkpoint that end the run."""

_BROKEN_OFF = math.inf  # a score that no model has: the validation was broken off


class Trainer:
    """Trains one model, alone or together with other processes.

    Args:
        updater: updater of the model.
        parts: source of the batch parts that this process trains on.
        settings: settings of the training run.
        saved: writer and reader of checkpoints, with the processes and the hooks.
        events: receivers of progress, metrics and notes.
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
        # Several processes wait for each other within a pass, and stop between updates.
        if saved.team.alone:
            updater.interruptible = interruptible
        self.saved, self.team, self.hooks = saved, saved.team, saved.hooks
        self.model = updater.model
        self.parts = parts
        self.settings = settings
        self.events = events
        self.state = TrainingState()
        self.carried_state: CarriedState = {}
        self.trimmer = Trimmer()
        self._read = 0.0  # time of reading the latest result, on the monotonic clock
        self._in_flight: Launch | None = None
        self._discarded: Launch | None = None

    def fit(self, stop: StopRequest) -> str:
        """Train until the run ends or a stop is requested.

        Returns:
            The reason of the end, a few words.

        Raises:
            RunError: when training cannot go on.
        """
        # Pages that were given back to the system return one page fault at a time.
        if self.updater.device.type == "cpu":
            reuse_freed()
        self._show_progress()
        try:
            return self._fit(stop)
        except UserError:
            # The update in flight still counts; its own error may follow from this one.
            with suppress(UserError):
                self._settle()
            with suppress(UserError):
                self.saved.store.finish()  # or the last checkpoint could stay unfinished
            raise
        finally:
            self.parts.close()

    def _fit(self, stop: StopRequest) -> str:
        self._make_up()
        while True:
            # `_stopped` is a collective, so every process calls it before each update.
            over = self._stopped(stop) or self._end() is not None
            if over and self._in_flight is None:
                break
            if over or self._must_settle():
                self._settle()
            elif not self._go_on(stop):
                self._settle()
                self.events.note(f"Update {self.state.step + 1} was broken off")
                break
        reason = self._end()
        # The final model needs a score, even if the last step is not a multiple of the interval.
        if not self._stopped(stop) and self.hooks.validate is not None and not self._is_validated():
            self.validate()
        self.save(finish=True)
        # PromptLine again, as a stop may have come during the validation, on one process only.
        return f"asked to stop by {stop.name}" if self._stopped(stop) else str(reason)

    def _is_validated(self) -> bool:
        validated = self.state.validated
        return validated is not None and validated.step == self.state.step

    def _make_up(self) -> None:
        """Make a validation that a stop broke off, as if the run had not been stopped."""
        if self.state.step == 0 or not self._validates_at(self.state.step) or self._is_validated():
            return
        self.validate()
        # The checkpoint of this step has no score yet.
        if self._is_validated() and self._saves_at(self.state.step):
            self.saved.save(self.state, self.carried_state)

    def _must_settle(self) -> bool:
        """Return True if the result in flight must be read before the next launch."""
        flight = self._in_flight
        if flight is None:
            return False
        then = replace(self.state, step=flight.step, epoch=flight.after.epoch)
        # Validation and checkpoints need the weights of exactly this step.
        is_last = self._end(then) is not None
        return is_last or self._validates_at(flight.step) or self._saves_at(flight.step)

    def _go_on(self, stop: StopRequest) -> bool:
        """Launch the next update and read a result; return False if a stop was requested."""
        before = self._in_flight
        launched = self._launch(lambda: bool(stop))
        if launched is None:
            return False
        # The device decides nothing here, so the result is known already.
        if launched.update.skipped is None:
            self._settle()
            return True
        # Queued before the next update changes the weights.
        self.saved.update_average(launched.step, launched.update.skipped)
        if before is not None:
            self._settled(before)
        return True

    def _launch(self, cancelled: Callable[[], bool]) -> Launch | None:
        """Launch the update after the one in flight or, without one, after the present step.

        Returns:
            The update, now in flight; None if it was cancelled.
        """
        started = time.monotonic()
        # The state lags one update behind while one is in flight.
        step, place, carried_state = self.state.step + 1, self.state.place, self.carried_state
        if (ahead := self._in_flight) is not None:
            step, place, carried_state = ahead.step + 1, ahead.after, ahead.update.carried_state
        # The same position is asked for again after a skipped update; the reader is past it
        # already.
        kept, self._discarded = self._discarded, None
        if kept is not None and kept.place == place:
            parts, after = kept.parts, kept.after
        else:
            # May wait for the thread that reads data; the device computes meanwhile.
            parts, after = self.parts.take(place)
        width, max_steps = cast(Any, self.model).spec.width, self.settings.max_steps
        rate = learning_rate(self.settings.schedule, step, width=width, max_steps=max_steps)
        update = self._update(parts, step, rate, cancelled, carried_state)
        # Cancelled between batches: nothing changed, and the position is asked for again.
        if update is None:
            return None
        self._in_flight = Launch(update, step, rate, parts, place, after, carried_state, started)
        return self._in_flight

    def _settle(self) -> None:
        """Read the result of the update in flight, if any, and act on it."""
        flight, self._in_flight = self._in_flight, None
        if flight is not None:
            self._settled(flight)

    def _settled(self, flight: Launch) -> None:
        result = flight.update.read()
        now = time.monotonic()
        # Launches overlap: only the time since the previous result belongs to this update.
        seconds, self._read = now - max(flight.started, self._read), now
        # The clock of the first process counts for all, or `max_minutes` could end only some of
        # them.
        self.state.seconds = self.team.of_main(self.state.seconds + seconds)
        self.state.tokens += result.tokens
        self.state.step = flight.step
        self.state.epoch, self.state.batch = flight.after
        self.carried_state = result.carried_state if result.finite else {}
        if not result.finite:  # the update launched after it was skipped on the device
            self._discarded, self._in_flight = self._in_flight, None
        self._report(result, flight.rate, seconds)
        self.trimmer.step()
        if not result.finite:
            self._not_finite(flight.parts, result, flight.before)
            return
        self.state.skipped = 0
        if flight.update.skipped is None:
            self.saved.update_average(flight.step)
        # With an update in flight the weights are a step further than the counters.
        if self._in_flight is None:
            self._due()

    def validate(self) -> None:
        """Score the model, update the record of the best, and offer it for publishing."""
        validate, state = self.hooks.validate, self.state
        assert validate is not None
        started = time.monotonic()

        def judge() -> float:
            model.eval()
            try:
                with interruptible() if self.team.alone else nullcontext():
                    scores = validate(model)
            except Stopped:
                return _BROKEN_OFF
            self.events.metric(state.step, scores.values, "validation")
            self.events.samples(state.step, scores.samples, scores.worst)
            self.events.note(f"step {state.step}: {scores.describe()}")
            if scores.fault is not None:
                self.events.warn(f"Step {state.step}: {scores.fault}. The model is not usable yet")
            # Equal scores are offered, too: chrF and the loss may decide.
            if state.best is None or scores.score >= state.best.score:
                self.hooks.offer(model, state.step, scores)
            return scores.score

        with self.saved.evaluation_model() as model:
            score = self.team.of_main(self.team.only_main(judge) or 0.0)
        self.model.train()
        if score == _BROKEN_OFF:
            self.events.note(f"The validation of step {state.step} was broken off")
            return
        state.validated = Scored(state.step, score)
        if state.best is None or score > state.best.score:
            state.best, state.stale = state.validated, 0
        else:
            state.stale += 1
        state.seconds = self.team.of_main(state.seconds + time.monotonic() - started)

    def save(self, *, finish: bool = False) -> None:
        """Write a checkpoint of the present step unless there is one.

        Args:
            finish: wait for the end of writing in the background.
        """
        if self.saved.step != self.state.step:
            self.saved.save(self.state, self.carried_state)
        if finish:
            self.saved.finish()

    def _stopped(self, stop: StopRequest) -> bool:
        """Return True if any process was asked to stop, on all processes alike."""
        stopped = self.team.any(stop)
        if stopped and not stop:
            stop.ask("another process")
        return stopped

    def _end(self, state: TrainingState | None = None) -> str | None:
        """Return the reason why training ends in a state (None: the present one); None if not."""
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
        except Stopped:
            return None
        # A batch of one example cannot be split any further.
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
            # Other runtime errors are bugs and keep their traceback.
            if not ran_out(error):
                raise
            raise self._given_up(
                f"There is not enough memory for the optimiser at step {step}",
                "Take a smaller model, or a machine with more memory",
            ) from error

    def _report_split(self, too_large: Sequence[tuple[int, int]]) -> None:
        step = self.state.step
        batches = ", ".join(f"{where} positions ({count} examples)" for where, count in too_large)
        most = self.updater.splitting.most
        budget = self.settings.data.budget
        # Set by the split that this method reports.
        assert most is not None
        self.events.metric(step, {"positions": most, "budget": budget}, "out_of_memory")
        self.events.warn(
            f"Out of memory at step {step} with a batch of {batches}. It was split, and so will be "
            f"all of more than {most} positions from now on: the gradient is that of the whole "
            f"batch, but parts take longer. To avoid it lower data.batch_tokens ({budget}) and "
            "raise optimizer.accumulate by as much"
        )

    def _report(self, result: UpdateResult, rate: float, seconds: float) -> None:
        state = self.state
        if result.too_large:
            self._report_split(result.too_large)
        # The first update of a fast model may take less than the clock's resolution.
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
        # A loss of rewarded answers is near 0 throughout, and says nothing.
        figures |= {name: result.values[name] for name in ("reward", "kl") if name in result.values}
        self._show_progress(**figures)

    def _show_progress(self, **figures: Value) -> None:
        """Report progress towards the nearer end: `max_minutes` or `max_steps`."""
        state, minutes = self.state, self.settings.max_minutes
        share = state.step / self.settings.max_steps
        if minutes is None or state.seconds / (60 * minutes) < share:
            self.events.progress(state.step, self.settings.max_steps, "training", **figures)
            return
        fields = {"step": state.step, **figures}
        done, total = round(state.seconds), max(1, round(60 * minutes))
        self.events.emit(Progress(done, total, "training", fields, in_seconds=True))

    def _not_finite(
        self, parts: Sequence[BatchPart], result: UpdateResult, before: CarriedState
    ) -> None:
        """Report the origin of a non-finite update, then skip, roll back or give up."""
        state, updater = self.state, self.updater
        state.skipped += 1
        # With a finite loss only the scaled gradients overflowed: the scaler lowers its scale.
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
        # A weight that is not finite makes every update fail; naming it ends a long search.
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
        """Return the origin in words and as values, from the first process that found it."""
        step = self.state.step
        own = self.updater.origin(parts, step, before, self.parts.lines)
        reports = [json.loads(each) for each in self.team.texts(json.dumps(own))]
        _, described, values = next((each for each in reports if each[0]), reports[0])
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
        # Continue with the data after the failed batch, which would fail again.
        self.state.epoch, self.state.batch = failed.epoch, failed.batch
        self.state.seconds, self.state.tokens = failed.seconds, failed.tokens
        self.state.rollbacks = failed.rollbacks + 1
        self.events.warn(f"{what}. Went back to the checkpoint of step {step}")

    def _given_up(self, what: str, remedy: str) -> RunError:
        advice = (
            "" if self.saved.step is None else f", then use --resume from step {self.saved.step}"
        )
        return RunError(what, where=str(self.saved.store.directory.parent), remedy=remedy + advice)
