"""The state of a run: its counters and tensors, saved in checkpoints and restored from them."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heedful.errors import UserError
from heedful.events import Events
from heedful.train.batch_source import DataPosition
from heedful.train.checkpoint_contents import (
    Contents,
    Pieces,
    ShardedTensors,
    StoredTensors,
    TensorPiece,
    WholeTensors,
    all_pieces,
    weight_name,
)
from heedful.train.checkpoints import Checkpoint, CheckpointStore
from heedful.train.model_weights import (
    MovingAverage,
    lies_in_parts,
    load_weights,
    using,
    weights_of,
)
from heedful.train.objective import CarriedState
from heedful.train.optimizers import export_moments
from heedful.train.parallel.team import Team
from heedful.train.update import Distribution, Updater
from heedful.train.validation import Scores

Tensors = dict[str, Tensor]

# Time within which a folder made by another machine must appear; NFS caches names for 30 seconds.
_NOTICE_SECONDS = 60.0


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
        store: checkpoints in the run directory, with the decay of the moving average.
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
        hooks: Hooks,
    ) -> None:
        self.updater = updater
        self.distribution = updater.distribution
        self.model = updater.model
        self.team = team
        self.store = store
        self.hooks = hooks
        self.tensors = SavedTensors(self.distribution, team, store)
        decay = store.settings.ema_decay
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
        # With shards a second, whole model is made; otherwise the weights are swapped in place.
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
        # Gathering is a collective, so it stands outside of `together`.
        contents = self.tensors.contents(weights_of(self.model), training, carried_state)
        validated = state.validated
        # A score of an earlier step would let the average of the best choose wrong checkpoints.
        here = validated is not None and validated.step == state.step
        facts = {
            **self.hooks.facts(),
            "training": asdict(state),
            "score": validated.score if here and validated else None,
            "regular": state.step % self.store.settings.every_steps == 0,
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


class SavedTensors:
    """Gathers the tensors of a checkpoint, and distributes them when it is read.

    Either the first process writes whole tensors, gathered one after the other, or every process
    writes the pieces that it holds (`checkpoint.sharded`). Any distribution reads either form: in
    pieces where parameters are sharded and every process sees the files, else through the first
    process.

    Args:
        distribution: model, spread over the processes.
        team: processes of the run.
        store: store of the checkpoints.
    """

    def __init__(self, distribution: Distribution, team: Team, store: CheckpointStore) -> None:
        self.distribution = distribution
        self.team = team
        self.store = store
        # Looked up by name when a checkpoint is read: they say which tensors are DTensors, and how
        # placed.
        self._parameters: dict[str, Tensor] = dict(distribution.model.named_parameters())
        self._writers: dist.ProcessGroup | None = None
        if store.settings.sharded:
            check_shared(store.directory, team)
            # Gloo, as NCCL's operations would wait behind those of training on the GPU. A separate
            # group, as a thread may wait in it during training.
            limit = timedelta(seconds=team.timeout)
            self._writers = dist.new_group(backend="gloo", timeout=limit)

    def contents(
        self, weights: Mapping[str, Tensor], training: Mapping[str, Tensor], carried: CarriedState
    ) -> Contents | None:
        """Return the tensors that this process writes; None if it writes none.

        Args:
            weights: weights by parameter name, as this process holds them.
            training: moments and averages, by kind and parameter name.
            carried: carried state of this process's last batch.
        """
        if self._writers is not None:
            rows = self.distribution.rows
            others = {**all_pieces(training, rows), **self._carried_pieces(carried)}
            return ShardedTensors.of(all_pieces(weights, rows), others, self.team, self._writers)
        whole = self.distribution.full_tensors
        # Collectives, so every process calls them, though only the first one keeps the results.
        weights, training = whole(weights), whole(training)
        of_all = self.team.rows_of_all(carried)
        if not self.team.main:
            return None
        named = {f"carried/{name}": tensor for name, tensor in of_all.items()}
        return WholeTensors(weights, {**training, **named})

    def read(self, checkpoint: Checkpoint | None) -> tuple[Mapping[str, Any], Tensors, Tensors]:
        """Read a checkpoint; each process gets the parts that it holds.

        Args:
            checkpoint: checkpoint found by the first process; None on the others.

        Returns:
            State of the checkpoint, weights, and all other tensors.
        """
        text = None if checkpoint is None else json.dumps(checkpoint.state)
        state = json.loads(self.team.shared_text(text))
        here = self.store.at(state)
        in_pieces = not self.team.alone and (here.sharded or self._has_pieces)
        # All processes decide alike: a process that reads through the first one needs the others'
        # broadcasts.
        if not in_pieces or self.team.any(not here.is_here()):
            return state, *self._from_first(checkpoint)
        both: list[Tensors] = []

        def read() -> None:
            weights = StoredTensors(here.model_folder)
            others = StoredTensors(here.training_folder)
            for stored, slashed in ((weights, False), (others, True)):
                # Allocated as DTensors, so that a process reads its own rows and never a whole
                # tensor.
                tensors = {
                    name: self._allocated(name, *described)
                    for name, described in stored.described.items()
                    if ("/" in name) == slashed  # one folder may have both weights and moments
                }
                stored.read(all_pieces(tensors, self.distribution.rows))
                both.append(tensors)

        # If one process cannot read a file, all processes raise an error.
        self.team.together(read)
        return state, both[0], both[1]

    def _from_first(self, checkpoint: Checkpoint | None) -> tuple[Tensors, Tensors]:
        """Read weights and other tensors on the first process and send them to all."""
        share, local_part = self.team.shared_tensors, self.distribution.local_part
        weights = share(None if checkpoint is None else checkpoint.model())
        weights = {name: local_part(name, each) for name, each in weights.items()}
        training = share(None if checkpoint is None else checkpoint.training())
        training = {
            # Carried rows belong to examples, not to parameters: every process finds its own by
            # index.
            name: each if _is_carried(name) else local_part(name, each)
            for name, each in training.items()
        }
        return weights, training

    def _allocated(self, name: str, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate a tensor that is divided over the processes like its weight."""
        like = self._parameters.get(weight_name(name))
        # Step counts of moments are scalars and belong to no shard, hence the comparison of sizes.
        if _is_carried(name) or not lies_in_parts(like) or tuple(like.shape) != size:
            return torch.empty(size, dtype=dtype)
        return torch.empty_like(like, dtype=dtype, requires_grad=False)

    @property
    def _has_pieces(self) -> bool:
        return any(lies_in_parts(each) for each in self._parameters.values())

    def _carried_pieces(self, carried: CarriedState) -> Pieces:
        """Return the carried rows as pieces of tensors with the rows of all processes."""
        here = {name: len(tensor) for name, tensor in carried.items()}
        of_all = [json.loads(each) for each in self.team.texts(json.dumps(here))]
        pieces = {}
        for name, tensor in carried.items():
            counts = [each.get(name, 0) for each in of_all]
            # Rows are concatenated in the order of ranks; processes may hold different numbers of
            # rows.
            offsets = (sum(counts[: self.team.process.rank]), *(0 for _ in tensor.shape[1:]))
            size = (sum(counts), *tensor.shape[1:])
            pieces[f"carried/{name}"] = [TensorPiece(tensor.detach(), offsets, size)]
        return pieces


def _is_carried(name: str) -> bool:
    return name.startswith("carried/")


def check_shared(folder: Path, team: Team) -> None:
    """Refuse a folder that not all machines share.

    Args:
        folder: folder of the checkpoints, made by the first process.
        team: processes of the run.

    Raises:
        UserError: when a machine does not see the files of the first process; it is named.
    """
    # A random name: a folder left over on another machine must not pass for this one.
    made = folder / f".temporary-{team.shared_text(uuid.uuid4().hex)}"
    team.only_main(made.mkdir)
    deadline = time.monotonic() + _NOTICE_SECONDS
    while not made.is_dir() and folder.is_dir() and time.monotonic() < deadline:
        time.sleep(0.5)
    failure = None
    if not made.is_dir():
        failure = UserError(
            f"{socket.gethostname()} (process {team.process.rank}) does not see the checkpoints "
            "that the first process writes, and each process has to write its own part there",
            where=str(folder),
            remedy="Take a run directory on a file system that all machines share, or leave out "
            "--checkpoint.sharded",
        )
    team.check(failure)
    team.only_main(made.rmdir)
