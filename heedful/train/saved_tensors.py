"""The tensors of a run on their way into checkpoints and back, for one process or several.

Either the first process writes whole tensors, put together one after the other, or every process
writes the pieces that it keeps (`checkpoint.sharded`). Whatever wrote them, they are read by any
plan: in pieces where there are some and every process sees the files, else by the first process
for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.errors import ConfigError
from heedful.train.checkpoints import WholeTensors
from heedful.train.model_weights import lies_in_parts
from heedful.train.parallel.pieces import TensorPiece, all_pieces, weight_name

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from heedful.train.checkpoints import Checkpoint, CheckpointStore, Contents
    from heedful.train.objective import CarriedState
    from heedful.train.parallel.pieces import Pieces
    from heedful.train.parallel.team import Team
    from heedful.train.update import Distribution

Tensors = dict[str, Tensor]


class SavedTensors:
    """Gathers what a checkpoint holds, and puts it where each process keeps it.

    Args:
        distribution: of the model.
        team: the processes.
        store: of the checkpoints.
    """

    def __init__(self, distribution: Distribution, team: Team, store: CheckpointStore) -> None:
        self.distribution = distribution
        self.team = team
        self.store = store
        self._parameters: dict[str, Tensor] = dict(distribution.model.named_parameters())
        self._writers: ProcessGroup | None = None
        if store.settings.sharded:
            try:
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
        """The tensors that this process writes; None if it writes none.

        Args:
            weights: by parameter name, as this process keeps them.
            training: moments and averages, by kind and parameter name.
            carried: what the last batch of this process handed on.
        """
        if self._writers is not None:
            from heedful.train.parallel.sharded_files import ShardedTensors

            rows = self.distribution.rows
            others = {**all_pieces(training, rows), **self._carried_pieces(carried)}
            return ShardedTensors(all_pieces(weights, rows), others, self._writers)
        whole = self.distribution.whole
        weights, training = whole(weights), whole(training)
        of_all = self.team.rows_of_all(carried)
        if not self.team.main:
            return None
        named = {f"carried/{name}": tensor for name, tensor in of_all.items()}
        return WholeTensors(weights, {**training, **named})

    def read(self, checkpoint: Checkpoint | None) -> tuple[Mapping[str, Any], Tensors, Tensors]:
        """Read a checkpoint, each process what it keeps.

        Args:
            checkpoint: that the first process found; the others hear of it.

        Returns:
            Its state, the weights, and all other tensors.
        """
        text = None if checkpoint is None else json.dumps(checkpoint.state)
        state = json.loads(self.team.shared_text(text))
        here = self.store.at(state)
        in_pieces = not self.team.alone and (here.sharded or self._has_pieces)
        if not in_pieces or self.team.any(not here.is_here()):
            return state, *self._from_first(checkpoint)
        from heedful.train.parallel.sharded_files import StoredTensors

        both: list[Tensors] = []

        def read() -> None:
            weights = StoredTensors(here.model_folder)
            others = StoredTensors(here.training_folder)
            for stored, slashed in ((weights, False), (others, True)):
                tensors = {
                    name: self._allocated(name, *described)
                    for name, described in stored.described.items()
                    if ("/" in name) == slashed  # one folder may have the files of both
                }
                stored.read(all_pieces(tensors, self.distribution.rows))
                both.append(tensors)

        self.team.together(read)
        return state, both[0], both[1]

    def _from_first(self, checkpoint: Checkpoint | None) -> tuple[Tensors, Tensors]:
        """Weights and other tensors that the first process reads whole for all."""
        share, placed = self.team.shared_tensors, self.distribution.placed
        weights = share(None if checkpoint is None else checkpoint.model())
        weights = {name: placed(name, each) for name, each in weights.items()}
        training = share(None if checkpoint is None else checkpoint.training())
        training = {
            name: each if _is_carried(name) else placed(name, each)
            for name, each in training.items()
        }
        return weights, training

    def _allocated(self, name: str, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of any content, of which this process keeps what it keeps of that name."""
        like = self._parameters.get(weight_name(name))
        if _is_carried(name) or not lies_in_parts(like) or tuple(like.shape) != size:
            return torch.empty(size, dtype=dtype)
        return torch.empty_like(like, dtype=dtype, requires_grad=False)

    @property
    def _has_pieces(self) -> bool:
        return any(lies_in_parts(each) for each in self._parameters.values())

    def _carried_pieces(self, carried: CarriedState) -> Pieces:
        """Pieces of what the last batch handed on: rows, of tensors with those of all processes."""
        here = {name: len(tensor) for name, tensor in carried.items()}
        of_all = [json.loads(each) for each in self.team.texts(json.dumps(here))]
        pieces = {}
        for name, tensor in carried.items():
            counts = [each.get(name, 0) for each in of_all]
            offsets = (sum(counts[: self.team.process.rank]), *(0 for _ in tensor.shape[1:]))
            size = (sum(counts), *tensor.shape[1:])
            pieces[f"carried/{name}"] = [TensorPiece(tensor.detach(), offsets, size)]
        return pieces


def _is_carried(name: str) -> bool:
    return name.startswith("carried/")
