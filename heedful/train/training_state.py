"""The state of a run: its counters and tensors, saved in checkpoints and restored from them."""

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
    """The part of a validation's result that later steps need.

    Args:
        step: number of updates at that time.
        score: deciding score, larger is better.
    """

    step: int
    score: float


@dataclass
class TrainingState:
    """The counters of a run; weights and optimiser state are stored separately.

    Args:
        step: number of updates, skipped ones included.
        epoch: number of finished passes over the corpus.
        batch: index of the next batch in the present pass.
        tokens: number of target tokens trained on.
        seconds: wall-clock time, over all resumes.
        best: best validation so far.
        stale: number of validations since the best one.
        validated: latest validation.
        skipped: number of non-finite updates in a row up to now.
        rollbacks: number of rollbacks since the latest checkpoint was written.
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
        """The position of the next update's batches in the data."""
        return DataPosition(self.epoch, self.batch)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Parse a checkpoint's JSON types."""
        scored = {
            name: None if values[name] is None else Scored(**values[name])
            for name in ("best", "validated")
        }
        return cls(**{**values, **scored})


@dataclass(frozen=True)
class Hooks:
    """Callbacks of the training loop.

    Args:
        validate: function that scores the model; None without validation data.
        offer: function that publishes a model, given step and scores, if it is the best so far.
        facts: function that returns plain data stored in every checkpoint.
    """

    validate: Callable[[Any], Scores] | None
    offer: Callable[[Any, int, Scores | None], None]
    facts: Callable[[], Mapping[str, Any]]


class SavedState:
    """Writes and restores the checkpoints of a run, on one process or several.

    Args:
        updater: updater of the model.
        team: processes of the run.
        store: checkpoints in the run directory.
        settings: interval of regular checkpoints, and decay of the moving average.
        hooks: validation and publishing.

    Attributes:
        average: moving average of the weights; None without one.
        step: step of the latest checkpoint; None if there is none.
        seconds: training time of the run when that checkpoint was written.
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
    def evaluation_model(self, *, averaged: bool = True) -> Iterator[nn.Module]:
        """A context with the model that the first process validates or writes.

        Args:
            averaged: use of the moving average of the weights, if there is one.
        """
        average = self.average.tensors if averaged and self.average is not None else None
        # With shards a second model in one piece is made; otherwise the weights are swapped in
        # place.
        copy = self.distribution.whole_model(average or weights_of(self.model))
        if copy is not None:
            yield copy
        elif average is None:
            yield self.model
        else:
            with using(self.model, average):
                yield self.model

    def update_average(self, step: int, skipped: Tensor | None = None) -> None:
        """Add the weights after a step to the moving average, if any; see `MovingAverage`."""
        if self.average is not None:
            self.average.update(weights_of(self.model), step, skipped)

    def save(self, state: TrainingState, carried_state: CarriedState) -> None:
        """Write a checkpoint; without validation also offer the model for publishing.

        Args:
            state: counters of the run.
            carried_state: carried state of this process's last batch.
        """
        # Progress was made: a later rollback goes to this checkpoint, not to the one before.
        state.rollbacks = 0
        training = export_moments(self.updater.optimizer, self.model)
        if self.average is not None:
            average = self.average.tensors
            training |= {f"average/{name}": tensor for name, tensor in average.items()}
        # A collective with several processes, so it stands outside of `together`.
        contents = self.tensors.contents(weights_of(self.model), training, carried_state)
        validated = state.validated
        # A score of an earlier step would let the average of the best choose wrong checkpoints.
        here = validated is not None and validated.step == state.step
        facts = {
            **self.hooks.facts(),
            "training": asdict(state),
            "score": validated.score if here and validated else None,
            "regular": state.step % self.settings.every_steps == 0,
            "scaler": self.updater.scaler.state_dict(),
        }
        # With shards every process writes, so that a full disk on one has to stop all of them.
        self.team.together(lambda: contents and self.store.save(state.step, contents, facts))
        # Nothing says which model is best, so the latest one is published with every checkpoint.
        if self.hooks.validate is None:
            with self.evaluation_model() as model:
                self.team.only_main(lambda: self.hooks.offer(model, state.step, None))
        self.step, self.seconds = state.step, state.seconds

    def finish(self) -> None:
        """Wait until the checkpoint in the background is written."""
        self.team.together(self.store.finish)

    def restore(self, checkpoint: Checkpoint | None) -> tuple[TrainingState, CarriedState]:
        """Restore the exact state in which the checkpoint was written.

        Args:
            checkpoint: checkpoint on the first process; None on the others.

        Returns:
            The counters, and the carried state of the batch before.
        """
        values, weights, training = self.tensors.read(checkpoint)
        load_weights(self.model, weights)
        moments: dict[str, Tensor] = {}
        average: dict[str, Tensor] = {}
        carried: dict[str, Tensor] = {}
        for name, tensor in training.items():
            # Names are KIND/NAME: moments keep the kind, which is the optimiser's own key.
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
        """Return the newest checkpoint (on the first process) and its step; −1 if there is none."""
        # Verifying hashes takes a while, and one reader is enough.
        checkpoint = self.team.only_main(lambda: self.store.newest(events))
        return checkpoint, round(self.team.of_main(-1 if checkpoint is None else checkpoint.step))
