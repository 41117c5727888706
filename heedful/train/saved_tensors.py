"""The tensors of a run, gathered for checkpoints and restored from them.

Either the first process writes whole tensors, gathered one after the other, or every process writes
the pieces that it holds (`checkpoint.sharded`). Any distribution reads either form: in pieces where
parameters are sharded and every process sees the files, else through the first process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.errors import ConfigError
from heedful.train.checkpoint_contents import WholeTensors
from heedful.train.model_weights import lies_in_parts
from heedful.train.parallel.pieces import TensorPiece, all_pieces, weight_name

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from heedful.train.checkpoint_contents import Contents
    from heedful.train.checkpoints import Checkpoint, CheckpointStore
    from heedful.train.objective import CarriedState
    from heedful.train.parallel.pieces import Pieces
    from heedful.train.parallel.team import Team
    from heedful.train.update import Distribution

Tensors = dict[str, Tensor]


class SavedTensors:
    """Gathers the tensors of a checkpoint, and distributes them when it is read.

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
        self._writers: ProcessGroup | None = None
        if store.settings.sharded:
            try:
                # Modules of DCP that older releases of PyTorch lack; without sharding they are not
                # needed.
                from heedful.train.parallel.sharded_files import check_shared, connect
            except ImportError as error:
                raise ConfigError(
                    f"This PyTorch ({torch.__version__}) cannot write parts as safetensors",
                    where="checkpoint.sharded",
                    remedy="Update it, or leave out --checkpoint.sharded",
                ) from error

            check_shared(store.directory, team)
            self._writers = connect(team.timeout)

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
            from heedful.train.parallel.sharded_files import ShardedTensors

            rows = self.distribution.rows
            others = {**all_pieces(training, rows), **self._carried_pieces(carried)}
            return ShardedTensors(all_pieces(weights, rows), others, self._writers)
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
        # One decision for all: a process that reads through the first one needs the others'
        # broadcasts.
        if not in_pieces or self.team.any(not here.is_here()):
            return state, *self._from_first(checkpoint)
        from heedful.train.parallel.sharded_files import StoredTensors

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
                    if ("/" in name) == slashed  # one folder may have the files of both
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
        """Allocate a tensor in which this process holds the same part as of its weight."""
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
