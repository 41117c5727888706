"""The training loop: updates, metrics, validation, checkpoints, stopping."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor

from heedful.errors import RunError
from heedful.memory import Trimmer, ran_out, reuse_freed
from heedful.train.batch_source import Place, Prefetched, Source
from heedful.train.checkpoints import MovingAverage, load_weights, weights_of
from heedful.train.nonfinite import NOWHERE, first_bad_weight
from heedful.train.optimizers import export_moments, import_moments, learning_rate
from heedful.train.parallel.shares import stand_in
from heedful.train.splitting import OneTooLarge, Part
from heedful.train.stop_request import StopRequest
from heedful.train.update import Updater, UpdateResult

if TYPE_CHECKING:
    from heedful.device import Precision
    from heedful.events import Events, Value
    from heedful.train.checkpoints import Checkpoint, CheckpointStore
    from heedful.train.objective import CarriedState
    from heedful.train.parallel.distribution import Distribution
    from heedful.train.run_settings import RunSettings
    from heedful.train.validation import Scores


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
    """Trains one model, alone or with other processes that do the same.

    Args:
        distribution: of the model and its loss over processes.
        source: where batches come from.
        settings: of the run.
        precision: of the products.
        store: where checkpoints go.
        hooks: validation and publishing, for the first process.
        events: receive progress, metrics and notes.
    """

    def __init__(
        self,
        distribution: Distribution,
        source: Source,
        settings: RunSettings,
        precision: Precision,
        *,
        store: CheckpointStore,
        hooks: Hooks,
        events: Events,
    ) -> None:
        self.updater = Updater.of_run(distribution, settings, precision)
        self.distribution, self.team = distribution, distribution.team
        self.model = distribution.model
        self.source = source
        self.settings = settings
        self.width = cast(Any, self.model).spec.width  # for the paper's learning rate
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
        while not (self._stopped(stop) or self._end()):
            started = time.monotonic()
            place = Place(self.state.epoch, self.state.batch)
            parts, (epoch, used) = self.prefetched.take(place)
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
            if self.average is not None:
                self.average.update(weights_of(self.model), step)
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

        with self._judged() as model:
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
        if self._saved_step != self.state.step:
            self._save()
        if finish:
            self.team.only_main(self.store.finish)

    def _save(self) -> None:
        state = self.state
        state.rollbacks = 0
        whole = self.distribution.whole
        weights = whole(weights_of(self.model))
        training = whole(export_moments(self.updater.optimizer, self.model))
        if self.average is not None:
            average = whole(self.average.tensors)
            training |= {f"average/{name}": tensor for name, tensor in average.items()}
        carried = self.team.rows_of_all(self.carried_state)
        training |= {f"carried/{name}": tensor for name, tensor in carried.items()}
        validated = state.validated
        here = validated is not None and validated.step == state.step
        facts = {
            **self.hooks.facts(),
            "training": asdict(state),
            "score": validated.score if here and validated else None,
            "regular": state.step % self.settings.checkpoint.every_steps == 0,
            "scaler": self.updater.scaler.state_dict(),
        }
        self.team.only_main(lambda: self.store.save(state.step, weights, training, facts))
        if self.hooks.validate is None:
            with self._judged() as model:
                self.team.only_main(lambda: self.hooks.offer(model, state.step, None))
        self._saved_step, self._saved_seconds = state.step, state.seconds

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Restore the exact state that the checkpoint was written in.

        Args:
            checkpoint: that the first process reads; the others hear of it.
        """
        share, placed = self.team.shared_tensors, self.distribution.placed
        state = json.loads(
            self.team.shared_text(None if checkpoint is None else json.dumps(checkpoint.state))
        )
        weights = share(None if checkpoint is None else checkpoint.model())
        load_weights(self.model, {name: placed(name, each) for name, each in weights.items()})
        moments: dict[str, Tensor] = {}
        average: dict[str, Tensor] = {}
        carried: dict[str, Tensor] = {}
        training = share(None if checkpoint is None else checkpoint.training())
        for name, tensor in training.items():
            kind, _, rest = name.partition("/")
            if kind == "average":
                average[rest] = placed(rest, tensor)
            elif kind == "carried":
                carried[rest] = tensor
            else:
                moments[name] = placed(name, tensor)
        import_moments(self.updater.optimizer, self.model, moments)
        if self.average is not None:
            self.average.load(average)
        self.updater.scaler.load_state_dict(dict(state["scaler"]))
        self.state = TrainingState.parse(state["training"])
        self.carried_state = carried
        self._saved_step, self._saved_seconds = self.state.step, self.state.seconds

    def _stopped(self, stop: StopRequest) -> bool:
        """Return whether a process was asked to stop; all of them hear of it."""
        stopped = self.team.any(stop)
        if stopped and not stop:
            stop.ask("another process")
        return stopped

    def _judged(self) -> AbstractContextManager[Any]:
        """A context with the model of the weights that count: the moving average if kept."""
        return self.distribution.judged(None if self.average is None else self.average.tensors)

    def _batches_from(self, place: Place) -> tuple[list[Part], Place]:
        """The parts of an update's batches that are this process's, and the place after them."""
        places, after = self._places_from(place)
        share = self.distribution.share
        parts = [
            part
            for micro in share.numbers(len(places))
            for part in share.cut(self.source.batch(*places[micro]), micro)
        ]
        return parts or [stand_in(self.source.batch(*places[0]), 0)], after

    def _places_from(self, place: Place) -> tuple[list[Place], Place]:
        """The places of one update's batches, and the place after them."""
        places: list[Place] = []
        while len(places) < self.settings.optimizer.accumulate:
            places.append(place)
            place = self.source.after(place)
            if place.epoch == self.settings.max_epochs:
                break
        return places, place

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
        self, parts: Sequence[Part], step: int, rate: float, stop: StopRequest
    ) -> UpdateResult | None:
        try:
            return self.updater.update(
                parts, step, rate, cancelled=lambda: bool(stop), carried_state=self.carried_state
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
            weight = first_bad_weight(self.model)
            why = f"; the weight {weight} itself is not finite" if weight else ""
            raise self._given_up(
                f"{state.skipped} updates in a row were not finite{why}",
                "Lower schedule.peak_learning_rate, set optimizer.clip_norm, or use fp32",
            )

    def _diagnosed(
        self, parts: Sequence[Part], before: CarriedState
    ) -> tuple[str, dict[str, Value]]:
        """What went wrong and where, in words and as values: of the first process that knows."""
        step = self.state.step
        if not self.distribution.may_look:
            return f"Not finite at step {step}, in shards that cannot be looked into alone", {}
        found, indices = self.updater.diagnose(parts, step, before)
        lines = self.source.lines(indices.tolist())
        values = {"place": found.place, "lines": ", ".join(lines)}
        knows = found is not NOWHERE
        told = [
            json.loads(each)
            for each in self.team.texts(json.dumps([knows, found.describe(lines), values]))
        ]
        _, described, values = next((each for each in told if each[0]), told[0])
        return f"Not finite at step {step}: {described}", values

    def _roll_back(self, what: str) -> None:
        failed = self.state
        checkpoint = self.team.only_main(lambda: self.store.newest(self.events))
        step = round(self.team.of_main(-1 if checkpoint is None else checkpoint.step))
        if step < 0:
            raise self._given_up(
                f"{what}; there is no checkpoint to return to", "Lower schedule.peak_learning_rate"
            )
        if failed.rollbacks >= MAX_ROLLBACKS:
            raise self._given_up(
                f"{what}; {failed.rollbacks} returns to step {step} did not help",
                "Lower schedule.peak_learning_rate, set optimizer.clip_norm, or use fp32",
            )
        self.restore(checkpoint)
        # go on with the data after the batch that failed: the same batch would fail again
        self.state.epoch, self.state.batch = failed.epoch, failed.batch
        self.state.seconds, self.state.tokens = failed.seconds, failed.tokens
        self.state.rollbacks = failed.rollbacks + 1
        self.events.warn(f"{what}. Went back to the checkpoint of step {step}")

    def _given_up(self, what: str, remedy: str) -> RunError:
        advice = (
            "" if self._saved_step is None else f", then use --resume from step {self._saved_step}"
        )
        return RunError(what, where=str(self.store.directory.parent), remedy=remedy + advice)
