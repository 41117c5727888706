"""Copies of a model, one in each process that trains it, and what shards have in common with them.

Losses here are fused with the output projection, and use parameters after the model's own pass. So
PyTorch's engines see one module, whose forward is the loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from heedful.train.context_parallel import context_parallel
from heedful.train.objective import LossContext, LossSum, Objective, adds_penalties
from heedful.train.parallel.team import Team
from heedful.train.update import Distribution

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from heedful.train.batch_source import Batch

Returned = tuple[Tensor, int, Mapping[str, Tensor], Mapping[str, Tensor]]
"""A `LossSum` as plain values, in which PyTorch's engines find the tensors to wait for."""


class LossPass(nn.Module):
    """A model and its loss as one pass, so that all use of parameters lies inside of it.

    Args:
        model: to train.
        objective: its loss.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Any, context: LossContext) -> Returned:
        """The summed loss of a batch; see `Objective.loss`."""
        result = self.objective.loss(self.model, batch, context)
        return result.loss_sum, result.tokens, dict(result.extras), dict(result.carried_state)


def loss_sum(returned: Returned) -> LossSum:
    """The sum that `LossPass` returned as plain values."""
    total, tokens, extras, carried = returned
    return LossSum(total, tokens, extras, carried)


class Together(Distribution):
    """A model that processes have together.

    Args:
        model: to train.
        objective: its loss.
        team: the processes.
        context: those that have a part of each text; None where texts are whole.
    """

    team: Team

    def __init__(
        self, model: nn.Module, objective: Objective, team: Team, context: DeviceMesh | None
    ) -> None:
        super().__init__(model, objective)
        self.team = team
        self._context = None if context is None else context.get_group()
        if context is not None:
            self.may_look = False  # attention waits for the others' keys
            self.lane = (context.get_local_rank(),)

    def sums(self, values: Sequence[float]) -> list[float]:
        """See `Distribution.sums`."""
        return self.team.sums(values)

    def divided(self) -> AbstractContextManager[None]:
        """A context in which attention looks at the tokens that other processes have, too."""
        return nullcontext() if self._context is None else context_parallel(self._context)


class Copies(Together):
    """A model of which each process has a copy, by DistributedDataParallel.

    Args:
        model: to train.
        objective: its loss.
        team: the processes.
        context: those that have a part of each text; None where texts are whole.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, team: Team, context: DeviceMesh | None
    ) -> None:
        super().__init__(model, objective, team, context)
        self.loss_factor = float(team.process.size)  # what comes out of the reduction is a mean
        device = next(model.parameters()).device
        with warnings.catch_warnings():
            # PyTorch 2.13 has another name for it, which older ones do not know.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            self._pass = DistributedDataParallel(
                LossPass(model, objective),
                device_ids=[device] if device.type == "cuda" else None,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=adds_penalties(model),  # experts that no token chose
            )
        if device.type == "cpu" and team.process.size > 2:  # two have one way to add
            group = self._pass.process_group
            self._pass.register_comm_hook(
                None, lambda _, bucket: _now(mean_in_pairs(bucket.buffer(), group))
            )

    def loss(self, batch: Batch, context: LossContext) -> LossSum:
        """The summed loss of a batch; the pass of the last part gets ready to exchange."""
        with self.divided():
            return loss_sum(self._pass(batch, context))

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """See `Distribution.exchanging`; gradients travel while the backward pass goes on."""
        if last:
            yield
            return
        with self._pass.no_sync():
            yield


def mean_in_pairs(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Average gradients over processes in the order of `PartialSums`.

    The ring of gloo adds each piece of a tensor in another order. As many bytes travel here: each
    process gets its piece from all others, and gives back the mean.

    Args:
        mine: [N] of this process; changed in place.
        group: the processes.
    """
    size = dist.get_world_size(group)
    pieces = torch.nn.functional.pad(mine, (0, -len(mine) % size))
    got = torch.empty_like(pieces)
    dist.all_to_all_single(got, pieces, group=group)
    rows = got.view(size, -1)
    while len(rows) % 2 == 0:
        rows = rows[: len(rows) // 2] + rows[len(rows) // 2 :]
    dist.all_gather_into_tensor(pieces, rows.sum(0).div_(size), group=group)
    return mine.copy_(pieces[: len(mine)])


def _now(tensor: Tensor) -> torch.futures.Future[Tensor]:
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(tensor)
    return done
