"""The state of a run and its tensors: what a checkpoint holds, and how it is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from heedful.train.batch_source import DataPosition
from heedful.train.model_weights import MovingAverage, load_weights, using, weights_of
from heedful.train.optimizers import export_moments
from heedful.train.saved_tensors import SavedTensors

if TYPE_CHECKING:
    from torch import Tensor, nn

    from heedful.events import Events
    from heedful.train.checkpoints import Checkpoint, CheckpointStore
    from heedful.train.objective import CarriedState
    from heedful.train.parallel.team import Team
    from heedful.train.run_settings import CheckpointSettings
    from heedful.train.update import Updater
    from heedful.train.validation import Scores


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

    @property
    def place(self) -> DataPosition:
        """The place in the data of the next update's batches."""
        return DataPosition(self.epoch, self.batch)

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


class SavedState:
    """Writes checkpoints of a run and goes back to them, on one process or several.

    Args:
        updater: makes the updates.
        team: the processes.
        store: of the first of them, where checkpoints go.
        settings: which checkpoints are regular, and whether there is a moving average.
        hooks: validation and publishing.

    Attributes:
        average: the moving average of the weights, if kept.
        step: of the latest checkpoint; None if there is none.
        seconds: of the run when it was written.
    """

    def __init__(
        self,
        updater: Updater,
        team: Team,
        store: CheckpointStore,
        settings: CheckpointSettings,
        hooks: Hooks,
    ) -> None:
        self.updater = updater
        self.distribution = updater.distribution
        self.model = updater.model
        self.team = team
        self.store = store
        self.settings = settings
        self.hooks = hooks
        self.tensors = SavedTensors(self.distribution, team, store)
        decay = settings.ema_decay
        self.average = MovingAverage(weights_of(self.model), decay) if decay else None
        self.step: int | None = None
        self.seconds = 0.0

    @contextmanager
    def judged(self, *, averaged: bool = True) -> Iterator[nn.Module]:
        """A context with the model for the first process to judge or write.

        Args:
            averaged: with the moving average of the weights, if kept.
        """
        average = self.average.tensors if averaged and self.average is not None else None
        copy = self.distribution.copy_in_one_piece(average or weights_of(self.model))
        if copy is not None:
            yield copy
        elif average is None:
            yield self.model
        else:
            with using(self.model, average):
                yield self.model

    def update_average(self, step: int, skipped: Tensor | None = None) -> None:
        """Add the weights after a step to the moving average, if kept; see `MovingAverage`."""
        if self.average is not None:
            self.average.update(weights_of(self.model), step, skipped)

    def save(self, state: TrainingState, carried_state: CarriedState) -> None:
        """Write a checkpoint, and without validation offer the model.

        Args:
            state: the counters.
            carried_state: what the last batch of this process handed on.
        """
        state.rollbacks = 0
        training = export_moments(self.updater.optimizer, self.model)
        if self.average is not None:
            average = self.average.tensors
            training |= {f"average/{name}": tensor for name, tensor in average.items()}
        contents = self.tensors.contents(weights_of(self.model), training, carried_state)
        validated = state.validated
        here = validated is not None and validated.step == state.step
        facts = {
            **self.hooks.facts(),
            "training": asdict(state),
            "score": validated.score if here and validated else None,
            "regular": state.step % self.settings.every_steps == 0,
            "scaler": self.updater.scaler.state_dict(),
        }
        self.team.together(lambda: contents and self.store.save(state.step, contents, facts))
        if self.hooks.validate is None:
            with self.judged() as model:
                self.team.only_main(lambda: self.hooks.offer(model, state.step, None))
        self.step, self.seconds = state.step, state.seconds

    def finish(self) -> None:
        """Wait for a checkpoint that is written in the background."""
        self.team.together(self.store.finish)

    def restore(self, checkpoint: Checkpoint | None) -> tuple[TrainingState, CarriedState]:
        """Restore the exact state that the checkpoint was written in.

        Args:
            checkpoint: that the first process reads; the others hear of it.

        Returns:
            The counters, and what the batch before handed on.
        """
        values, weights, training = self.tensors.read(checkpoint)
        load_weights(self.model, weights)
        moments: dict[str, Tensor] = {}
        average: dict[str, Tensor] = {}
        carried: dict[str, Tensor] = {}
        for name, tensor in training.items():
            kind, _, rest = name.partition("/")
            if kind == "average":
                average[rest] = tensor
            elif kind == "carried":
                carried[rest] = tensor
            else:
                moments[name] = tensor
        self.updater.load_moments(moments)
        if self.average is not None:
            self.average.load(average)
        self.updater.scaler.load_state_dict(dict(values["scaler"]))
        state = TrainingState.parse(values["training"])
        self.step, self.seconds = state.step, state.seconds
        return state, carried

    def newest(self, events: Events) -> tuple[Checkpoint | None, int]:
        """The newest checkpoint, on the first process, and its step; −1 if there is none."""
        checkpoint = self.team.only_main(lambda: self.store.newest(events))
        return checkpoint, round(self.team.of_main(-1 if checkpoint is None else checkpoint.step))
